"""The run report: what the files of an output folder tell, as a page, a picture and live. Reads files only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.registry import on_demand

_HOMES = {
    "RunRecord": "run_files",
    "read_local_log": "run_files",
    "read_run": "run_files",
    "series": "run_files",
    "write_report": "write",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from kunren.report.run_files import RunRecord as RunRecord
    from kunren.report.run_files import read_local_log as read_local_log
    from kunren.report.run_files import read_run as read_run
    from kunren.report.run_files import series as series
    from kunren.report.write import write_report as write_report

__getattr__ = on_demand(__name__, _HOMES)
