"""What one step takes, by really taking a few: on a copy, with real batches, with the optimizer of the run."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from kunren.base.host_memory import free_host_bytes
from kunren.base.nested import map_tensors
from kunren.checkpoint.disk import estimate_bytes
from kunren.loop.guards.smaller_pieces import free_memory, is_out_of_memory
from kunren.plan import Plan
from kunren.planning.live_bytes import bytes_of, meter_for
from kunren.planning.reading import Reading, Seen
from kunren.planning.units import human_size
from kunren.planning.unknown import Unknown
from kunren.seams.lifecycle import switch_features_on

if TYPE_CHECKING:
    from kunren.trainer import Trainer

_TIMED_BATCHES = 5
# Steps that are timed: as many as come in the first number of seconds, but at least and at most so many.
_TIMED_SECONDS, _FEWEST_TIMED, _MOST_TIMED = 1.0, 3, 50


@dataclass(frozen=True)
class StepMemory:
    """Bytes. `activations`: what a micro-batch's forward pass keeps for its backward pass.

    `beside_weights`: the most that a step takes at any moment in addition to weights, buffers and optimizer state.
    """

    gradients: int
    activations: int
    beside_weights: int


@dataclass(frozen=True)
class StepTime:
    """Seconds, each the median of what was measured, `times` times."""

    load: float
    micro_batch: float
    update: float
    times: int


@dataclass(frozen=True)
class MeasuredStep:
    """`checkpoint_bytes` without, with the optimizer."""

    optimizer_name: str
    optimizer_bytes: int
    checkpoint_bytes: tuple[int, int]
    memory: StepMemory | Unknown
    time: StepTime | Unknown


def measure_step(trainer: Trainer, plan: Plan, reading: Reading | None) -> MeasuredStep | Unknown:
    """Within `copied_model`. Without batches, only what the optimizer keeps. An error is one that a run would raise."""
    trainer.is_in_train = True
    switch_features_on(trainer)
    trainer.create_optimizer_and_scheduler(num_training_steps=plan.max_steps)
    optimizer: Any = trainer.optimizer
    trainer.engine.prepare(trainer.model, optimizer)
    trainer.model.train()
    trainer.switch_optimizer("train")
    on_xla = trainer.engine.device.type == "xla"  # where what Python does is not yet computed
    unknown = Unknown("XLA tells neither memory nor time" if on_xla else "there is no data")
    memory: StepMemory | Unknown = unknown
    timing: StepTime | Unknown = unknown
    try:
        if reading is None or on_xla:
            _make_optimizer_state(trainer.model, optimizer)
        else:
            _step(trainer, plan, reading.largest)
            memory = _memory_of_step(trainer, plan, reading.largest)
            timing = _time_of_step(trainer, plan, reading)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        trainer.engine.zero_gradients()
        free_memory(trainer.engine.device)
        return Unknown(f"memory ran out{f' at a batch of {reading.largest.form}' if reading else ''}")
    state = [tensor for entry in optimizer.state.values() for tensor in _tensors_in(entry)]
    checkpoints = tuple(estimate_bytes(trainer.model, one) for one in (None, optimizer))
    return MeasuredStep(type(optimizer).__name__, bytes_of(state), (checkpoints[0], checkpoints[1]), memory, timing)


def missing_host_memory(trainer: Trainer) -> Unknown | None:
    """Why measuring has to be left out, if so: where a GPU refuses memory, a CPU without any ends the process."""
    free = free_host_bytes()
    trained = bytes_of(parameter for parameter in trainer.model.parameters() if parameter.requires_grad)
    needed = 2 * trained if trainer.engine.device.type == "cpu" else trained  # gradients, and what is put back
    if free is None or needed <= free:
        return None
    return Unknown(f"to measure a step takes at least {human_size(needed)}, and {human_size(free)} of memory are free")


def _take(trainer: Trainer, seen: Seen) -> tuple[Any, Any]:
    """The batch, as code that takes something out of it may have it, and the number of labels in it."""
    fresh = map_tensors(lambda tensor: tensor, seen.data)
    batches, num_items, _ = trainer._get_batches(iter([fresh]), 1)
    return batches[0], num_items


def _step(trainer: Trainer, plan: Plan, seen: Seen, meter: Any = None) -> tuple[int, int]:
    """Forward, backward, clipping, update. With a meter: the most bytes in the first two, and in the last two."""
    batch, num_items = _take(trainer, seen)
    trainer.training_step(trainer.model, batch, num_items)
    most = meter.peak() if meter is not None else 0
    if meter is not None:
        meter.reset()
    _update(trainer, plan)
    return most, meter.peak() if meter is not None else 0


def _update(trainer: Trainer, plan: Plan) -> None:
    """Without asking the scaler: gradients that overflow in a first step with fp16 make the optimizer's state too."""
    engine, optimizer = trainer.engine, trainer.optimizer
    assert optimizer is not None
    engine.clip_gradients(optimizer, plan.max_grad_norm)
    optimizer.step()
    if engine.scaler is not None:
        engine.scaler.update()


def _memory_of_step(trainer: Trainer, plan: Plan, seen: Seen) -> StepMemory | Unknown:
    """On the second step: optimizer state and workspaces are there already."""
    engine, optimizer = trainer.engine, trainer.optimizer
    assert optimizer is not None
    engine.zero_gradients()
    state = [tensor for entry in optimizer.state.values() for tensor in _tensors_in(entry)]
    known = [*trainer.model.parameters(), *trainer.model.buffers(), *state, *_tensors_in(seen.data)]
    meter, kept = meter_for(engine.device, known), [0]
    backward = engine.backward

    def noted(loss: torch.Tensor, **options: Any) -> None:
        kept[0] = max(kept[0], meter.now() - before)
        backward(loss, **options)

    vars(engine)["backward"] = noted
    try:
        with meter:
            before = meter.now()
            most, most_of_update = _step(trainer, plan, seen, meter)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # The step has been taken once without being watched: it is the watching that some tensor does not take.
        return Unknown(f"the memory of this model's step cannot be followed ({error})")
    finally:
        del vars(engine)["backward"]
    gradients = bytes_of(p.grad for p in trainer.model.parameters() if p.grad is not None)
    engine.zero_gradients()
    most, most_of_update = most - before, most_of_update - before
    if plan.accumulation_steps > 1:  # then the gradients of the micro-batches before are there in the forward pass
        most += gradients
    return StepMemory(gradients, kept[0] or most, max(most, most_of_update))


def _time_of_step(trainer: Trainer, plan: Plan, reading: Reading) -> StepTime:
    forward_backward, update = [], []
    begun = time.perf_counter()
    for seen in itertools.cycle(reading.typical(_TIMED_BATCHES)):
        trainer.engine.zero_gradients()
        clock = _clock(trainer.engine.device)
        batch, num_items = _take(trainer, seen)
        start = next(clock)
        trainer.training_step(trainer.model, batch, num_items)
        middle = next(clock)
        _update(trainer, plan)
        end = next(clock)
        forward_backward.append(middle - start)
        update.append(end - middle)
        if len(update) == _MOST_TIMED or (len(update) >= _FEWEST_TIMED and end - begun > _TIMED_SECONDS):
            break
    trainer.engine.zero_gradients()
    load = statistics.median(seen.seconds for seen in reading.seen)
    return StepTime(load, statistics.median(forward_backward), statistics.median(update), len(update))


def _clock(device: torch.device) -> Iterator[float]:
    """The time when all that the device was given is done."""
    synchronize = getattr(getattr(torch, device.type, None), "synchronize", nullcontext)
    while True:
        synchronize()
        yield time.perf_counter()


def _make_optimizer_state(model: nn.Module, optimizer: Any) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


def _tensors_in(data: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(found.append, data)
    return found
