"""Models with a `save_pretrained` of their own, which may write other names and shapes than the model holds."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kunren.base.random_state import preserved
from kunren.checkpoint import sink
from kunren.checkpoint.formats import CONFIG_NAME
from kunren.checkpoint.formats.xla_tensors import own_if_on_xla
from kunren.checkpoint.weight_files import storable
from kunren.model.pretrained_weights import handing_over_tensors, without_bars

_WRAPPED = "_fsdp_wrapped_module"


def save(model: nn.Module, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    """Let the model write itself, with its tensors going where those of the checkpoint go; no tensors: its config."""
    with _undivided(model):
        if state_dict is None or state_dict:
            with handing_over_tensors(sink.current().put_tensors):
                _save(model, folder, state_dict)
            return
        for name in ("config", "generation_config"):
            config: Any = getattr(model, name, None)
            if hasattr(config, "save_pretrained"):
                if name == "config":  # FSDP 2 has made a class of its own
                    config.architectures = [type(model).__name__.removeprefix("FSDP")]
                    if isinstance(dtype := getattr(model, "dtype", None), torch.dtype):
                        config.dtype = str(dtype).removeprefix("torch.")
                config.save_pretrained(folder)


@contextmanager
def _undivided(model: nn.Module) -> Iterator[None]:
    """Inside, a model is as it would be in one process, which it is saved by and may be loaded in.

    FSDP 1 has a module around each layer, and so other names: PEFT would find none of its weights by them. A model that
    transformers has divided would gather its weights, which the others know nothing of.
    """
    wrappers = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()
        if child is not None and _WRAPPED in child._modules
    ]
    config = vars(model.config) if hasattr(model, "config") and hasattr(model.config, "__dict__") else {}
    division = {name: config.pop(name) for name in ("distributed_config",) if name in config}
    for parent, name, child in wrappers:
        parent._modules[name] = child._modules[_WRAPPED]
    try:
        yield
    finally:
        config.update(division)
        for parent, name, child in wrappers:
            parent._modules[name] = child


def _save(model: nn.Module, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    write: Any = model.save_pretrained
    if state_dict is not None:
        write(folder, state_dict=dict(state_dict))
        return
    own = own_if_on_xla(model)
    try:
        write(folder, **own)
    except RuntimeError:
        # transformers refuses ties that the model's class does not declare: those it is given as separate tensors.
        state = own.get("state_dict") or model.state_dict()
        aliases = storable(state).aliases
        if not aliases:
            raise
        write(folder, state_dict={name: value.clone() if name in aliases else value for name, value in state.items()})


def converts(model: nn.Module, folder: Path) -> bool:
    """Whether names may differ because the model's `save_pretrained` writes other names and shapes than it holds."""
    if hasattr(model, "peft_config"):  # whose from_pretrained wants the model first
        return False
    return hasattr(type(model), "from_pretrained") and hasattr(model, "config") and (folder / CONFIG_NAME).is_file()


def converted(model: nn.Module, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The weights as the model's own `from_pretrained` converts them, and the names it could not place.

    transformers stores a mixture of experts as one matrix an expert and holds them stacked; loaded by name, the experts
    would keep their initial values.
    """
    with preserved(), without_bars():  # it initialises a second model
        loaded, report = type(model).from_pretrained(  # type: ignore[attr-defined]
            folder,
            config=copy.deepcopy(model.config),
            dtype=getattr(model, "dtype", None),
            output_loading_info=True,
            local_files_only=True,
        )
    absent = set(report["missing_keys"])
    state = {name: value for name, value in loaded.state_dict().items() if name not in absent}
    return state, sorted(report["unexpected_keys"])
