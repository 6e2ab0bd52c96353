"""An error ends a run of several processes, each with all of the model: the first saves alone what is trained.

No exchange is possible any more: the others wait for gradients, and learn of the error by the end of the process that
has raised. That leaves the first process with weights, moments, schedule and place in the data of its last whole step,
which are those of all. What only the others have, their random numbers and the sums of their open log windows, each
that ends in time leaves in a place that outlives its connections.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, final

import torch

from kunren.base.environment import process_group_is_started
from kunren.base.random_state import capture
from kunren.checkpoint import layout
from kunren.checkpoint.formats import torch_file
from kunren.checkpoint.saver import CheckpointSaver
from kunren.engine.backends.last_words import LastWords
from kunren.loop.run import Run

logger = logging.getLogger(__name__)

_SECONDS_FOR_LIKE_ERRORS = 1.0  # where all raise the same, they do so at about the same time
_SECONDS_FOR_THE_OTHERS = 3.0  # to notice that one has ended
_EXCHANGING = ("kunren.engine.", "torch.distributed", "torch.autograd", "torch.nn.parallel")


def rescue_of_several(run: Run, do: Any, error: BaseException, saves: bool, save: Callable[[Run, Any], None]) -> None:
    """Leave what the first process needs; there, `save` with what the others have left."""
    if not process_group_is_started():
        return  # processes of another kind (XLA's)
    engine, step = run.engine, run.state.global_step
    on_host = engine.device.type == "cpu"
    words = LastWords(engine.process_index, engine.world_size)
    own = {
        "step": step,
        "error": f"{type(error).__name__}: {error}",
        "random": capture(),
        "flos": do.current_flos,
        # Reading a device's would wait for its work, which may itself wait for a process that is gone.
        "meter": run.meter.state_dict() if on_host else None,
    }
    try:
        is_cause = words.leave(own)
    except RuntimeError:
        if engine.process_index == 0:
            raise
        return  # the first process is gone, and with it the place for last words
    if engine.process_index > 0:
        return
    of_all = words.of_all(_SECONDS_FOR_LIKE_ERRORS if is_cause else _SECONDS_FOR_THE_OTHERS)
    for rank, (was_first, of_one) in of_all.items():
        if rank > 0 and was_first:
            logger.error("Process %d failed, and with it this one: %s", rank, of_one["error"])
    if not saves:
        return
    if not on_host and not (is_cause and is_of_its_own(error)):
        # Its steps are counted when they are given to the device, which may wait for ever for those that are gone.
        logger.error("Another process failed, and nothing can be saved: go on from the last checkpoint.")
        return
    others = {rank: of_one for rank, (_, of_one) in of_all.items() if rank > 0 and of_one["step"] == step}
    try:
        do._saver.wait()  # for what the processes were publishing when this one failed
    except Exception:
        logger.exception("The checkpoint before could not be saved.")
    with _alone(run, do, others):
        save(run, do)


def is_of_its_own(error: BaseException) -> bool:
    """Whether an error did not come from an exchange with other processes, one of which may have been killed."""
    traceback = error.__traceback__
    while traceback is not None:
        if str(traceback.tb_frame.f_globals.get("__name__")).startswith(_EXCHANGING):
            return False
        traceback = traceback.tb_next
    return True


class _Alone:
    """Processes of which there is one."""

    process_index, world_size = 0, 1

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def beside(self) -> _Alone:
        return self


@final
class _EngineAlone(_Alone):
    """The engine of a save, where each tells its meter: the others have told theirs before."""

    def __init__(self, engine: Any, meters_of_others: list[Any]) -> None:
        self._engine, self._meters_of_others = engine, meters_of_others
        self.world_size = engine.world_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def gather_objects(self, value: Any) -> list[Any]:
        return [value, *self._meters_of_others]


@contextlib.contextmanager
def _alone(run: Run, do: Any, others: dict[int, Any]) -> Iterator[None]:
    """Inside, a save is that of one process, with what the others have left."""
    engine, saver = do.engine, do._saver
    meters = [others[rank]["meter"] for rank in sorted(others) if others[rank]["meter"] is not None]
    is_complete = len(meters) == engine.world_size - 1  # they are told apart by their order: all, or none
    if not is_complete:
        logger.warning(
            "A process left no sum of its losses: the next logged loss, and train_loss, are of this one up to here."
        )
    do.engine = _EngineAlone(engine, meters if is_complete else [])
    do._saver = CheckpointSaver(False, _Alone())
    do.current_flos += sum(of_one["flos"] for of_one in others.values())
    save_parts = do._save_parts

    def with_others(folder: Path) -> None:
        save_parts(folder)
        for rank, of_one in others.items():
            torch_file.save(of_one["random"], folder / layout.rng_state_name(rank, engine.world_size))

    do._save_parts = with_others
    try:
        yield
    finally:
        del do._save_parts
        do.engine, do._saver = engine, saver
