"""What the files of an output folder tell of its run: the one reader for the page, the picture and `kunren watch`.

Loads neither torch nor anything else that takes time.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from kunren.base.json_lines import read_json_lines, read_local_log

PHASES = ("data", "transfer", "forward", "backward", "optimizer", "callbacks", "evaluation", "checkpoint", "other")
OUTCOMES = ("finished", "stopped", "failed", "running", "interrupted")
QUIET_SECONDS = 120  # after which a run that holds no lock and has written nothing is taken to be dead

_METRICS, _EVENTS, _LOCK = "metrics.jsonl", "events.jsonl", ".kunren-run.lock"
_CHECKPOINT = re.compile(r"^checkpoint-(\d{1,18})$")
_NO_CURVE = re.compile(
    r"^(step|time|epoch|account|total_flos|train_loss|num_input_tokens_seen|.*_runtime|.*_per_second"
    r"|.*_jit_compilation_time|.*_model_preparation_time|(before_)?(init|train|eval|test)_mem_.*)$"
)


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
    """A run as its files tell it. `changed_at`: when they last changed, in seconds since 1970."""

    folder: Path
    name: str
    logs: list[dict[str, Any]]
    sessions: list[Session]
    checkpoints: list[Checkpoint]
    changed_at: float = 0.0

    @property
    def is_running(self) -> bool:
        if self.sessions:
            if self.sessions[-1].end is not None:
                return False
        elif any("train_runtime" in entry for entry in self.logs):
            return False
        return time.time() - self.changed_at < QUIET_SECONDS or _is_locked(self.folder / _LOCK)

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
    def step(self) -> int:
        ends = [session.end for session in self.sessions[-1:] if session.end is not None]
        steps = [entry["step"] for entry in self.logs[-1:] + ends if _is_count(entry.get("step"))]
        return max(steps, default=0)

    @property
    def max_steps(self) -> int | None:
        found = self._begin.get("max_steps")
        return found if _is_count(found) and found > 0 else None

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
        return sorted({step for step in steps if _is_count(step) and step > 0})

    @property
    def duration(self) -> float:
        """Seconds of training that led here: without breaks, and what was lost with a kill."""
        return sum(last - begin for begin, last in self._spans())

    @cached_property
    def account(self) -> dict[str, Any] | None:
        """The accounts of the lines that stand, added up; `mfu` is their mean over time. None without any."""
        found = [entry["account"] for entry in self.logs if _is_account(entry.get("account"))]
        if not found:
            return None
        total: dict[str, Any] = {
            name: sum(max(0.0, _number(account.get(name))) for account in found)
            for name in ("steps", "samples", "tokens", "operations", "wall")
        }
        total["seconds"] = {
            phase: sum(max(0.0, _number(account["seconds"].get(phase))) for account in found) for phase in PHASES
        }
        known = [(_number(account["mfu"]), _number(account.get("wall"))) for account in found if account.get("mfu")]
        weight = sum(wall for _, wall in known)
        total["mfu"] = sum(mfu * wall for mfu, wall in known) / weight if weight > 0 else None
        return total

    @cached_property
    def elapsed(self) -> list[float]:
        """For each line of `logs`: seconds of training until then, on the way that led here."""
        spans = self._spans()
        elapsed: list[float] = []
        index, base = 0, 0.0
        for entry in self.logs:
            now = _number(entry.get("time"))
            while index + 1 < len(spans) and now >= spans[index + 1][0]:
                index, base = index + 1, elapsed[-1] if elapsed else 0.0
            since = base + max(0.0, now - spans[index][0]) if spans else 0.0
            elapsed.append(max(since, elapsed[-1]) if elapsed else since)
        return elapsed

    @cached_property
    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """What `series` gives, values that were not finite as NaN."""
        return _curves(self.logs)

    @property
    def _begin(self) -> dict[str, Any]:
        return self.sessions[-1].begin if self.sessions else {}

    def _spans(self) -> list[tuple[float, float]]:
        """Begin and last sign of life of each session."""
        times = [_number(entry.get("time")) for entry in [*self.logs, *self.warnings]]
        begins = [_number(session.begin.get("time")) for session in self.sessions]
        if not begins:
            logged = [moment for moment in times if moment > 0]
            return [(min(logged), max(logged))] if logged else []
        spans = []
        for session, begin, following in zip(self.sessions, begins, [*begins[1:], math.inf], strict=True):
            if session.end is not None:
                last = _number(session.end.get("time"))
            else:
                last = max((moment for moment in times if begin <= moment < following), default=begin)
                if following == math.inf and self.is_running:
                    last = time.time()
            spans.append((begin, max(begin, last)))
        return spans


def read_run(folder: str | Path) -> RunRecord:
    """The run whose files lie in `folder`; a FileNotFoundError for a folder without `metrics.jsonl`."""
    folder = Path(folder)
    metrics = folder / _METRICS
    try:
        logs = read_local_log(metrics)
    except (FileNotFoundError, NotADirectoryError):
        raise FileNotFoundError(
            f"{folder} has no {_METRICS}: give the output_dir of a training with kunren, which writes it there with "
            "the first log."
        ) from None
    events: list[dict[str, Any]] = []
    with contextlib.suppress(OSError):
        events = read_json_lines(folder / _EVENTS)
    sessions = _sessions(events)
    logs = _standing(logs, sessions)
    changed = [path.stat().st_mtime for path in (metrics, folder / _EVENTS) if path.exists()]
    name = sessions[-1].begin.get("run_name") if sessions else None
    return RunRecord(
        folder=folder,
        name=name if isinstance(name, str) and name.strip() else folder.resolve().name,
        logs=logs,
        sessions=sessions,
        checkpoints=_checkpoints(folder, logs),
        changed_at=max(changed, default=0.0),
    )


def series(run: RunRecord, gaps: bool = False) -> dict[str, list[tuple[int, float]]]:
    """The curves by name, in order of step: of what was logged as a number.

    Of two values at one step the later counts; of two evaluations the earlier, as the other may be of other weights
    (the best, loaded at the end). With `gaps`, a value that was not finite stands as NaN; without, it is left out.
    """
    curves = run.curves
    if gaps:
        return dict(curves)
    return {name: [(x, y) for x, y in points if not math.isnan(y)] for name, points in curves.items()}


def _curves(logs: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, dict[int, float]] = {}
    left_out: dict[str, bool] = {}  # one look at a name, not one at each of a hundred thousand lines
    for entry in logs:
        for name, value in entry.items():
            if name not in left_out:
                left_out[name] = _NO_CURVE.match(name) is not None
            if left_out[name]:
                continue
            if value is None:
                _note(found.setdefault(name, {}), entry["step"], math.nan, name)
            elif _is_number(value):
                _note(found.setdefault(name, {}), entry["step"], float(value) if abs(value) < 1e300 else math.nan, name)
    curves = {name: sorted(points.items()) for name, points in found.items()}
    return {name: points for name, points in curves.items() if any(not math.isnan(y) for _, y in points)}


def _note(points: dict[int, float], step: int, value: float, name: str) -> None:
    if not (name.startswith("eval_") and step in points):
        points[step] = value


def rates(run: RunRecord, while_training: bool = False) -> dict[str, list[tuple[int, float]]]:
    """`samples_per_second`, `tokens_per_second` and `mfu` between logs, as far as the accounts tell.

    With `while_training`, without the time of evaluations and checkpoints: a curve would show little but them.
    """
    found: dict[str, dict[int, float]] = {}
    for entry in run.logs:
        account = entry.get("account")
        if not _is_account(account):
            continue
        aside = sum(max(0.0, _number(account["seconds"].get(phase))) for phase in ("evaluation", "checkpoint"))
        if (wall := _number(account.get("wall")) - (aside if while_training else 0.0)) <= 0:
            continue
        for name in ("samples", "tokens"):
            if (count := _number(account.get(name))) > 0:
                found.setdefault(f"{name}_per_second", {})[entry["step"]] = count / wall
        if (mfu := _number(account.get("mfu"))) > 0:
            found.setdefault("mfu", {})[entry["step"]] = mfu
    return {name: sorted(points.items()) for name, points in found.items()}


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


def _standing(logs: list[dict[str, Any]], sessions: list[Session]) -> list[dict[str, Any]]:
    """Without what was logged past the step from which a later session went on."""
    cuts = [
        (_number(session.begin.get("time")), session.begin["step"])
        for session in sessions
        if _is_count(session.begin.get("step"))
    ]
    return [
        entry
        for entry in logs
        if not any(0 < _number(entry.get("time")) < moment and entry["step"] > step for moment, step in cuts)
    ]


def _checkpoints(folder: Path, logs: list[dict[str, Any]]) -> list[Checkpoint]:
    found = sorted(
        (int(match[1]), path) for path in _folders(folder) if (match := _CHECKPOINT.match(path.name)) is not None
    )
    metrics: dict[int, dict[str, float]] = {}
    for entry in logs:
        values = {name: value for name, value in entry.items() if name.startswith("eval_") and _is_number(value)}
        for name, value in values.items():
            if not _NO_CURVE.match(name) and abs(value) < 1e300:
                metrics.setdefault(entry["step"], {}).setdefault(name, float(value))
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


def _is_locked(path: Path) -> bool:
    """Whether the process that is named in a run's lock file holds a lock.

    It is not tried by taking it: a run that begins at that moment would be refused.
    """
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
        if owner["host"] != socket.gethostname() or os.name != "posix":
            return False
        process = int(owner["pid"])
        locks = Path("/proc/locks")
        if locks.exists():
            return any(str(process) in line.split() for line in locks.read_text(encoding="utf-8").splitlines())
        os.kill(process, 0)
    except PermissionError:
        return True  # it is somebody else's, and alive
    except (OSError, ValueError, TypeError, KeyError, OverflowError):
        return False
    return True


def _is_account(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict) and isinstance(value.get("seconds"), dict)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float:
    """`value`, or 0 where it is no number that can be reckoned with."""
    return float(value) if _is_number(value) and abs(value) < 1e300 else 0.0


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
