"""What the files of an output folder tell of its run: the one reader for the page, the picture and `kunren watch`.

Loads neither torch nor anything else that takes time.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from kunren.report.liveness import goes_on, silent_too_long
from kunren.report.logged import PHASES as PHASES
from kunren.report.logged import Points, as_number, curves, evaluations, has_number, is_count, rates_of, total_account
from kunren.trackers.json_lines import read_json_lines
from kunren.trackers.json_lines import read_local_log as read_local_log

OUTCOMES = ("finished", "stopped", "failed", "running", "interrupted")
LATE_SECONDS = 20  # after which the next log may be overdue

_METRICS, _EVENTS = "metrics.jsonl", "events.jsonl"
_CHECKPOINT = re.compile(r"^checkpoint-(\d{1,18})$")


@dataclass(frozen=True)
class Session:
    """One `train()`: what was known when it began, what was warned of, and how it ended, if it came to its end."""

    begin: dict[str, Any]
    warnings: list[dict[str, Any]]
    end: dict[str, Any] | None


@dataclass(frozen=True)
class Checkpoint:
    """A saved step that is still there; `metrics` are those of the evaluation at that step."""

    step: int
    path: Path
    metrics: dict[str, float]
    is_best: bool


@dataclass(frozen=True)
class RunRecord:
    """A run as its files tell it: the last training that began anew in its folder, with what has resumed it.

    `changed_at`: when the files last changed, in seconds since 1970. `earlier`: how many trainings were begun in the
    folder before, and are not told of; the last of them at `earlier_begin`. `traces`: what `profile_steps` has left.
    """

    folder: Path
    name: str
    logs: list[dict[str, Any]]
    sessions: list[Session]
    checkpoints: list[Checkpoint]
    changed_at: float = 0.0
    earlier: int = 0
    earlier_begin: float = 0.0
    traces: list[Path] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        if self.sessions:
            if self.sessions[-1].end is not None:
                return False
        elif any("train_runtime" in entry for entry in self.logs):
            return False
        begins = [{"time": self.earlier_begin}, *(session.begin for session in self.sessions)]
        return goes_on(self.folder, begins, self.logs, self.changed_at)

    @property
    def is_silent(self) -> bool:
        """Whether its next log is overdue."""
        return silent_too_long([session.begin for session in self.sessions], self.logs, self.changed_at, LATE_SECONDS)

    @property
    def outcome(self) -> str:
        """One of `OUTCOMES`; "interrupted" is a run that was killed: it has no end."""
        end = self.sessions[-1].end if self.sessions else None
        if end is not None:
            return end["outcome"] if end.get("outcome") in OUTCOMES else "finished"
        if not self.sessions and any("train_runtime" in entry for entry in self.logs):
            return "finished"
        return "running" if self.is_running else "interrupted"

    @property
    def error(self) -> str | None:
        """What a failed run failed with."""
        end = self.sessions[-1].end if self.sessions else None
        return str(end["error"]) if end and end.get("error") else None

    @property
    def error_lines(self) -> str | None:
        """Where in the code a failed run failed: the last lines of the traceback."""
        end = self.sessions[-1].end if self.sessions else None
        return end["traceback"] if end and isinstance(end.get("traceback"), str) and end["traceback"] else None

    @property
    def ended_at(self) -> float:
        """When its end was noted, in seconds since 1970; without one, when its files last changed."""
        end = self.sessions[-1].end if self.sessions else None
        return (as_number(end.get("time")) if end else 0.0) or self.changed_at

    @property
    def step(self) -> int:
        ends = [session.end for session in self.sessions[-1:] if session.end is not None]
        steps = [entry["step"] for entry in self.logs[-1:] + ends if is_count(entry.get("step"))]
        return max(steps, default=0)

    @property
    def max_steps(self) -> int | None:
        found = self._begin.get("max_steps")
        return found if is_count(found) and found > 0 else None

    @property
    def arguments(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        return _as_dict(self._begin.get("arguments"))

    @property
    def environment(self) -> dict[str, Any]:
        return _as_dict(self._begin.get("environment"))

    @property
    def model(self) -> dict[str, Any]:
        return _as_dict(self._begin.get("model"))

    @property
    def data(self) -> dict[str, Any]:
        return _as_dict(self._begin.get("data"))

    @property
    def warnings(self) -> list[dict[str, Any]]:
        return [warning for session in self.sessions for warning in session.warnings]

    @property
    def resumed_at(self) -> list[int]:
        """The steps at which the run was taken up again."""
        steps = [session.begin.get("step") for session in self.sessions]
        return sorted({step for step in steps if is_count(step) and step > 0})

    @property
    def duration(self) -> float:
        """Seconds of training that led here: without breaks, and what was lost with a kill."""
        return sum(last - begin for begin, last in self._spans())

    @cached_property
    def account(self) -> dict[str, Any] | None:
        """The accounts of the lines that stand, added up; `mfu` is their mean over time. None without any."""
        return total_account(self.logs)

    @cached_property
    def elapsed(self) -> list[float]:
        """For each line of `logs`: seconds of training until then, on the way that led here."""
        spans = self._spans()
        elapsed: list[float] = []
        index, base = 0, 0.0
        for entry in self.logs:
            now = as_number(entry.get("time"))
            while index + 1 < len(spans) and now >= spans[index + 1][0]:
                index, base = index + 1, elapsed[-1] if elapsed else 0.0
            since = base + max(0.0, now - spans[index][0]) if spans else 0.0
            elapsed.append(max(since, elapsed[-1]) if elapsed else since)
        return elapsed

    @cached_property
    def curves(self) -> dict[str, Points]:
        """What `series` gives, values that were not finite as NaN; also of names that never were."""
        return curves(self.logs)

    @cached_property
    def finite_curves(self) -> dict[str, Points]:
        """What `series` gives."""
        found = {name: [(x, y) for x, y in points if not math.isnan(y)] for name, points in self.curves.items()}
        return {name: points for name, points in found.items() if points}

    @cached_property
    def all_rates(self) -> dict[str, Points]:
        """What `rates` gives."""
        return rates_of(self.logs, while_training=False)

    @cached_property
    def rates_while_training(self) -> dict[str, Points]:
        return rates_of(self.logs, while_training=True)

    @cached_property
    def not_finite_since(self) -> dict[str, int]:
        """Of the losses that are NaN or infinite at last, the step from which on they are."""
        found = {}
        for name, points in self.curves.items():
            if (name == "loss" or name.endswith("_loss")) and math.isnan(points[-1][1]):
                last = max((at for at, (_, y) in enumerate(points) if not math.isnan(y)), default=-1)
                found[name] = points[last + 1][0]
        return found

    @property
    def _begin(self) -> dict[str, Any]:
        return self.sessions[-1].begin if self.sessions else {}

    def _spans(self) -> list[tuple[float, float]]:
        """Begin and last sign of life of each session."""
        times = [as_number(entry.get("time")) for entry in [*self.logs, *self.warnings]]
        begins = [as_number(session.begin.get("time")) for session in self.sessions]
        if not begins:
            logged = [moment for moment in times if moment > 0]
            return [(min(logged), max(logged))] if logged else []
        spans = []
        for session, begin, following in zip(self.sessions, begins, [*begins[1:], math.inf], strict=True):
            if session.end is not None:
                last = as_number(session.end.get("time"))
            else:
                last = max((moment for moment in times if begin <= moment < following), default=begin)
                if following == math.inf and self.is_running:
                    last = time.time()
            spans.append((begin, max(begin, last)))
        return spans


def read_run(folder: str | Path) -> RunRecord:
    """The run whose files lie in `folder`; a FileNotFoundError for a folder without both of them."""
    folder = Path(folder)
    logs: list[dict[str, Any]] | None = None
    events: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        logs = read_local_log(folder / _METRICS)
    with contextlib.suppress(OSError):
        events = read_json_lines(folder / _EVENTS)
    sessions = _sessions(events)
    if logs is None and not sessions:
        raise FileNotFoundError(
            f"{folder} has no {_METRICS}: give the output_dir of a training with kunren, which writes it there with "
            "the first log."
        )
    changed = [path.stat().st_mtime for path in (folder / _METRICS, folder / _EVENTS) if path.exists()]
    name = sessions[-1].begin.get("run_name") if sessions else None
    begun = [at for at, session in enumerate(sessions) if at == 0 or _is_begun_anew(session)]
    first = begun[-1] if begun else 0
    logs = _of_this_training(logs or [], sessions, first)
    return RunRecord(
        folder=folder,
        name=name if isinstance(name, str) and name.strip() else folder.resolve().name,
        logs=logs,
        sessions=sessions[first:],
        checkpoints=_checkpoints(folder, logs),
        changed_at=max(changed, default=0.0),
        earlier=max(len(begun) - 1, 0),
        earlier_begin=as_number(sessions[first - 1].begin.get("time")) if first > 0 else 0.0,
        traces=sorted(folder.glob("profile/*.json")),
    )


def series(run: RunRecord, gaps: bool = False) -> dict[str, Points]:
    """The curves by name, in order of step: of what was logged as a number.

    Of two values at one step the later counts; of two evaluations the earlier, as the other may be of other weights
    (the best, loaded at the end). With `gaps`, a value that was not finite stands as NaN; without, it is left out.
    """
    return {name: points for name, points in run.curves.items() if has_number(points)} if gaps else run.finite_curves


def rates(run: RunRecord, while_training: bool = False) -> dict[str, Points]:
    """`samples_per_second`, `tokens_per_second` and `mfu` between logs, as far as the accounts tell.

    With `while_training`, without the time of evaluations and checkpoints: a curve would show little but them.
    """
    return run.rates_while_training if while_training else run.all_rates


def last_value(run: RunRecord, name: str) -> tuple[int, float] | None:
    """Step and value of what was logged last under a name: NaN where that was not finite. None without any."""
    points = run.curves.get(name)
    return points[-1] if points else None


def _is_begun_anew(session: Session) -> bool:
    return session.begin.get("step") == 0 and not session.begin.get("resumed_from")


def _of_this_training(logs: list[dict[str, Any]], sessions: list[Session], first: int) -> list[dict[str, Any]]:
    """Without what an earlier training has logged and no later one has overtaken: an evaluation before its first step.

    What was logged between the two may belong to either: it stays.
    """
    if first == 0:
        return logs
    before, began = sessions[first - 1], as_number(sessions[first].begin.get("time"))
    until = as_number((before.end or before.begin).get("time"))
    return [entry for entry in logs if not 0 < as_number(entry.get("time")) <= until <= began]


def _sessions(events: list[dict[str, Any]]) -> list[Session]:
    sessions: list[Session] = []
    for event in events:
        kind = event.get("event")
        if kind == "begin":
            sessions.append(Session(event, [], None))
        elif kind in ("warning", "end") and sessions:
            last = sessions[-1]
            if kind == "warning":
                last.warnings.append(event)
            else:
                sessions[-1] = Session(last.begin, last.warnings, event)
    return sessions


def _checkpoints(folder: Path, logs: list[dict[str, Any]]) -> list[Checkpoint]:
    found = sorted(
        (int(match[1]), path) for path in _folders(folder) if (match := _CHECKPOINT.match(path.name)) is not None
    )
    metrics = evaluations(logs)
    best = _best_step(found[-1][1]) if found else None
    return [Checkpoint(step, path, metrics.get(step, {}), step == best) for step, path in found]


def _best_step(newest: Path) -> int | None:
    """The step of the best checkpoint, as the state in the newest one tells."""
    try:
        state = json.loads((newest / "trainer_state.json").read_text(encoding="utf-8"))
        match = _CHECKPOINT.match(Path(state["best_model_checkpoint"]).name)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return int(match[1]) if match else None


def _folders(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir():
                yield path


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
