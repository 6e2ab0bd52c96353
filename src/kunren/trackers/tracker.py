"""What a tracker is: four calls, what it is told when a run begins, and the names its numbers have."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy
import torch

from kunren.base.state import TrainerState
from kunren.base.strict_json import to_jsonable

Outcome = Literal["finished", "stopped", "failed"]

_PREFIXES = {"eval_": "eval/", "test_": "test/"}


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run when it begins, as plain values."""

    arguments: dict[str, Any]
    model_config: dict[str, Any]
    num_parameters: int
    name: str | None
    project: str
    folder: Path  # the output folder
    group: str | None = None  # of a trial: the search it belongs to
    resumed_id: str | None = None  # what `run_id()` said when the checkpoint was written
    first_step: int = 0

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration, the arguments and the model's size in one dict; arguments win."""
        return {**self.model_config, **self.arguments, "model/num_parameters": self.num_parameters}


class Tracker:
    """One place that runs are reported to. Every call but `adopt` comes on a thread of its own and may raise."""

    def adopt(self) -> None:
        """Look, on the thread of the training, for a run that the user's script has opened. Must return at once."""

    def start(self, run: TrackedRun) -> None:
        """Open a run, or go on with `run.resumed_id`; may be called again after `finish`."""
        raise NotImplementedError

    def log(self, metrics: dict[str, Any], step: int) -> None:
        """Write numbers (and text), under the names of the log: `loss`, `eval_loss`, `test_loss`."""
        raise NotImplementedError

    def log_past(self, metrics: dict[str, Any], step: int, at: float) -> None:
        """Write what was logged at `at` (seconds since 1970), a moment ago or long since; for trackers that keep it."""
        self.log(metrics, step)

    def flush(self) -> None:
        """Write what `log` has held back: there is nothing more to log at the moment."""

    def finish(self, outcome: Outcome) -> None:
        """Send what is left and close the run."""
        raise NotImplementedError

    def run_id(self) -> str | None:
        """What a later `start` needs to go on with this run; None where the tracker cannot."""
        return None


def rewrite_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """The names of trackers: `eval_loss` is `eval/loss`, `test_loss` is `test/loss`, all else is under `train/`."""
    return {_rewritten(name): value for name, value in logs.items()}


@lru_cache(maxsize=1000)
def _rewritten(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return _PREFIXES.get(prefix, "train/") + name.removeprefix(prefix)


def numbers(metrics: Mapping[str, Any]) -> dict[str, int | float]:
    """The entries that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, (int, float))}


def plain_values(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers, arrays of one number and text, as plain values; what else there is, only the local log keeps."""
    return {
        name: plain
        for name, value in logs.items()
        if (plain := value if type(value) is float else _plain(value)) is not None
    }


def _plain(value: Any) -> bool | int | float | str | None:
    if isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic)) and math.prod(value.shape) == 1:
        value = value.item()
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:  # the operations of a long run
        return float(value) if abs(value) < sys.float_info.max else None
    return value if isinstance(value, (bool, int, float, str)) else None


def describe(args: Any, state: TrainerState, model: Any, resumed_id: str | None) -> TrackedRun:
    """What a tracker is told of the run that begins."""
    config: Any = getattr(model, "config", None)
    values: Any = config.to_dict() if callable(getattr(config, "to_dict", None)) else config
    model_config = {str(key): to_jsonable(item) for key, item in values.items()} if isinstance(values, Mapping) else {}
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, Mapping):
        model_config["peft_config"] = {
            str(name): to_jsonable(item.to_dict() if hasattr(item, "to_dict") else item)
            for name, item in adapters.items()
        }
    return TrackedRun(
        arguments={name: to_jsonable(value) for name, value in args.to_dict().items()},
        model_config=model_config,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()) if model is not None else 0,
        name=state.trial_name or args.run_name,
        project=args.project,
        folder=Path(args.output_dir).absolute(),
        group=(args.run_name or str(args.output_dir)) if state.trial_name else None,
        resumed_id=resumed_id,
        first_step=state.global_step,
    )
