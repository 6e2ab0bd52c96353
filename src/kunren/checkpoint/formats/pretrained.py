"""Models with a `save_pretrained` of their own, which may write other names and shapes than the model holds."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from kunren.base.random_state import preserved
from kunren.checkpoint import sink
from kunren.checkpoint.formats import CONFIG_NAME
from kunren.checkpoint.weight_files import storable
from kunren.model.pretrained_weights import handing_over_tensors, without_bars


def save(model: nn.Module, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    """Let the model write itself, with its tensors going where those of the checkpoint go; no tensors: its config."""
    if state_dict is not None and not state_dict:
        for name in ("config", "generation_config"):
            config: Any = getattr(model, name, None)
            if hasattr(config, "save_pretrained"):
                config.save_pretrained(folder)
        return
    with handing_over_tensors(sink.current().put_tensors):
        _save(model, folder, state_dict)


def _save(model: nn.Module, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    write: Any = model.save_pretrained
    if state_dict is not None:
        write(folder, state_dict=dict(state_dict))
        return
    try:
        write(folder)
    except RuntimeError:
        # transformers refuses ties that the model's class does not declare: those it is given as separate tensors.
        state = model.state_dict()
        aliases = storable(state).aliases
        if not aliases:
            raise
        write(folder, state_dict={name: value.clone() if name in aliases else value for name, value in state.items()})


def converts(model: nn.Module, folder: Path) -> bool:
    """Whether names may differ because the model's `save_pretrained` writes other names and shapes than it holds."""
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
