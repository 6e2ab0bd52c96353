"""Trackers: where runs are reported to. A catalogue, one file for each, behind a guard that lets none end a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.registry import on_demand

# Imported when they are asked for: most runs are reported to no tracker.
_HOMES = {
    "TrackedRun": "tracker",
    "Tracker": "tracker",
    "TrackerCallback": "callback",
    "begin_trackers": "callback",
    "reporters": "registry",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from kunren.trackers.callback import TrackerCallback as TrackerCallback
    from kunren.trackers.callback import begin_trackers as begin_trackers
    from kunren.trackers.registry import reporters as reporters
    from kunren.trackers.tracker import TrackedRun as TrackedRun
    from kunren.trackers.tracker import Tracker as Tracker

__getattr__ = on_demand(__name__, _HOMES)
