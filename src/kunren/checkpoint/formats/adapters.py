"""PEFT's adapters: each in a folder of its own, the default one beside the rest of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from kunren.checkpoint.filling import LoadedKeys, fill
from kunren.checkpoint.formats import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME
from kunren.checkpoint.weight_files import read_file


def folders(folder: Path) -> dict[str | None, Path]:
    """Adapter name -> its folder. The adapter directly in `folder` goes without a name (None)."""
    found: dict[str | None, Path] = {}
    for name in (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME):
        found.update({path.parent.name: path.parent for path in folder.glob(f"*/{name}")})
        if (folder / name).is_file():
            found[None] = folder
    return found


def load(model: nn.Module, folder: Path) -> LoadedKeys:
    """Each saved adapter into the model's adapter of that name; the optimizer knows only those, so none is added."""
    present: Mapping[str, Any] = getattr(model, "peft_config", None) or {}
    if not present:
        raise ValueError(f"{folder} holds adapter weights, and the model ({type(model).__name__}) has no adapters.")
    active: Any = model.active_adapters
    unnamed = "default" if "default" in present else (active() if callable(active) else active)[0]
    missing: list[str] = []
    unexpected: list[str] = []
    saved = {unnamed if name is None else name: path for name, path in folders(folder).items()}
    for name, path in saved.items():
        if name not in present:
            unexpected.append(f"the adapter {name!r}")
        elif getattr(model, "_hf_peft_config_loaded", False):
            keys = _load_injected_adapter(model, name, path)
            missing, unexpected = missing + keys.missing, unexpected + keys.unexpected
        else:
            # An adapter that exists keeps its dtype; is_trainable=False would put the whole model into eval mode.
            load_adapter: Any = model.load_adapter
            result = load_adapter(str(path), name, is_trainable=True, autocast_adapter_dtype=False)
            missing, unexpected = missing + result.missing_keys, unexpected + result.unexpected_keys
    missing += [f"the adapter {name!r}" for name in present if name not in saved]
    return LoadedKeys(missing, unexpected)


def _load_injected_adapter(model: nn.Module, adapter: str, folder: Path) -> LoadedKeys:
    """For a transformers model that was given adapters by `add_adapter`: its `load_adapter` only adds new ones."""
    own = {name: value for name, value in model.state_dict().items() if f".{adapter}." in f"{name}."}
    by_saved_name = {saved_name(name, adapter): name for name in own}
    saved = {without_prefix(name): value for name, value in read(folder).items()}
    values = {by_saved_name[name]: value for name, value in saved.items() if name in by_saved_name}
    fill(model, own, values, folder)
    unexpected = [name for name in saved if name not in by_saved_name]
    return LoadedKeys([name for name in own if name not in values], unexpected)


def without_prefix(name: str) -> str:
    """A name as it would be without PEFT's model around the model."""
    return name.removeprefix("base_model.model.")


def saved_name(name: str, adapter: str) -> str:
    """`query.lora_A.default.weight` is stored as `query.lora_A.weight`; `modules_to_save.default` goes altogether."""
    return f"{name}.".replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".").removesuffix(".")


def read(folder: Path) -> dict[str, Any]:
    """The tensors of one adapter's file, under the names that PEFT gives them on disk."""
    safe = folder / ADAPTER_SAFE_WEIGHTS_NAME
    return read_file(safe if safe.is_file() else folder / ADAPTER_WEIGHTS_NAME)
