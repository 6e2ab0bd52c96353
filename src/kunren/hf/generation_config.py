"""Settings of generation: an object of transformers, from an object, a dict, a file, a folder or a model's hub name."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.base.names import closest_name

_FILE = "generation_config.json"


def load_generation_config(given: Any) -> Any:
    """A `transformers.GenerationConfig` of its own, checked. ValueError or OSError for what is none."""
    from transformers import GenerationConfig

    if isinstance(given, GenerationConfig):
        config = copy.deepcopy(given)
    elif isinstance(given, Mapping):
        _refuse_typos(given, vars(GenerationConfig()))
        config = GenerationConfig(**given)
    elif isinstance(given, (str, os.PathLike)):
        config = _read(GenerationConfig, given)
    else:
        raise TypeError(
            f"generation_config has to be a GenerationConfig, a dict, a path or the hub name of a model, not "
            f"{type(given).__name__}."
        )
    try:
        config.validate(strict=True)
    except ValueError as problem:
        raise ValueError(
            f"generation_config: {problem} Mend that before you train: such settings cannot be saved."
        ) from None
    return config


def generation_config_of(model_config: Any) -> Any:
    """What a model generates by whose own settings of generation are None."""
    from transformers import GenerationConfig

    return GenerationConfig.from_model_config(model_config)


def _refuse_typos(given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """transformers keeps any name, for models with settings of their own; one like a known name is a typing error."""
    for name in given:
        nearest = None if name in known else closest_name(name, [one for one in known if not one.startswith("_")])
        if nearest is not None:
            raise TypeError(f"generation_config: {name!r} is no setting of generation. Did you mean {nearest!r}?")


def _read(kind: Any, given: Any) -> Any:
    path = Path(given)
    if path.is_file():
        return kind.from_pretrained(path.parent, path.name)
    if path.is_dir():
        if not (path / _FILE).is_file():
            there = ", ".join(sorted(one.name for one in path.glob("*.json"))) or "no JSON file"
            raise OSError(f"generation_config={str(given)!r}: the folder holds {there}, and no {_FILE}.")
        return kind.from_pretrained(path)
    text = os.fspath(given)
    is_hub_name = text.count("/") <= 1 and not text.startswith((".", "/", "~")) and not text.endswith(".json")
    if not is_hub_name:
        raise OSError(
            f"generation_config={text!r}: there is no such file or folder (looked for {path.absolute()}). Give the "
            f"folder of a model, its {_FILE}, a GenerationConfig or a dict."
        )
    try:
        return kind.from_pretrained(text)
    except OSError as problem:
        raise OSError(
            f"generation_config={text!r}: it is no file or folder here, and no model on the hub that can be reached. "
            "Give the folder of a model, a GenerationConfig or a dict."
        ) from problem
