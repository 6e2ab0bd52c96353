"""Trackers: where runs are reported to. A catalogue, one file for each, behind a guard that lets none end a run."""

from kunren.trackers.callback import TrackerCallback, end_trackers
from kunren.trackers.registry import reporters
from kunren.trackers.tracker import TrackedRun, Tracker

__all__ = ["TrackedRun", "Tracker", "TrackerCallback", "end_trackers", "reporters"]
