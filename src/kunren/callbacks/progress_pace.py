"""How fast a run goes and how long it still takes, and the words for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

# What lies this far back counts half; the longer of the two, so that slow steps are averaged as well.
HALF_LIFE_SECONDS, HALF_LIFE_STEPS = 60.0, 10


@final
class Pace:
    """The seconds a step takes, those of this process alone, pauses left out. Times are seconds of one steady clock."""

    def __init__(self, step: int, now: float) -> None:
        self.begun = now
        self._step, self._time, self._paused = step, now, 0.0
        self._steps = self._seconds = 0.0  # fading sums
        self._measures = 0

    def advance(self, to_step: int, now: float) -> None:
        """Count the steps done since the last call."""
        steps, seconds = to_step - self._step, max(now - self._time - self._paused, 0.0)
        if steps <= 0:
            return
        if self._measures == 1:
            self._steps = self._seconds = 0.0  # the first step also started the workers, or compiled the model
        kept = 0.5 ** min(seconds / HALF_LIFE_SECONDS, steps / HALF_LIFE_STEPS)
        self._steps = self._steps * kept + steps
        self._seconds = self._seconds * kept + seconds
        self._measures += 1
        self._step, self._time, self._paused = to_step, now, 0.0

    def pause(self, seconds: float) -> None:
        """Leave out `seconds` that no step was done in."""
        self._paused += seconds

    @property
    def steps_per_second(self) -> float | None:
        return self._steps / self._seconds if self._seconds > 0 else None

    def remaining(self, total: int) -> float | None:
        """Seconds until step `total`; None before the first step."""
        return max(total - self._step, 0) * self._seconds / self._steps if self._seconds > 0 else None


def speed(account: Mapping[str, Any] | None, pace: Pace | None) -> str | None:
    """Tokens a second of training, or samples, or steps: the first that is known."""
    if account is not None and (seconds := _seconds_of_training(account)) > 0:
        for unit in ("tokens", "samples"):
            if account.get(unit):
                return f"{_rounded(account[unit] / seconds)} {unit}/s"
    steps_per_second = pace.steps_per_second if pace is not None else None
    return f"{_rounded(steps_per_second)} steps/s" if steps_per_second is not None else None


def _seconds_of_training(account: Mapping[str, Any]) -> float:
    """An evaluation or a checkpoint since the last log makes no step slower."""
    phases = account.get("seconds") or {}
    return float((account.get("wall") or 0.0) - sum(phases.get(name, 0.0) for name in ("evaluation", "checkpoint")))


def clock(seconds: float | None) -> str:
    """Seconds as people read them: 04:56, 1:04:56, 2d 01:04:56; a question mark where nobody knows."""
    if seconds is None:
        return "?"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours >= 24:
        return f"{hours // 24}d {hours % 24:02d}:{minute:02d}:{second:02d}"
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def _rounded(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
