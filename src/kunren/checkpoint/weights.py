"""A model's weights into a folder and back: transformers models, PEFT adapters, and any `nn.Module`."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from kunren.checkpoint.arena import identity
from kunren.checkpoint.filling import LoadedKeys, fill, listing
from kunren.checkpoint.weight_files import COMPILED_PREFIX, read_tensors, write_tensors

logger = logging.getLogger(__name__)


def save_weights(
    model: nn.Module,
    folder: str | Path,
    *,
    state_dict: Mapping[str, Any] | None = None,
    processing_class: Any = None,
) -> None:
    """Write the model as `from_pretrained` reads it, or a plain module as `model.safetensors`, and its processor.

    `state_dict` replaces the model's own, for weights that were gathered from elsewhere; an empty one means that they
    lie elsewhere, and only what describes the model is written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = _without_compile(model)
    if hasattr(model, "save_pretrained"):
        from kunren.checkpoint.formats import pretrained

        pretrained.save(model, folder, state_dict)
    elif state_dict is None or state_dict:
        write_tensors(model.state_dict() if state_dict is None else state_dict, folder)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def load_weights(model: nn.Module, folder: str | Path, same_model: bool = False) -> LoadedKeys:
    """Load a folder of weights into the model, in place, so that tied parameters stay tied. Runs no code.

    Names that do not correspond are returned, and reported; with `same_model`, names that are missing on both sides are
    a ValueError, before anything is loaded. So are parameters whose shapes differ.
    """
    from kunren.checkpoint.formats import adapters

    model, folder = _without_compile(model), Path(folder)
    if adapters.folders(folder) and not has_full_weights(folder):
        keys = adapters.load(model, folder)
    else:
        keys = _load_full(model, folder, same_model)
    report(keys, folder)
    return keys


def report(keys: LoadedKeys, folder: Path) -> None:
    """Warn of names that did not correspond."""
    if keys.missing:
        logger.warning("Not in the weights of %s, so left as they were: %s.", folder, listing(keys.missing))
    if keys.unexpected:
        logger.warning("In the weights of %s, but not in the model: %s.", folder, listing(keys.unexpected))


def _without_compile(model: nn.Module) -> nn.Module:
    original = getattr(model, COMPILED_PREFIX[:-1], None)
    return original if isinstance(original, nn.Module) else model


def has_full_weights(folder: Path) -> bool:
    """Whether a folder has the weights of a model, and not only those of adapters."""
    return any(any(folder.glob(pattern)) for pattern in ("model*.safetensors", "pytorch_model*.bin"))


def _load_full(model: nn.Module, folder: Path, same_model: bool) -> LoadedKeys:
    from kunren.checkpoint.formats import pretrained

    saved, own = read_tensors(folder), model.state_dict()
    names = match_names(saved, own)
    unmatched = [name for name in saved if name not in names]
    if unmatched and not set(own).issubset(names.values()) and pretrained.converts(model, folder):
        saved, unmatched = pretrained.converted(model, folder)
        names = {name: name for name in saved if name in own}
    values = {names[name]: saved[name] for name in names}
    filled = {identity(own[name]) for name in values if isinstance(own[name], Tensor)} - {None}
    missing = [
        name
        for name, value in own.items()
        if name not in values and not (isinstance(value, Tensor) and identity(value) in filled)
    ]
    ignored: Iterable[str] = getattr(model, "_keys_to_ignore_on_save", None) or ()
    keys = LoadedKeys([name for name in missing if not any(re.search(rule, name) for rule in ignored)], unmatched)
    if same_model and keys.missing and keys.unexpected:
        raise ValueError(
            f"{folder} is of another model. Only in the checkpoint: {listing(keys.unexpected)}. Only in the model: "
            f"{listing(keys.missing)}."
        )
    fill(model, own, values, folder)
    return keys


def match_names(saved: Iterable[str], own: Iterable[str]) -> dict[str, str]:
    """Saved name -> the model's name. Wrappers' prefixes (`_orig_mod.`, `module.`) count only where names differ."""
    exact = dict.fromkeys(own)
    by_plain_name = {_plain_name(name): name for name in reversed(exact)}  # of several, the first
    targets = {name: name if name in exact else by_plain_name.get(_plain_name(name)) for name in saved}
    return {name: target for name, target in targets.items() if target is not None}


def _plain_name(name: str) -> str:
    name = name.replace(COMPILED_PREFIX, "")
    while name.startswith("module."):
        name = name.removeprefix("module.")
    return name
