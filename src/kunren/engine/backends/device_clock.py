"""Where the time of a step goes on a device that computes while the host goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final


@final
class DeviceClock:
    """The phases of one step on a device's own time line: an event at the end of each, used again for another step."""

    def __init__(self, make_event: Callable[[], Any]) -> None:
        self._make_event = make_event
        self._events = [make_event()]
        self._phases: list[str] = []  # of the step at hand; each ends with the event of the next higher index

    @classmethod
    def that_works(cls, make_event: Callable[[], Any]) -> DeviceClock | None:
        """None where a device has no events that can be timed: the host's clock has to do, which sees launches only."""
        try:
            clock = cls(make_event)
            clock.restart()
            clock.mark("other")
            clock._events[1].synchronize()
            return clock if clock.read_into({"other": 0.0}) else None
        except Exception:  # whatever a backend says that lacks them
            return None

    def restart(self) -> None:
        self._phases.clear()
        self._events[0].record()

    def mark(self, phase: str) -> None:
        self._phases.append(phase)
        if len(self._phases) == len(self._events):
            self._events.append(self._make_event())
        self._events[len(self._phases)].record()

    def read_into(self, seconds: dict[str, float]) -> bool:
        """Add the step to `seconds` if the device has done it; whether the events are free again."""
        if self._phases and not self._events[len(self._phases)].query():
            return False
        for index, phase in enumerate(self._phases):
            seconds[phase] += self._events[index].elapsed_time(self._events[index + 1]) / 1000
        self._phases.clear()
        return True
