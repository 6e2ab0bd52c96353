"""Files of one JSON object a line, as they are found: cut off by a kill, being written to, from an older run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def read_json_lines(path: str | Path) -> list[dict[str, Any]]:
    """The objects in the file, in its order; a line that is none, such as one that a kill has cut off, is skipped."""
    entries = []
    # Not splitlines(): a text may hold what that takes for the end of a line, and JSON does not.
    for line in Path(path).read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    return entries


def ends_in_mid_line(path: str | Path) -> bool:
    """Whether the last line was cut off, by a kill or a full disk: what is appended has to begin with a line break."""
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # there is no such file, or nothing in it
        return False


def read_local_log(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `metrics.jsonl` that stand: where a run was resumed, or begun again, what it overtook is left out.

    A line without a whole number for its step, as it is counted, is skipped.
    """
    entries: list[dict[str, Any]] = []
    for entry in read_json_lines(path):
        if type(entry.get("step")) is not int or not 0 <= entry["step"] < 2**53:
            continue
        if entries and entry["step"] < entries[-1]["step"]:
            entries = [earlier for earlier in entries if earlier["step"] < entry["step"]]
        entries.append(entry)
    return entries
