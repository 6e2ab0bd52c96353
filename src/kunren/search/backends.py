"""The packages that can suggest hyperparameters, and which of them a search uses."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any

from kunren.arguments.choices import NameEnum

logger = logging.getLogger(__name__)


class HPSearchBackend(NameEnum):
    OPTUNA = "optuna"
    RAY = "ray"
    WANDB = "wandb"


_PIP_NAMES = {HPSearchBackend.OPTUNA: "optuna", HPSearchBackend.RAY: "'ray[tune]'", HPSearchBackend.WANDB: "wandb"}
RUNNERS = {
    HPSearchBackend.OPTUNA: "kunren.search.with_optuna:search",
    HPSearchBackend.RAY: "kunren.search.with_ray:search",
    HPSearchBackend.WANDB: "kunren.search.with_wandb:search",
}
SPACES = {
    HPSearchBackend.OPTUNA: "kunren.search.spaces:default_hp_space_optuna",
    HPSearchBackend.RAY: "kunren.search.spaces:default_hp_space_ray",
    HPSearchBackend.WANDB: "kunren.search.spaces:default_hp_space_wandb",
}


def is_available(backend: HPSearchBackend) -> bool:
    """Whether the package is installed."""
    found = importlib.util.find_spec(backend.value)
    return found is not None and found.origin is not None  # a folder of that name beside the script is no package


def chosen_backend(backend: Any) -> HPSearchBackend:
    """The backend of that name, or the first that is installed; RuntimeError for one that is not."""
    name = default_hp_search_backend() if backend is None else getattr(backend, "value", backend)
    chosen = HPSearchBackend(name)
    if not is_available(chosen):
        raise RuntimeError(
            f"backend={chosen.value!r} needs a package that is not installed: run `pip install {_PIP_NAMES[chosen]}`."
        )
    return chosen


def default_hp_search_backend() -> str:
    """The name of the first backend that is installed: optuna, then ray, then wandb."""
    found = next(filter(is_available, HPSearchBackend), None)
    if found is None:
        raise RuntimeError(
            "hyperparameter_search needs one of these packages, and none is installed: "
            + ", ".join(f"`pip install {name}`" for name in _PIP_NAMES.values())
        )
    logger.info("The search uses %s.", found)
    return str(found.value)
