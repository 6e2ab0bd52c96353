"""Reporting seams: the log, the numbers at the end, and the files that scripts write with them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint.layout import TRAINER_STATE_NAME
from kunren.loop.account import StepAccount
from kunren.loop.meter import speed_metrics
from kunren.seams.base import Seams


class ReportingSeams(Seams):
    """Override `log` to add to what is logged; it is called with every dict that goes to the callbacks."""

    _account: dict[str, Any] | None  # of the steps that the next log is about
    _accounted: tuple[float, float, float]  # what of `_work_done` the accounts so far have covered
    _peak_operations: float | None  # a second, of all devices

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
        account, self._account = self._account, None
        self.fire("on_log", logs=logs, account=account)

    def take_account(self) -> None:
        """Close the account of the steps since the last one; it goes to the callbacks with the log that comes next."""
        run = self._run
        if run is None or self._is_silent:
            return
        before = self._accounted
        self._accounted = now = self._work_done()
        steps, tokens, operations = (after - earlier for after, earlier in zip(now, before, strict=True))
        samples = round(steps * run.plan.examples_per_step)
        self._account = self.account.take(samples, int(tokens), operations, self._peak_operations)

    def start_account(self) -> None:
        """Count from here on, in a run that begins or goes on."""
        self.account, self._account = StepAccount(self.engine.device), None
        self._accounted = self._work_done()
        tflops, engine = self.args.peak_tflops, self.engine
        self._peak_operations = None if tflops is None else tflops * 1e12 * engine.world_size
        if tflops is None and engine.device.type == "cuda":
            from kunren.engine.backends.peaks import number_format, peak_operations  # a table of GPUs

            number = number_format(self.model, engine.autocast_dtype)
            peak = peak_operations(engine.device, number)
            self._peak_operations = None if peak is None else peak * engine.world_size

    def _work_done(self) -> tuple[float, float, float]:
        """Steps, tokens and operations of this training so far, of all processes.

        The others are taken to do as much as this one: nobody may be asked when each decides by its own clock.
        """
        processes = self.engine.data_place[0]
        return self.state.global_step, float(self._tokens_seen * processes), self._operations_done * processes

    def store_flos(self) -> None:
        """Move the operations counted since the last call into the state."""
        here = torch.tensor(self.current_flos * self.engine.brings_data, dtype=torch.float64)
        self.state.total_flos += float(self.engine.sum(here))
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
    if "_runtime" in key and isinstance(value, (int, float)):
        return f"{datetime.timedelta(seconds=int(value))}.{int(value * 100) % 100:02d}"
    return round(value, 4) if isinstance(value, float) else value
