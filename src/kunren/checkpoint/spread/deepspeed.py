"""A model and an optimizer that DeepSpeed divides, in a checkpoint: its own layout, read by its own tools.

Each process writes its part of `global_step<N>/` into the hidden folder of the publication; weights that every process
has are saved whole as well, as `from_pretrained` reads them.
"""

from __future__ import annotations

import importlib
import logging
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.checkpoint import weight_files, weights
from kunren.checkpoint.filling import listing
from kunren.checkpoint.formats import SHARDED_OPTIMIZER_NAME
from kunren.checkpoint.layout import OPTIMIZER_NAME
from kunren.checkpoint.spread import deepspeed_files, loading
from kunren.checkpoint.spread.deepspeed_files import Files, merge_deepspeed
from kunren.checkpoint.storage import Storage

__all__ = ["DeepSpeedStorage", "merge_deepspeed"]

logger = logging.getLogger(__name__)


@final
class DeepSpeedStorage(Storage):
    """Asks the engine of the run's DeepSpeedBackend."""

    parts_of_each_process = ("model", "optimizer", "random numbers")

    def __init__(self, engine: Any) -> None:
        super().__init__(engine)
        self._backend = engine
        self._files = Files()

    # ---- saving

    def weights_to_save(self, model: nn.Module, folder: Path, in_checkpoint: bool) -> Mapping[str, Any] | None:
        backend = self._backend
        if backend.stage < 3 or not backend.is_prepared(model):
            return None
        if not in_checkpoint:
            backend.meet("save_model()")
        args = backend.args
        section = backend.config["zero_optimization"]
        adapters = loading.adapter_names(model)  # small: they are always in the form that others read
        gathers = args.save_only_model or section.get("stage3_gather_16bit_weights_on_model_save") or adapters
        if in_checkpoint and not gathers:
            return {}  # they lie in the parts of the processes
        return _gathered(model, args.should_save, adapters)

    def save_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> None:
        engine = self._backend.deepspeed_engine
        if engine is None:
            return
        engine.checkpoint_engine = self._files
        engine._copy_recovery_script = _nothing  # it would write in the middle of DeepSpeed's exchanges
        tag = f"global_step{engine.global_steps}"
        engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
        self._files.put()
        if self._backend.process_index == 0:
            deepspeed_files.write_signposts(folder, tag)

    def estimate_bytes(self, model: nn.Module, optimizer: Optimizer | None, last: Path | None) -> int:
        if not self._backend.is_prepared(model) or (last is not None and last.is_dir()):
            return super().estimate_bytes(model, optimizer, last)
        weights = sum(_numel(weight) * weight.element_size() for weight in model.parameters())
        # Each other process has about as much of the states as this one, and of the weights in full precision.
        kept = optimizer.state.items() if optimizer is not None else ()
        here = sum(
            value.numel() * value.element_size()
            for row, values in kept
            for value in (row, *values.values())
            if isinstance(value, torch.Tensor)
        )
        twice = 1 if self._backend.stage == 3 else 2  # once for DeepSpeed, once for everybody else
        return int(weights * twice + here * self._backend.world_size)

    # ---- loading

    def load_weights(self, model: nn.Module, folder: str | Path, same_model: bool = False) -> None:
        backend, folder = self._backend, Path(folder)
        if not backend.is_prepared(model):
            super().load_weights(model, folder, same_model)
        elif backend.stage < 3:
            super().load_weights(model, folder, same_model)
            _refresh_masters(backend.deepspeed_engine)
        elif not deepspeed_files.is_in(folder):
            self._scatter(model, folder, same_model)
        elif not same_model:  # of a checkpoint that is resumed from, all is loaded with the optimizer
            assert backend.optimizer is not None
            with _same_options(backend.optimizer):
                self._load(folder)

    def load_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> bool:
        if not deepspeed_files.is_in(folder):
            if (folder / OPTIMIZER_NAME).is_file() or (folder / SHARDED_OPTIMIZER_NAME).is_dir():
                raise ValueError(
                    f"{folder} has the optimizer of a run without DeepSpeed, which cannot be divided: resume with "
                    "deepspeed=None, or save_only_model and start from its weights."
                )
            return False
        self._load(folder)
        return True

    def _load(self, folder: Path) -> None:
        """Weights and optimizer, also from another number of processes."""
        backend = self._backend
        engine, state = backend.deepspeed_engine, deepspeed_files.state_folder(folder)
        assert state is not None
        saved = deepspeed_files.world_size_of(state)
        _check_stage(backend.stage, state, saved)
        engine.checkpoint_engine = self._files
        if saved is None or saved == backend.world_size:
            engine.load_checkpoint(str(folder), tag=state.name, load_lr_scheduler_states=False)
            return
        with self._universal(state) as place:
            engine._config.load_universal_checkpoint = True
            try:
                with deepspeed_files.silenced():
                    engine.load_checkpoint(str(place.parent), tag=place.name, load_lr_scheduler_states=False)
            finally:
                engine._config.load_universal_checkpoint = False
        _restore_options(backend.optimizer, state)

    @contextmanager
    def _universal(self, state: Path) -> Iterator[Path]:
        """The state in a form for any number of processes, in a folder that is gone afterwards."""
        backend, is_first = self._backend, self._backend.process_index == 0
        told: Any = None
        if is_first:
            logger.info("Converting %s, of another number of processes.", state)
            told = _attempt(lambda: _converted(state))
        told = backend.gather_objects(told)[0]
        if isinstance(told, Exception):
            raise ValueError(
                f"{state.parent} is of {deepspeed_files.world_size_of(state)} processes, there are "
                f"{backend.world_size} now, and DeepSpeed's conversion failed: {type(told).__name__}: {told}. Resume "
                "with as many processes as before."
            ) from told
        try:
            yield told
            backend.barrier()  # the others may still be reading
        finally:
            if is_first:
                shutil.rmtree(told.parent, ignore_errors=True)

    def _scatter(self, model: nn.Module, folder: Path, same_model: bool) -> None:
        """Whole weights, read by the first process, into the parts of all, one after another."""
        backend, own = self._backend, model.state_dict(keep_vars=True)
        values: dict[str, Any] = {}
        told: Any = None
        if backend.process_index == 0:
            told = _attempt(lambda: values.update(_matched(own, folder, same_model)) or list(values))
        told = backend.gather_objects(told)[0]
        if isinstance(told, Exception):
            raise told
        gather = importlib.import_module("deepspeed").zero.GatheredParameters
        for name in told:
            target = own[name]
            if hasattr(target, "ds_id"):
                with gather([target], modifier_rank=0), torch.no_grad():
                    if backend.process_index == 0:
                        target.copy_(values[name])
            else:
                value = backend.gather_objects(values.get(name))[0]
                with torch.no_grad():
                    target.copy_(value)
        _refresh_masters(backend.deepspeed_engine)


def _nothing(*_: Any) -> None:
    return None


def _attempt(action: Callable[[], Any]) -> Any:
    """What it returns, or the error: for the other processes, which wait to hear."""
    try:
        return action()
    except Exception as error:
        return error


def _gathered(model: nn.Module, keep: bool, adapters: Collection[str]) -> dict[str, Any]:
    """The model's state, whole, on the host, one weight after another; empty in a process that does not `keep` it.

    `adapters`: where there are any, only they and what is trained beside them.
    """
    gather = importlib.import_module("deepspeed").zero.GatheredParameters
    state: dict[str, Any] = {}
    taken: dict[int, Any] = {}  # a tied weight is one tensor under several names; gathered once, by all processes
    for name, value in model.state_dict(keep_vars=True).items():
        if adapters and not (value.requires_grad or loading.is_of(name, adapters)):
            continue
        if id(value) not in taken:
            with gather([value]) if hasattr(value, "ds_id") else nullcontext():
                copied = keep and isinstance(value, torch.Tensor)
                taken[id(value)] = value.detach().to("cpu", copy=True) if copied else value
        if keep:
            state[name] = taken[id(value)]
    return state


def _matched(own: Mapping[str, Any], folder: Path, same_model: bool) -> dict[str, Any]:
    """The values of a folder of weights under the model's names; ValueError where they do not fit."""
    saved = weight_files.read_tensors(folder)
    names = weights.match_names(saved, own)
    found = {own_name: saved[name] for name, own_name in names.items() if isinstance(saved[name], torch.Tensor)}
    missing = [name for name in own if name not in found]
    if same_model and missing and len(names) < len(saved):
        raise ValueError(f"{folder} is of another model: it has not {listing(missing)}.")
    different = [name for name, value in found.items() if tuple(value.shape) != _shape(own[name])]
    if different:
        raise ValueError(f"The weights of {folder} do not fit this model: {listing(different)}.")
    return found


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "ds_shape", value.shape))


def _numel(weight: Any) -> int:
    return int(getattr(weight, "ds_numel", weight.numel()))


def _refresh_masters(engine: Any) -> None:
    """Weights in full precision that the optimizer keeps, from those of the model."""
    refresh = getattr(engine.optimizer, "refresh_fp32_params", None)
    if refresh is not None:
        refresh()


def _check_stage(stage: int, state: Path, saved: int | None) -> None:
    divided = 3 if deepspeed_files.divides_weights(state) else 2 if saved is not None else 0
    now = 2 if stage == 1 else stage
    if divided != now:
        was = "1 or 2" if divided == 2 else str(divided)
        raise ValueError(
            f"{state.parent} was saved with zero_optimization.stage={was}, and now it is {stage}: resume with that "
            "stage, or begin with the weights of the checkpoint."
        )


def _converted(state: Path) -> Path:
    """The universal form, beside the checkpoint, where the other processes find it as well."""
    # Under the name of a folder on its way out: whoever begins a run here removes what a kill has left of it.
    root = state.parent.parent / f".{state.parent.name}.deleted-{secrets.token_hex(4)}"
    try:
        root.mkdir()
    except OSError:  # a place that can only be read; then all have to be on this machine
        root = Path(tempfile.mkdtemp())
    try:
        place = root / state.name
        place.mkdir()
        deepspeed_files.make_universal(state, place)
    except BaseException:
        shutil.rmtree(root, ignore_errors=True)
        raise
    return place


@contextmanager
def _same_options(optimizer: Optimizer) -> Iterator[None]:
    """Rates and the like stay those of now."""
    before = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    yield
    for group, options in zip(optimizer.param_groups, before, strict=True):
        group.update(options)


def _restore_options(optimizer: Optimizer, state: Path) -> None:
    """Of each group its own: DeepSpeed's loader gives all the options of the first, and one count of steps."""
    saved = deepspeed_files.options_and_state(state)
    for group, options in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        group.update({name: value for name, value in options.items() if name != "params"})
    for values in optimizer.state.values():
        if isinstance(step := values.get("step"), torch.Tensor):
            values["step"] = step.clone()  # each row of numbers counts up its own
