"""A Trainer from names alone: a model by its folder or name, data by its files or name, a task by its name."""

from __future__ import annotations

from typing import Any

from kunren.arguments import TrainingArguments
from kunren.hf.tasks.base import TaskError as TaskError
from kunren.hf.tasks.preparation import PreparedRun, prepare
from kunren.hf.tasks.request import Request


def run_for_task(args: TrainingArguments, own: dict[str, Any], cache: str, is_to_train: bool = False) -> PreparedRun:
    """What a run needs, prepared. `own`: the keys of a `Request`.

    `cache`: a folder for what `datasets` makes of the files, which has to be there as long as the run is used.
    """
    known = Request.__dataclass_fields__
    return prepare(args, Request(**{name: value for name, value in own.items() if name in known}), cache, is_to_train)


def trainer_for_task(args: TrainingArguments, own: dict[str, Any], cache: str, is_to_train: bool = False) -> Any:
    """A Trainer for a look at the run, or one that `is_to_train`: with the model's weights, and rows tokenized once."""
    return run_for_task(args, own, cache, is_to_train).trainer()
