"""kunren (訓練, "training"): the Trainer API that everyone knows, made right."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kunren._version import __version__

# Public name -> module. Nothing is imported before it is asked for.
_HOMES = {
    "Trainer": "kunren.trainer",
    "TrainingArguments": "kunren.arguments",
    "TrainerCallback": "kunren.callbacks",
    "DefaultFlowCallback": "kunren.callbacks",
    "EarlyStoppingCallback": "kunren.callbacks",
    "ProgressCallback": "kunren.callbacks",
    "PrinterCallback": "kunren.callbacks",
    "TrainerState": "kunren.base.state",
    "TrainerControl": "kunren.base.state",
    "DefaultDataCollator": "kunren.collators",
    "DataCollatorWithPadding": "kunren.collators",
    "default_data_collator": "kunren.collators",
    "EvalPrediction": "kunren.base.types",
    "EvalLoopOutput": "kunren.base.types",
    "PredictionOutput": "kunren.base.types",
    "TrainOutput": "kunren.base.types",
    "IntervalStrategy": "kunren.arguments.choices",
    "SaveStrategy": "kunren.arguments.choices",
    "SchedulerType": "kunren.arguments.choices",
    "OptimizerNames": "kunren.arguments.choices",
    "set_seed": "kunren.base.random_state",
    "enable_full_determinism": "kunren.base.random_state",
    "Adafactor": "kunren.optim",
    "get_scheduler": "kunren.optim",
    "get_constant_schedule": "kunren.optim",
    "get_constant_schedule_with_warmup": "kunren.optim",
    "get_cosine_schedule_with_warmup": "kunren.optim",
    "get_linear_schedule_with_warmup": "kunren.optim",
    "get_cosine_with_hard_restarts_schedule_with_warmup": "kunren.optim",
    "get_cosine_with_min_lr_schedule_with_warmup": "kunren.optim",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": "kunren.optim",
    "get_greedy_schedule": "kunren.optim",
    "get_inverse_sqrt_schedule": "kunren.optim",
    "get_polynomial_decay_schedule_with_warmup": "kunren.optim",
    "get_reduce_on_plateau_schedule": "kunren.optim",
    "get_wsd_schedule": "kunren.optim",
    "GreedyLR": "kunren.optim",
    "get_last_checkpoint": "kunren.checkpoint.layout",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments as TrainingArguments
    from kunren.base.random_state import enable_full_determinism as enable_full_determinism
    from kunren.base.random_state import set_seed as set_seed
    from kunren.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from kunren.callbacks import TrainerCallback as TrainerCallback
    from kunren.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from kunren.collators import default_data_collator as default_data_collator
    from kunren.trainer import Trainer as Trainer


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kunren' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
