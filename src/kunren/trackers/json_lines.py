"""Files of one JSON object a line, as they are found: cut off by a kill, being written to, from an older run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeGuard


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

    A line without a whole number for its step, as it is counted, is skipped. Where a run went on from stands in the
    `events.jsonl` beside it; without that, it is taken to be its first log.
    """
    entries: list[dict[str, Any]] = []
    for entry in read_json_lines(path):
        if not _is_step(entry.get("step")):
            continue
        if entries and entry["step"] < entries[-1]["step"]:
            entries = [earlier for earlier in entries if earlier["step"] < entry["step"]]
        entries.append(entry)
    try:
        events = read_json_lines(Path(path).with_name("events.jsonl"))
    except OSError:
        return entries
    return _without_overtaken(entries, [event for event in events if event.get("event") == "begin"])


def _without_overtaken(entries: list[dict[str, Any]], begins: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what was logged past the step from which a later training went on."""
    times = [seconds_of(entry) for entry in entries]
    stands = [True] * len(entries)
    for number, begin in enumerate(begins):
        step, moment = begin.get("step"), seconds_of(begin)
        # Lines before the first that is later. (The clock may have been put back since: the rest is not earlier.)
        before = next((index for index, seconds in enumerate(times) if seconds >= moment), len(entries))
        if not _is_step(step) or (before == len(entries) and number == 0):
            continue  # the second: put back since it began, for nothing was there before it
        for index in range(before):
            if times[index] > 0 and entries[index]["step"] > step:
                stands[index] = False
    return [entry for entry, it_stands in zip(entries, stands, strict=True) if it_stands]


def seconds_of(entry: dict[str, Any]) -> float:
    """When a line was written, in seconds since 1970; 0 where it does not say."""
    found = entry.get("time")
    return float(found) if isinstance(found, (int, float)) and abs(found) < 1e300 else 0.0  # False for NaN


def _is_step(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53
