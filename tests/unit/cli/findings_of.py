"""What tests of `kunren check` ask of its findings, and of folders that it must leave as they were."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kunren.cli.check_findings import Finding, Findings

_WORST_LAST = ("ok", "skipped", "warning", "failed")


def worst(findings: Findings) -> dict[str, Finding]:
    """By the names of checks: of several of one name the worst."""
    return {one.check: one for one in sorted(findings.found, key=lambda one: _WORST_LAST.index(one.verdict))}


def failed(results: dict[str, Finding]) -> list[str]:
    """The names of the checks that failed."""
    return sorted(name for name, one in results.items() if one.verdict == "failed")


def files_of(folder: Path) -> dict[str, str]:
    """All that is in a folder, with a digest of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(folder.rglob("*"))
    }
