"""CodeCarbon: the energy that a training takes, and what it emits."""

from __future__ import annotations

import importlib
import os
from typing import Any

from kunren.trackers.callback import TrackerCallback
from kunren.trackers.tracker import Outcome, TrackedRun, Tracker


class CodeCarbonTracker(Tracker):
    """Writes `emissions.csv` into the output folder; takes no metrics.

    Environment: what CodeCarbon reads. With CODECARBON_COUNTRY_ISO_CODE nothing is asked of the network.
    """

    def __init__(self) -> None:
        self._emissions: Any = None

    def start(self, run: TrackedRun) -> None:
        codecarbon = importlib.import_module("codecarbon")
        run.folder.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"output_dir": str(run.folder), "project_name": run.name or run.project}
        country = os.environ.get("CODECARBON_COUNTRY_ISO_CODE")
        if country:
            self._emissions = codecarbon.OfflineEmissionsTracker(country_iso_code=country, **options)
        else:
            self._emissions = codecarbon.EmissionsTracker(**options)
        self._emissions.start()

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Nothing: it measures by itself."""

    def finish(self, outcome: Outcome) -> None:
        if self._emissions is not None:
            self._emissions.stop()


class CodeCarbonCallback(TrackerCallback):
    """Measures with CodeCarbon."""

    def __init__(self) -> None:
        super().__init__(CodeCarbonTracker())
