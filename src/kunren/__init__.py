"""kunren (訓練, "training"): the Trainer API that everyone knows, made right."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kunren._version import __version__

# Public name -> module. Nothing is imported before it is asked for.
_HOMES = {
    "Trainer": "kunren.trainer",
    "TrainingArguments": "kunren.arguments",
    "Seq2SeqTrainer": "kunren.seq2seq",
    "Seq2SeqTrainingArguments": "kunren.seq2seq",
    "HfArgumentParser": "kunren.hf.argument_parser",
    "TrainerCallback": "kunren.callbacks",
    "DefaultFlowCallback": "kunren.callbacks",
    "EarlyStoppingCallback": "kunren.callbacks",
    "ProgressCallback": "kunren.callbacks",
    "NotebookProgressCallback": "kunren.callbacks.notebook",
    "PrinterCallback": "kunren.callbacks",
    "ClearMLCallback": "kunren.trackers.clearml",
    "CodeCarbonCallback": "kunren.trackers.codecarbon",
    "CometCallback": "kunren.trackers.comet",
    "DVCLiveCallback": "kunren.trackers.dvclive",
    "MLflowCallback": "kunren.trackers.mlflow",
    "NeptuneCallback": "kunren.trackers.neptune",
    "SwanLabCallback": "kunren.trackers.swanlab",
    "TensorBoardCallback": "kunren.trackers.tensorboard",
    "TrackioCallback": "kunren.trackers.trackio",
    "WandbCallback": "kunren.trackers.wandb",
    "TrainerState": "kunren.base.state",
    "TrainerControl": "kunren.base.state",
    "DefaultDataCollator": "kunren.collators",
    "DataCollatorWithPadding": "kunren.collators",
    "DataCollatorForTokenClassification": "kunren.collators",
    "DataCollatorForSeq2Seq": "kunren.collators",
    "DataCollatorForLanguageModeling": "kunren.collators",
    "DataCollatorForPermutationLanguageModeling": "kunren.collators",
    "DataCollatorForMultipleChoice": "kunren.collators",
    "DataCollatorWithFlattening": "kunren.collators",
    "default_data_collator": "kunren.collators",
    "EvalPrediction": "kunren.base.types",
    "EvalLoopOutput": "kunren.base.types",
    "PredictionOutput": "kunren.base.types",
    "TrainOutput": "kunren.base.types",
    "IntervalStrategy": "kunren.arguments.choices",
    "SaveStrategy": "kunren.arguments.choices",
    "SchedulerType": "kunren.arguments.choices",
    "OptimizerNames": "kunren.arguments.choices",
    "LOSS_MAPPING": "kunren.losses.functions",
    "fixed_cross_entropy": "kunren.losses.functions.cross_entropy",
    "set_seed": "kunren.base.random_state",
    "enable_full_determinism": "kunren.base.random_state",
    "Adafactor": "kunren.optim.optimizers.adafactor",
    "get_scheduler": "kunren.optim.schedule",
    "get_constant_schedule": "kunren.optim.schedules.constant",
    "get_constant_schedule_with_warmup": "kunren.optim.schedules.constant",
    "get_cosine_schedule_with_warmup": "kunren.optim.schedules.cosine",
    "get_linear_schedule_with_warmup": "kunren.optim.schedules.linear",
    "get_cosine_with_hard_restarts_schedule_with_warmup": "kunren.optim.schedules.cosine",
    "get_cosine_with_min_lr_schedule_with_warmup": "kunren.optim.schedules.cosine",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": "kunren.optim.schedules.cosine",
    "get_greedy_schedule": "kunren.optim.schedules.greedy",
    "get_inverse_sqrt_schedule": "kunren.optim.schedules.inverse_sqrt",
    "get_polynomial_decay_schedule_with_warmup": "kunren.optim.schedules.polynomial",
    "get_reduce_on_plateau_schedule": "kunren.optim.schedules.plateau",
    "get_wsd_schedule": "kunren.optim.schedules.warmup_stable_decay",
    "GreedyLR": "kunren.optim.schedules.greedy",
    "get_last_checkpoint": "kunren.checkpoint.layout",
}
# Callbacks of transformers that are bound to a server; what the tracker of that name says tells what to do instead.
_BOUND_TO_A_SERVER = {
    "AzureMLCallback": "azure_ml",
    "DagsHubCallback": "dagshub",
    "FlyteCallback": "flyte",
    "KubeflowCallback": "kubeflow",
}

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments as TrainingArguments
    from kunren.base.random_state import enable_full_determinism as enable_full_determinism
    from kunren.base.random_state import set_seed as set_seed
    from kunren.callbacks import EarlyStoppingCallback as EarlyStoppingCallback
    from kunren.callbacks import TrainerCallback as TrainerCallback
    from kunren.collators import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from kunren.collators import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from kunren.collators import DataCollatorForTokenClassification as DataCollatorForTokenClassification
    from kunren.collators import DataCollatorWithPadding as DataCollatorWithPadding
    from kunren.collators import default_data_collator as default_data_collator
    from kunren.trainer import Trainer as Trainer


def __getattr__(name: str) -> Any:
    if name in _BOUND_TO_A_SERVER:
        instead = importlib.import_module("kunren.trackers.registry").ELSEWHERE[_BOUND_TO_A_SERVER[name]]
        raise ImportError(f"kunren has no {name}: {instead}.")
    if name not in _HOMES:
        raise AttributeError(f"module 'kunren' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
