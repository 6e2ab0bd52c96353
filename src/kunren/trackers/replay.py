"""Sending a run to trackers after the fact: what `metrics.jsonl` holds, once, and later only what is new."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from kunren.arguments import TrainingArguments
from kunren.base.registry import resolve
from kunren.base.strict_json import read_json, write_json
from kunren.trackers.guard import in_one_line
from kunren.trackers.json_lines import read_json_lines, read_local_log, seconds_of
from kunren.trackers.local_log import METRICS_NAME
from kunren.trackers.registry import CALLBACKS, ELSEWHERE, tracker_names
from kunren.trackers.run_events import EVENTS_NAME
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker, plain_values

SYNCED_NAME = "synced.json"
_OF_A_LINE = ("step", "time", "account")
_MEASURES_ITSELF = "codecarbon"
_QUIET_SECONDS = 120.0  # a run that has not ended, and has written later than this, is going on


class ReplayError(ConnectionError):
    """A tracker did not take a run. What it has taken is remembered: another replay sends the rest."""


@dataclass(frozen=True)
class Sent:
    """What one tracker was sent now."""

    tracker: str
    lines: int
    run_id: str | None


@dataclass
class _Line:
    metrics: dict[str, Any]
    step: int
    time: float
    position: int  # in the file, counted from 1


def replay(folder: str | Path, names: Iterable[str]) -> list[Sent]:
    """Send what stands in the `metrics.jsonl` of an output folder to the trackers of these names.

    What each was sent is noted in `synced.json`; the next time only what is new goes, to the same run where the tracker
    can. FileNotFoundError for a folder without logs, ValueError for a name that is none, ImportError for a missing
    package, ReplayError for a tracker that fails.
    """
    folder = Path(folder).absolute()
    if not (folder / METRICS_NAME).is_file():
        raise FileNotFoundError(f"{folder} has no {METRICS_NAME}: it is not the output folder of a run of kunren.")
    return [_replay(folder, name) for name in _names(names)]


def _names(names: Iterable[str]) -> list[str]:
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name in ELSEWHERE:
            raise ValueError(f"{name!r} cannot be sent to: {ELSEWHERE[name]}.")
        if name == _MEASURES_ITSELF:
            raise ValueError(f"{name!r} measures while a run is going on; there is nothing to send to it afterwards.")
    return [name for name in tracker_names(given, source="") if name != _MEASURES_ITSELF]


def _replay(folder: Path, name: str) -> Sent:
    standing = _standing(folder)
    synced = _synced(folder)
    before = synced.get(name, {})
    if not standing or before.get("began") != standing[0].time:
        before = {}  # another run has been written to this folder since
    new = [line for line in standing if line.position > before.get("lines", 0)]
    if not new:
        return Sent(name, 0, before.get("run_id"))
    # Where the last line that was sent stands no more, a resumed training has overtaken it.
    stands = any(line.position == before.get("lines") for line in standing)
    first_step = before["step"] if stands else new[0].step - 1 if before else 0
    run = _described(folder, before.get("run_id"), first_step)
    count, run_id, error = _send(resolve(CALLBACKS[name])().tracker, run, new, _outcome(folder, standing))
    if count:
        last = new[count - 1]
        note = {"began": standing[0].time, "lines": last.position, "step": last.step, "run_id": run_id}
        write_json(folder / SYNCED_NAME, {**synced, name: note})
    if isinstance(error, KeyboardInterrupt):
        raise error
    if error is not None:
        raise ReplayError(
            f"{name} failed after {count} of {len(new)} lines, {type(error).__name__}: {in_one_line(error)}. What "
            f"it has taken is noted in {folder / SYNCED_NAME}: send again for the rest."
        ) from error
    return Sent(name, count, run_id)


def _send(
    tracker: Tracker, run: TrackedRun, lines: list[_Line], outcome: Outcome
) -> tuple[int, str | None, BaseException | None]:
    """How many lines the tracker took, the run's id, and what it failed with."""
    count, run_id, error = 0, None, None
    try:
        tracker.adopt()
        tracker.start(run)
        run_id = tracker.run_id()
        for line in lines:
            tracker.log_past(line.metrics, line.step, line.time)
            count += 1
    except BaseException as problem:  # some trackers raise SystemExit
        error, outcome = problem, "stopped"
    try:
        tracker.finish(outcome)
    except BaseException as problem:
        if error is None:
            count, error = 0, problem  # what was in its queue may be lost
    return count, run_id, error


def _standing(folder: Path) -> list[_Line]:
    """The lines that stand, in order; what is appended while they are read is left for the next time."""
    path = folder / METRICS_NAME
    positions = {json.dumps(entry): index for index, entry in enumerate(read_json_lines(path), 1)}
    lines = []
    for entry in read_local_log(path):
        position = positions.get(json.dumps(entry))
        if position is not None:
            metrics = plain_values({name: value for name, value in entry.items() if name not in _OF_A_LINE})
            lines.append(_Line(metrics, entry["step"], seconds_of(entry), position))
    return lines


def synced_trackers(folder: str | Path) -> set[str]:
    """The trackers that have been sent something of a run afterwards."""
    return set(_synced(Path(folder)))


def _synced(folder: Path) -> dict[str, Any]:
    try:
        notes = read_json(folder / SYNCED_NAME)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(
            f"{folder / SYNCED_NAME}, which says what was sent before, cannot be read ({error}). Remove it to send "
            "everything again."
        ) from error
    return notes if isinstance(notes, dict) else {}


def _events(folder: Path) -> list[dict[str, Any]]:
    path = folder / EVENTS_NAME
    return [entry for entry in read_json_lines(path) if "event" in entry] if path.is_file() else []


def _outcome(folder: Path, standing: list[_Line]) -> Outcome:
    """How the run ended; one that is going on, or may be, is "stopped" as far as it has got."""
    marks = [entry for entry in _events(folder) if entry["event"] in ("begin", "end")]
    if marks and marks[-1].get("outcome") in get_args(Outcome):
        return cast(Outcome, marks[-1]["outcome"])
    if any("train_runtime" in line.metrics for line in standing):
        return "finished"
    is_quiet = time.time() - standing[-1].time > _QUIET_SECONDS
    return "failed" if marks and is_quiet else "stopped"


def _described(folder: Path, resumed_id: str | None, first_step: int) -> TrackedRun:
    """The run as its last beginning in `events.jsonl` describes it; a folder without that has only its name."""
    begin: dict[str, Any] = next((entry for entry in reversed(_events(folder)) if entry["event"] == "begin"), {})
    arguments, environment, model = (_dict(begin.get(name)) for name in ("arguments", "environment", "model"))
    return TrackedRun(
        arguments={**arguments, **{f"environment/{name}": value for name, value in environment.items()}},
        model_config=_model_config(folder),
        num_parameters=model.get("parameters", 0),
        name=begin.get("run_name") or folder.name,
        project=arguments.get("project", TrainingArguments.project),
        folder=folder,
        resumed_id=resumed_id,
        first_step=first_step,
    )


def _model_config(folder: Path) -> dict[str, Any]:
    """The configuration that was saved with the model, in the folder or in the newest checkpoint that has one."""
    saved = [*folder.glob("config.json"), *folder.glob("checkpoint-*/config.json")]
    try:
        return _dict(read_json(max(saved, key=lambda path: path.stat().st_mtime)))
    except (ValueError, OSError):  # there is none, or one that is being written
        return {}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
