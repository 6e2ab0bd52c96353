"""What the benchmarks share: interleaved rounds, medians, and a table that is printed and kept as Markdown."""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "transformers", "accelerate", "lightning")

Measured = TypeVar("Measured")


def command_line(description: str | None, rounds: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(description or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    parser.add_argument("--without", nargs="*", default=[], metavar="SYSTEM", help="systems to leave out")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    return parser


def interleaved(runs: Mapping[str, Callable[[], Measured]], rounds: int) -> dict[str, list[Measured]]:
    """Run every system once a round, so that a disturbance of the machine hits all of them alike.

    Each round starts with another system, and the garbage of one system is collected before the next one runs.
    """
    names = list(runs)
    measured: dict[str, list[Measured]] = {name: [] for name in names}
    for round_number in range(rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            gc.collect()
            measured[name].append(runs[name]())
        if sys.stderr.isatty():
            print(f"\rround {round_number + 1} of {rounds}", end="\r", file=sys.stderr, flush=True)
    return measured


def ratio_cells(values: Sequence[float], reference: Sequence[float]) -> tuple[str, str]:
    """How many times the reference: the median over the rounds, and every round by itself."""
    each = [value / base for value, base in zip(values, reference, strict=True)]
    return f"{statistics.median(each):.2f}", " ".join(f"{ratio:.2f}" for ratio in each)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns also line up in a terminal; the first is set left, the numbers right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]

    def line(first: str, *others: str) -> str:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        return f"| {' | '.join(cells)} |"

    rule = "-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])
    return "\n".join([line(*headers), line(*rule), *(line(*row) for row in rows)])


def report(name: str, title: str, sections: Sequence[str], write: bool) -> None:
    """Print the tables under where and when they were measured; keep them in results/<name>.md if asked to."""
    text = "\n\n".join([f"# {title}", circumstances(), *sections]) + "\n"
    print(text)
    if write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")


def circumstances() -> str:
    """The date, the cores and the versions, in one sentence."""
    date = subprocess.run(["date", "+%F %H:%M %Z"], capture_output=True, text=True, check=True).stdout.strip()
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in PACKAGES)
    return (
        f"Measured on {date}; {os.cpu_count()} cores, {processor()}, one thread; "
        f"Python {sys.version.split()[0]}, {versions}."
    )


def processor() -> str:
    """The processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown processor"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")
