"""The stages of preparing a run, one by one: each raises what the whole would."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.hf.tasks import all_tasks, models, task_named
from kunren.hf.tasks.base import Task, TaskError
from kunren.hf.tasks.columns import INPUTS
from kunren.hf.tasks.preparation import PreparedRun, prepare
from kunren.hf.tasks.request import Request
from kunren.hf.tasks.sources import sources_of


def request_of(own: dict[str, Any]) -> Request:
    """The keys of a file that tasks know; what is missing is empty text."""
    known = Request.__dataclass_fields__
    needed = {"model": "", "task": None, "train_dataset": ""}
    return Request(**(needed | {name: value for name, value in own.items() if name in known and value is not None}))


def find_task(request: Request, args: TrainingArguments) -> type[Task]:
    """The task, if there is one of that name and the metrics fit it."""
    kind = task_named(request.task)
    kind.metrics_by_name(args)
    return kind


def find_data(request: Request, cache: str) -> dict[str, Any]:
    """The rows of every set, as they were read."""
    sources = sources_of(request, whole_documents=request.block_size is not None)
    return {key: source.read(cache) for key, source in sources.items()}


def find_model(request: Request, kind: type[Task] | None) -> Any:
    """The model's configuration; with a task, only if the model is made for it."""
    transformers = _transformers()
    config = models.config_of(transformers, request)
    if kind is not None:
        models.refuse_misfit(transformers, kind, config, all_tasks())
    return config


def find_tokenizer(request: Request, kind: type[Task], rows: dict[str, Any]) -> Any:
    """The tokenizer, or None where there is none and rows are tokens already."""
    is_tokenized = bool(rows) and INPUTS in rows["train_dataset"].column_names
    return models.processor_of(_transformers(), kind, request, is_needed=not is_tokenized)


def find_columns(
    args: TrainingArguments, request: Request, kind: type[Task], rows: dict[str, Any], config: Any, processor: Any
) -> Task:
    """The task once it has found the columns and labels that it needs."""
    task = kind(dataclasses.replace(request), args)
    task.look(rows, config, processor)
    return task


def has_weights(request: Request) -> bool:
    """Whether a model has weights to begin with; one that is no folder has."""
    folder = Path(request.model)
    return not folder.is_dir() or any(path for pattern in models.WEIGHTS for path in folder.glob(pattern))


def first_rows(run: PreparedRun, count: int, cache: str) -> PreparedRun:
    """The same run with the first rows of each set alone, encoded anew."""
    given = {name: getattr(run.request, name) for name in ("max_train_samples", "max_eval_samples", "max_test_samples")}
    limits: dict[str, Any] = {name: min(count, value or count) for name, value in given.items()}
    folder = Path(cache) / "first-rows"
    folder.mkdir(exist_ok=True)
    args = copy.copy(run.args)
    args.metrics = [*args.metrics, *run.task.asked_metrics]  # as the file has them
    return prepare(args, dataclasses.replace(run.request, **limits), str(folder), is_to_train=True)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise TaskError("A model by name needs transformers: pip install 'kunren[hf]'.") from error
    return transformers
