"""What a Trainer refuses, and why, before any work is done."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from kunren.arguments import TrainingArguments
from kunren.base.names import did_you_mean
from kunren.data.loaders import has_length
from kunren.data.wrappers.mixture import check_mixture
from kunren.metrics.metric_object import is_metric_object
from kunren.optim.groups.divide import refuse_given_optimizer
from kunren.optim.schedule import check_options
from kunren.seams.data import DataSeams
from kunren.seams.optimization import OptimizationSeams
from kunren.seams.refused_overrides import REFUSED_OVERRIDES, refusal

logger = logging.getLogger(__name__)

# The last argument of these came late to the API: overrides written before do not take it.
_LATE_ARGUMENTS = {
    "training_step": "num_items_in_batch",
    "compute_loss": "num_items_in_batch",
    "log": "start_time",
    "get_batch_samples": "device",
    "_get_train_sampler": "train_dataset",
}


def refuse_ignored_overrides(cls: type) -> None:
    """TypeError, when the class is defined, for an override that would silently never be called."""
    for name in REFUSED_OVERRIDES:
        if _definition(cls, name) is not None:
            raise TypeError(refusal(cls, name))


def adapt_old_signatures(cls: type) -> None:
    """Let overrides written for older signatures go on working: the argument they do not know is left out."""
    for name, argument in _LATE_ARGUMENTS.items():
        function = _definition(cls, name)
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        kinds = {item.kind for item in parameters.values()}
        if argument not in parameters and not kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            setattr(cls, name, _without(function, argument, len(parameters)))


def _definition(cls: type, name: str) -> Any:
    """What a subclass, or a mixin that stands before the Trainer, defines under a name; None for kunren's own."""
    owner = next((kind for kind in cls.__mro__ if name in kind.__dict__), None)
    return None if owner is None or owner.__module__.startswith("kunren.") else owner.__dict__[name]


def _without(function: Callable[..., Any], argument: str, positional: int) -> Callable[..., Any]:
    @functools.wraps(function)
    def adapted(*args: Any, **keywords: Any) -> Any:
        keywords.pop(argument, None)
        return function(*args[:positional], **keywords)

    return adapted


def processing_class_from(processing_class: Any, legacy: dict[str, Any], known: Iterable[str]) -> Any:
    """`processing_class`, or `tokenizer` by its old name; TypeError for both, or for a name that is not `known`."""
    if "tokenizer" in legacy:
        tokenizer = legacy.pop("tokenizer")
        if processing_class is not None and tokenizer is not None:
            raise TypeError("Give either processing_class or its old name tokenizer, not both.")
        warnings.warn("`tokenizer` is now called `processing_class`.", FutureWarning, stacklevel=3)
        processing_class = tokenizer if tokenizer is not None else processing_class
    if legacy:
        name = next(iter(legacy))
        raise TypeError(f"Trainer() got an unexpected argument {name!r}.{did_you_mean(name, [*known, 'tokenizer'])}")
    return processing_class


def complete(args: Any) -> Any:
    """Arguments of transformers' own class get kunren's further fields, at their defaults."""
    if isinstance(args, type) or not hasattr(args, "gradient_accumulation_steps"):
        raise TypeError(f"args has to be a TrainingArguments object, not {type(args).__name__}.")
    for item in dataclasses.fields(TrainingArguments):
        if not hasattr(args, item.name):
            setattr(args, item.name, item.default_factory() if callable(item.default_factory) else item.default)
    return args


def check_construction(trainer: Any, model: nn.Module | None) -> None:
    """What cannot work together, told at construction."""
    args = trainer.args
    _check_model(trainer, model)
    if trainer.optimizer is not None and trainer.optimizer_cls_and_kwargs is not None:
        raise ValueError("Give either `optimizers` or `optimizer_cls_and_kwargs`, not both.")
    if trainer.optimizer is not None:
        refuse_given_optimizer(args)
    if model is not None and trainer.optimizer is not None:
        _check_optimizer(trainer.optimizer, model)
    if (
        args.eval_strategy != "no"
        and trainer.eval_dataset is None
        and not name_is_overridden(trainer, DataSeams, "get_eval_dataloader")
    ):
        raise ValueError(
            f"eval_strategy={str(args.eval_strategy)!r} needs an evaluation set: pass eval_dataset, or set "
            "eval_strategy='no'."
        )
    if trainer.lr_scheduler is not None and trainer.optimizer is None:
        raise ValueError("optimizers=(None, scheduler): a scheduler drives the optimizer it was made with; give both.")
    _check_options(trainer, model)
    if args.metrics:
        from kunren.metrics.names import check_names

        check_names(args.metrics, args.prediction_loss_only, trainer.token_reader() is not None)
    is_function = trainer.compute_metrics is not None and not is_metric_object(trainer.compute_metrics)
    if args.batch_eval_metrics and is_function:
        parameters = inspect.signature(trainer.compute_metrics).parameters
        if "compute_result" not in parameters:
            raise ValueError("batch_eval_metrics=True: compute_metrics has to take a boolean `compute_result`.")


def _check_options(trainer: Any, model: nn.Module | None) -> None:
    """What the optimizer and the schedule named in the arguments do not take, unless a subclass makes its own."""
    args = trainer.args
    is_own = {
        name: name_is_overridden(trainer, OptimizationSeams, name)
        for name in ("create_optimizer_and_scheduler", "create_optimizer", "create_scheduler")
    }
    if is_own["create_optimizer_and_scheduler"]:
        return
    if trainer.lr_scheduler is None and not is_own["create_scheduler"]:
        check_options(args.lr_scheduler_type, args.lr_scheduler_kwargs or ())
    is_given = trainer.optimizer is not None or trainer.optimizer_cls_and_kwargs is not None
    if args.optim_args and model is not None and not (is_given or is_own["create_optimizer"]):
        with suppress(ImportError):  # only a training needs the package
            trainer.get_optimizer_cls_and_kwargs(args, model)


def _check_optimizer(optimizer: Optimizer, model: nn.Module) -> None:
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise ValueError("The optimizer holds no parameter of the model: make it from this model's parameters().")


def _check_model(trainer: Any, model: Any) -> None:
    if model is None and trainer.model_init is None:
        raise ValueError("A Trainer needs a model: pass `model`, or `model_init`, a function that returns one.")
    if model is not None and trainer.model_init is not None:
        raise ValueError("Give either `model` or `model_init`, not both.")
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(
            f"model has to be a torch.nn.Module, not {type(model).__name__} ; a function that returns a "
            "model goes into `model_init`."
        )
    if trainer.model_init is not None and trainer.optimizer is not None:
        raise ValueError("With model_init an optimizer cannot be given: it would hold the weights of another model.")


def check_training(trainer: Any) -> None:
    """What would end a training run later, told before the first step."""
    for name in REFUSED_OVERRIDES:  # assigned after the class was made: to the object, or to kunren's Trainer itself
        held = [vars(holder)[name] for holder in (trainer, *type(trainer).__mro__) if name in vars(holder)]
        if any(not str(getattr(one, "__module__", "")).startswith("kunren.") for one in held):
            raise TypeError(refusal(type(trainer), name))
    if not name_is_overridden(trainer, DataSeams, "get_train_dataloader"):  # else it may be anything
        if trainer.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset to the Trainer.")
        check_mixture(trainer.train_dataset, trainer.args)
        _check_kind(trainer.train_dataset)
    for name, dataset in _data_sets(trainer):
        if has_length(dataset) and len(dataset) == 0:
            raise ValueError(f"The {name} is empty: it has no rows.")


def _check_kind(dataset: Any) -> None:
    if isinstance(dataset, (str, bytes, Generator, DataLoader)):
        advice = {
            DataLoader: "override get_train_dataloader to return a loader of your own",
            Generator: "a generator is used up after one pass: wrap it in a torch.utils.data.IterableDataset",
        }
        remedy = next((text for kind, text in advice.items() if isinstance(dataset, kind)), "pass a data set of rows")
        raise TypeError(f"train_dataset is a {type(dataset).__name__}: {remedy}.")


def _data_sets(trainer: Any) -> list[tuple[str, Any]]:
    given = {"training set": trainer.train_dataset}
    if trainer.args.eval_strategy != "no":
        given["evaluation set"] = trainer.eval_dataset
    return [
        (f"{what} {name!r}" if isinstance(sets, Mapping) else what, one)
        for what, sets in given.items()
        for name, one in (sets.items() if isinstance(sets, Mapping) else [("", sets)])
    ]


def check_writable(folder: Path) -> None:
    """OSError that names the folder when nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(dir=folder, prefix=".kunren-probe-")
        os.close(handle)
        os.unlink(probe)
    except OSError as problem:
        raise OSError(
            problem.errno,
            f"Checkpoints cannot be written into output_dir {folder} ({problem.strerror}): choose another output_dir, "
            "or set save_strategy='no'",
        ) from problem


def name_is_overridden(trainer: Any, base: type, name: str) -> bool:
    """Whether a subclass, or an assignment to the object, replaces a method of `base`."""
    return getattr(type(trainer), name) is not getattr(base, name) or name in vars(trainer)
