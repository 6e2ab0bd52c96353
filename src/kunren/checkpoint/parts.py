"""What a checkpoint consists of besides the weights: one function to save and one to load each part.

The Trainer's `_save_*` and `_load_*` seams call these, so that overriding one seam replaces exactly one part. Every
loader tells whether its file was there, reads tensors and plain values only, and leaves the live object untouched
when the file is missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy
import torch
from torch.optim import Optimizer

from kunren.base.random_state import capture, restore
from kunren.base.registry import resolve
from kunren.base.state import TrainerState
from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint import layout, sink
from kunren.checkpoint.formats import refuse_deepspeed, torch_file
from kunren.checkpoint.formats.plain_values import plain
from kunren.optim.parameter_groups import fit_state, split_state
from kunren.optim.schedule import groups_in, resize_state

logger = logging.getLogger(__name__)


class Stateful(Protocol):
    """What schedulers, gradient scalers and the like have."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class Part:
    """One thing that survives a restart; both functions are given the checkpoint's folder."""

    name: str
    save: Callable[[Path], None]
    load: Callable[[Path], None]


def save_parts(parts: Iterable[Part], folder: Path) -> None:
    """Save each part in turn; the type of an error is kept, and the part is named in it where Python can (3.11)."""
    for part in parts:
        _run(part.save, folder, f"while the part {part.name!r} of a checkpoint was saved")


def load_parts(parts: Iterable[Part], folder: Path) -> None:
    """Load each part in turn, with errors as `save_parts` has them."""
    for part in parts:
        _run(part.load, folder, f"while the part {part.name!r} of {folder} was loaded")


def save_optimizer(optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None = None) -> None:
    """Write `optimizer.pt`; a merged parameter group is written as the two that transformers has."""
    state = optimizer.state_dict()
    if number_of_decay_parameters is not None:
        state = split_state(state, number_of_decay_parameters)
    sink.current().put_value(plain(state, layout.OPTIMIZER_NAME), folder / layout.OPTIMIZER_NAME)


def load_optimizer(optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None = None) -> bool:
    """Read `optimizer.pt` (`.bin`, or parts) into the optimizer, whether either has one group or the two of decay."""
    path = layout.optimizer_in(folder)
    if path is None:
        refuse_deepspeed(folder)
    else:
        read: Any = torch_file.load_plain
        if path.parent != folder:
            read = resolve("kunren.checkpoint.formats.sharded_optimizer:read")
        fit_state(read(path), optimizer, number_of_decay_parameters)
    return path is not None


def save_scheduler(scheduler: Stateful, folder: Path, groups: int | None = None) -> None:
    """Write `scheduler.pt`; with `groups`, for an optimizer state that `save_optimizer` has split into that many."""
    state = scheduler.state_dict()
    if groups is not None:
        state = resize_state(state, groups)
    torch_file.save(plain(state, layout.SCHEDULER_NAME), folder / layout.SCHEDULER_NAME)


def load_scheduler(scheduler: Stateful, folder: Path) -> bool:
    """Read `scheduler.pt`, whether it was of one parameter group or of two, into a schedule over one or two."""
    state = _read(folder / layout.SCHEDULER_NAME)
    if state is None:
        return False
    groups = groups_in(scheduler.state_dict())
    scheduler.load_state_dict(state if groups is None else resize_state(state, groups))
    return True


def save_scaler(scaler: Stateful, folder: Path) -> None:
    torch_file.save(plain(scaler.state_dict(), layout.SCALER_NAME), folder / layout.SCALER_NAME)


def load_scaler(scaler: Stateful, folder: Path) -> bool:
    state = _read(folder / layout.SCALER_NAME)
    if state is not None:
        scaler.load_state_dict(state)
    return state is not None


def save_random_state(folder: Path, process_index: int = 0, world_size: int = 1) -> None:
    """Write every generator of this process: `rng_state.pth`, or `rng_state_<rank>.pth` when there are several."""
    torch_file.save(capture(), folder / layout.rng_state_name(process_index, world_size))


def load_random_state(folder: Path, process_index: int = 0, world_size: int = 1) -> bool:
    """Put back this process's generators. A checkpoint of another number of processes has none for it: then False."""
    name = layout.rng_state_name(process_index, world_size)
    choices = [folder / name]
    if world_size == 1:  # one process reads the first of several
        choices.append(folder / layout.rng_state_name(0, world_size=2))
    path = next(filter(Path.is_file, choices), None)
    if path is None:
        logger.warning("%s has no %s: random numbers go on from the seed, not from where they were.", folder, name)
        return False
    with torch.serialization.safe_globals(_numpy_array_globals()):
        restore(torch_file.load_plain(path))
    return True


def save_trainer_state(state: TrainerState, folder: Path) -> None:
    state.save_to_json(folder / layout.TRAINER_STATE_NAME)


def load_trainer_state(folder: Path) -> TrainerState:
    return TrainerState.load_from_json(folder / layout.TRAINER_STATE_NAME)


def save_training_args(arguments: Mapping[str, Any], folder: Path) -> None:
    """Write `training_args.bin` as a dict of plain values: unlike a pickled object it cannot run code when read."""
    torch_file.save(plain(arguments, layout.TRAINING_ARGS_NAME, unknown=repr), folder / layout.TRAINING_ARGS_NAME)


def load_training_args(folder: Path) -> dict[str, Any] | None:
    """The arguments a checkpoint was made with; None when there are none, or pickled ones as transformers writes."""
    try:
        arguments = _read(folder / layout.TRAINING_ARGS_NAME)
    except ValueError:
        return None
    return arguments if isinstance(arguments, dict) else None


def save_cursor(cursor: Mapping[str, Any], folder: Path) -> None:
    """Write where the run stands in its data, as strict JSON."""
    write_json(folder / layout.CURSOR_NAME, cursor)


def load_cursor(folder: Path) -> dict[str, Any] | None:
    """What `save_cursor` wrote, or None for a checkpoint of transformers."""
    path = folder / layout.CURSOR_NAME
    if not path.is_file():
        return None
    cursor: dict[str, Any] = read_json(path)
    return cursor


def save_data_state(state: Mapping[str, Any], folder: Path) -> None:
    """Write what a loader keeps of its position beside the cursor, if anything."""
    if state:
        torch_file.save(plain(state, layout.DATA_STATE_NAME), folder / layout.DATA_STATE_NAME)


def load_data_state(folder: Path) -> dict[str, Any]:
    return _read(folder / layout.DATA_STATE_NAME) or {}


def _run(action: Callable[[Path], None], folder: Path, note: str) -> None:
    try:
        action(folder)
    except Exception as error:
        if hasattr(error, "add_note"):
            error.add_note(note)
        raise


def _read(path: Path) -> Any:
    """What is in a file, or None."""
    return torch_file.load_plain(path) if path.is_file() else None


def _numpy_array_globals() -> list[Any]:
    """What a pickled array names, as numpy 1 and as numpy 2 spell it: numpy's generator keeps its state in one."""
    reconstruct = numpy.zeros(0).__reduce__()[0]
    spellings = [(reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    return [*spellings, numpy.ndarray, numpy.dtype, type(numpy.dtype(numpy.uint32))]
