"""A model's weights into a folder and back: transformers models, PEFT adapters, and any `nn.Module`."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from kunren.base.random_state import preserved
from kunren.checkpoint import sink
from kunren.checkpoint.arena import identity
from kunren.checkpoint.layout import ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME, CONFIG_NAME
from kunren.checkpoint.weight_files import COMPILED_PREFIX, read_adapter, read_tensors, storable, write_tensors
from kunren.model.pretrained_weights import handing_over_tensors

logger = logging.getLogger(__name__)

_NAMES_IN_A_MESSAGE = 10


class LoadedKeys(NamedTuple):
    """What did not correspond: names the model has and the files have not, and the reverse."""

    missing: list[str]
    unexpected: list[str]


def save_weights(
    model: nn.Module,
    folder: str | Path,
    *,
    state_dict: Mapping[str, Any] | None = None,
    processing_class: Any = None,
) -> None:
    """Write the model as `from_pretrained` reads it, or a plain module as `model.safetensors`, and its processor.

    `state_dict` replaces the model's own, for weights that were gathered from elsewhere.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = _without_compile(model)
    if hasattr(model, "save_pretrained"):
        with handing_over_tensors(sink.current().put_tensors):
            _save_pretrained(model, folder, state_dict)
    else:
        write_tensors(model.state_dict() if state_dict is None else state_dict, folder)
    if hasattr(processing_class, "save_pretrained"):
        processing_class.save_pretrained(folder)


def load_weights(model: nn.Module, folder: str | Path, same_model: bool = False) -> LoadedKeys:
    """Load a folder of weights into the model, in place, so that tied parameters stay tied. Runs no code.

    Names that do not correspond are returned, and reported; with `same_model`, names that are missing on both sides are
    a ValueError, before anything is loaded. So are parameters whose shapes differ.
    """
    model, folder = _without_compile(model), Path(folder)
    if _adapter_folders(folder) and not _has_full_weights(folder):
        keys = _load_adapters(model, folder)
    else:
        keys = _load_full(model, folder, same_model)
    if keys.missing:
        logger.warning("Not in the weights of %s, so left as they were: %s.", folder, _listing(keys.missing))
    if keys.unexpected:
        logger.warning("In the weights of %s, but not in the model: %s.", folder, _listing(keys.unexpected))
    return keys


def _without_compile(model: nn.Module) -> nn.Module:
    original = getattr(model, COMPILED_PREFIX[:-1], None)
    return original if isinstance(original, nn.Module) else model


def _save_pretrained(model: nn.Module, folder: Path, state_dict: Mapping[str, Any] | None) -> None:
    save: Any = model.save_pretrained
    if state_dict is not None:
        save(folder, state_dict=dict(state_dict))
        return
    try:
        save(folder)
    except RuntimeError:
        # transformers refuses ties that the model's class does not declare: those it is given as separate tensors.
        state = model.state_dict()
        aliases = storable(state).aliases
        if not aliases:
            raise
        save(folder, state_dict={name: value.clone() if name in aliases else value for name, value in state.items()})


# ------------------------------------------------------------------ loading full weights


def _load_full(model: nn.Module, folder: Path, same_model: bool) -> LoadedKeys:
    saved, own = read_tensors(folder), model.state_dict()
    names = match_names(saved, own)
    unmatched = [name for name in saved if name not in names]
    if unmatched and not set(own).issubset(names.values()) and _converts_weights(model, folder):
        saved, unmatched = _converted(model, folder)
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
            f"{folder} is of another model. Only in the checkpoint: {_listing(keys.unexpected)}. Only in the model: "
            f"{_listing(keys.missing)}."
        )
    _fill(model, own, values, folder)
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


def _check_shapes(values: Mapping[str, Any], own: Mapping[str, Any], folder: Path) -> None:
    different = [
        f"{name} is {tuple(value.shape)} in the checkpoint and {tuple(own[name].shape)} in the model"
        for name, value in values.items()
        if isinstance(value, Tensor)
        and isinstance(own[name], Tensor)
        and not is_lazy(own[name])
        and value.shape != own[name].shape
    ]
    if different:
        raise ValueError(f"The weights of {folder} do not fit this model: {_listing(different, '; ')}.")


@torch.no_grad()
def _fill(model: nn.Module, own: Mapping[str, Any], values: Mapping[str, Any], folder: Path) -> None:
    """`load_state_dict`, and expanded tensors by hand: torch copies nothing into elements that share a place."""
    _check_shapes(values, own, folder)
    expanded = [name for name in values if isinstance(own[name], Tensor) and _is_expanded(own[name])]
    for name in expanded:
        target, value = own[name], values[name]
        one = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
        target[one].copy_(value[one])
        if not torch.equal(target.cpu(), value.to(target.dtype)):
            raise ValueError(
                f"{name} is one value seen many times in the model, and has many values in the checkpoint."
            )
    model.load_state_dict({name: value for name, value in values.items() if name not in expanded}, strict=False)


def _is_expanded(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and any(
        stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _converts_weights(model: nn.Module, folder: Path) -> bool:
    """Whether names may differ because the model's `save_pretrained` writes other names and shapes than it holds."""
    return hasattr(type(model), "from_pretrained") and hasattr(model, "config") and (folder / CONFIG_NAME).is_file()


def _converted(model: nn.Module, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """The weights as the model's own `from_pretrained` converts them, and the names it could not place.

    transformers stores a mixture of experts as one matrix an expert and holds them stacked; loaded by name, the experts
    would keep their initial values.
    """
    with preserved():  # it initialises a second model
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


# ------------------------------------------------------------------ loading adapters


def _has_full_weights(folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in ("model*.safetensors", "pytorch_model*.bin"))


def _adapter_folders(folder: Path) -> dict[str | None, Path]:
    """Adapter name -> its folder. The adapter directly in `folder` goes without a name (None)."""
    found: dict[str | None, Path] = {}
    for name in (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME):
        found.update({path.parent.name: path.parent for path in folder.glob(f"*/{name}")})
        if (folder / name).is_file():
            found[None] = folder
    return found


def _load_adapters(model: nn.Module, folder: Path) -> LoadedKeys:
    """Each saved adapter into the model's adapter of that name; the optimizer knows only those, so none is added."""
    present: Mapping[str, Any] = getattr(model, "peft_config", None) or {}
    if not present:
        raise ValueError(f"{folder} holds adapter weights, and the model ({type(model).__name__}) has no adapters.")
    active: Any = model.active_adapters
    unnamed = "default" if "default" in present else (active() if callable(active) else active)[0]
    missing: list[str] = []
    unexpected: list[str] = []
    saved = {unnamed if name is None else name: path for name, path in _adapter_folders(folder).items()}
    for name, path in saved.items():
        if name not in present:
            unexpected.append(f"the adapter {name!r}")
        elif getattr(model, "_hf_peft_config_loaded", False):
            keys = _load_injected_adapter(model, name, path)
            missing, unexpected = missing + keys.missing, unexpected + keys.unexpected
        else:
            # An adapter that exists keeps its dtype; is_trainable=False would put the whole model into eval mode.
            load: Any = model.load_adapter
            result = load(str(path), name, is_trainable=True, autocast_adapter_dtype=False)
            missing, unexpected = missing + result.missing_keys, unexpected + result.unexpected_keys
    missing += [f"the adapter {name!r}" for name in present if name not in saved]
    return LoadedKeys(missing, unexpected)


def _load_injected_adapter(model: nn.Module, adapter: str, folder: Path) -> LoadedKeys:
    """For a transformers model that was given adapters by `add_adapter`: its `load_adapter` only adds new ones."""
    own = {name: value for name, value in model.state_dict().items() if f".{adapter}." in f"{name}."}
    by_saved_name = {_saved_adapter_name(name, adapter): name for name in own}
    saved = {name.removeprefix("base_model.model."): value for name, value in read_adapter(folder).items()}
    values = {by_saved_name[name]: value for name, value in saved.items() if name in by_saved_name}
    _fill(model, own, values, folder)
    unexpected = [name for name in saved if name not in by_saved_name]
    return LoadedKeys([name for name in own if name not in values], unexpected)


def _saved_adapter_name(name: str, adapter: str) -> str:
    """`query.lora_A.default.weight` is stored as `query.lora_A.weight`; `modules_to_save.default` goes altogether."""
    return f"{name}.".replace(f".modules_to_save.{adapter}.", ".").replace(f".{adapter}.", ".").removesuffix(".")


def _listing(names: list[str], separator: str = ", ") -> str:
    rest = len(names) - _NAMES_IN_A_MESSAGE
    return separator.join(names[:_NAMES_IN_A_MESSAGE]) + (f"{separator}and {rest} more" if rest > 0 else "")
