"""Working with a Trainer such that nothing of it remains: its attributes, weights, gradients and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kunren.base.random_state import preserved
from kunren.data.loader_state import generators_of

if TYPE_CHECKING:
    from kunren.trainer import Trainer


class CannotBeCopied(Exception):
    """The model or its optimizer holds something that has no copy; the message says what."""


@contextmanager
def undone(trainer: Trainer) -> Iterator[None]:
    """Inside, the trainer may be given other objects; nobody hears of anything, and afterwards all is as before.

    What user code changes within objects of its own is out of reach.
    """
    attributes, args = dict(vars(trainer)), copy.copy(trainer.args)
    # Batches come from this process, one at a time: starting workers for a few of them takes longer.
    vars(args).update(dataloader_num_workers=0, dataloader_prefetch_factor=None, dataloader_persistent_workers=False)
    vars(args).update(torch_compile=False)
    with preserved(), trainer.silenced():
        try:
            trainer.args, trainer._undo = args, []
            yield
        finally:
            while trainer._undo:
                trainer._undo.pop()()
            vars(trainer).clear()
            vars(trainer).update(attributes)


@contextmanager
def unread(loader: Any) -> Iterator[None]:
    """Inside, batches may be read; afterwards, generators that the user gave the loader are as before."""
    generators = generators_of(loader)
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


@contextmanager
def copied_model(trainer: Trainer) -> Iterator[nn.Module]:
    """Inside, the trainer has a copy of its model, of an optimizer that was given to it, and of what runs them.

    The copy's parameters are new ones in the same memory, so that on the device everything takes what it takes in a
    run. What they hold is kept in host memory, and put back. Within `undone`, which gives the trainer its own back.
    """
    parameters = list(trainer.model.parameters())
    gradients = [parameter.grad for parameter in parameters]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    kept = [parameter.detach().to("cpu", copy=True) for parameter in trained]
    for parameter in parameters:
        parameter.grad = None
    try:
        _exchange(trainer, parameters)
        yield trainer.model
    finally:
        with torch.no_grad():
            for parameter, value in zip(trained, kept, strict=True):
                parameter.detach().copy_(value)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def _exchange(trainer: Trainer, parameters: list[nn.Parameter]) -> None:
    twins: dict[int, Any] = {id(parameter): _twin(parameter) for parameter in parameters}
    twins[id(trainer)] = trainer  # which a model may hold on to
    given = trainer.optimizer if not trainer._made_optimizer else None
    try:
        model, optimizer, choice = copy.deepcopy((trainer.model, given, trainer.optimizer_cls_and_kwargs), twins)
    except Exception as error:
        raise CannotBeCopied(f"{type(trainer.model).__name__} cannot be copied ({error})") from error
    trainer.model = trainer.model_wrapped = model
    trainer.optimizer, trainer.optimizer_cls_and_kwargs = optimizer, choice
    trainer.lr_scheduler = None if trainer._made_scheduler or given is None else trainer.lr_scheduler
    trainer.control = copy.copy(trainer.control)
    trainer.engine = engine = copy.copy(trainer.engine)
    if engine.scaler is not None:
        engine.scaler = torch.amp.GradScaler(engine.device.type)


def _twin(parameter: nn.Parameter) -> nn.Parameter:
    """Another parameter in the same memory; of quantised and sharded ones, which are more than memory, the same."""
    if type(parameter) is not nn.Parameter:
        return parameter
    twin = nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
    twin.__dict__.update(parameter.__dict__)
    return twin
