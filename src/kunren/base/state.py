"""The run's state and the flags by which callbacks steer it, with transformers' names on disk and in code."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunren.base.strict_json import read_json, write_json


@dataclass
class TrainerState:
    """Where a run stands: what is logged, saved as `trainer_state.json` and handed to every callback."""

    epoch: float = 0
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int = 500
    eval_steps: int = 500
    save_steps: int = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)

    def advance(self, to_epoch: float) -> None:
        """Count one optimizer step; `to_epoch` is the number of passes over the data, fractions included."""
        self.global_step += 1
        self.epoch = to_epoch

    def save_to_json(self, json_path: str | Path) -> None:
        """Write strict JSON; numbers that are not finite become null."""
        write_json(json_path, dataclasses.asdict(self))

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read a state written by kunren or transformers; keys that this class does not have are ignored."""
        known = {item.name for item in dataclasses.fields(cls)}
        values = {key: value for key, value in read_json(json_path).items() if key in known}
        values["log_history"] = values.get("log_history") or []
        values["stateful_callbacks"] = values.get("stateful_callbacks") or {}
        return cls(**values)

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Resolve logging, evaluation and save intervals; a value below 1 is a share of `max_steps`."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            interval = getattr(args, name)
            if interval is not None:
                setattr(self, name, math.ceil(max_steps * interval) if interval < 1 else int(interval))


@dataclass
class TrainerControl:
    """Five flags that callbacks set and the loop obeys."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    @property
    def should_stop(self) -> bool:
        """Whether the current epoch ends here, for either reason."""
        return self.should_epoch_stop or self.should_training_stop

    def take(self, other: TrainerControl) -> None:
        """Copy the flags of a control that a callback returned: there is one control object in a run."""
        if other is not self:
            self.__dict__.update({item.name: getattr(other, item.name) for item in dataclasses.fields(self)})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in the form that callbacks' own `state()` has."""
        return {"args": dataclasses.asdict(self), "attributes": {}}
