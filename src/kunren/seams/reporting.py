"""Reporting seams: the log, the numbers at the end, and the files that scripts write with them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint.layout import TRAINER_STATE_NAME
from kunren.loop.meter import speed_metrics
from kunren.seams.base import Seams


class ReportingSeams(Seams):
    """Override `log` to add to what is logged; it is called with every dict that goes to the callbacks."""

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """Add epoch and step to `logs`, keep them in the history and hand them to the callbacks."""
        if self._is_silent:
            return
        logs["epoch"] = self.state.epoch
        if str(self.args.include_num_input_tokens_seen) != "no":
            logs["num_input_tokens_seen"] = self.state.num_input_tokens_seen
            if start_time is not None and self._run is not None:
                # Only what this process has seen says how fast it is.
                here = self.state.num_input_tokens_seen - self._run.first_tokens
                logs.update(speed_metrics("train", start_time, num_tokens=here))
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.fire("on_log", logs=logs)

    def store_flos(self) -> None:
        """Move the operations counted since the last call into the state."""
        self.state.total_flos += self.current_flos
        self.current_flos = 0.0

    def metrics_format(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Metrics for people: seconds as h:mm:ss, operations in GF, the rest rounded to four digits."""
        return {key: _readable(key, value) for key, value in metrics.items()}

    def log_metrics(self, split: str, metrics: Mapping[str, Any]) -> None:
        """Print metrics as a table."""
        if not self.is_world_process_zero():
            return
        shown = {key: str(value) for key, value in self.metrics_format(metrics).items()}
        widths = max(map(len, shown), default=0), max(map(len, shown.values()), default=0)
        print(f"***** {split} metrics *****")
        for key in sorted(shown):
            print(f"  {key: <{widths[0]}} = {shown[key]:>{widths[1]}}")

    def save_metrics(self, split: str, metrics: Mapping[str, Any], combined: bool = True) -> None:
        """Write `<split>_results.json`; with `combined` also add them to `all_results.json`."""
        if not self.is_world_process_zero():
            return
        folder = Path(self._output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / f"{split}_results.json", metrics)
        if combined:
            everything = folder / "all_results.json"
            known = read_json(everything) if everything.exists() else {}
            write_json(everything, {**known, **metrics})

    def save_state(self) -> None:
        """Write `trainer_state.json` into the output folder."""
        if self.is_world_process_zero():
            folder = Path(self._output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            self.state.save_to_json(folder / TRAINER_STATE_NAME)

    def is_local_process_zero(self) -> bool:
        """Whether this is the main process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Whether this is the main process of all."""
        return self.args.process_index == 0


def _readable(key: str, value: Any) -> Any:
    if key == "total_flos":
        return f"{int(value) >> 30}GF"
    if key.endswith("_runtime") and isinstance(value, (int, float)):
        return f"{datetime.timedelta(seconds=int(value))}.{int(value * 100) % 100:02d}"
    return round(value, 4) if isinstance(value, float) else value
