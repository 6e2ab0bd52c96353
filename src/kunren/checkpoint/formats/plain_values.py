"""Values as files of `torch.save` may hold them that are read without running code."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy
import torch

logger = logging.getLogger(__name__)


def plain(value: Any, where: str, unknown: Callable[[Any], Any] | None = None) -> Any:
    """`value` in the types that `torch.load(weights_only=True)` reads: numpy numbers and enums become plain ones.

    What has no plain form goes through `unknown`; without it, it is kept and reported: it would not be read back.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().cpu() if value.device.type == "xla" else value
    if (
        value is None
        or isinstance(value, (torch.dtype, torch.device))
        or type(value) in (bool, int, float, complex, str, bytes)
    ):
        return value
    if isinstance(value, Enum):
        return plain(value.value, where, unknown)
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value.copy()) if value.dtype != object else plain(value.tolist(), where, unknown)
    if isinstance(value, Mapping):
        items = {plain(key, where, unknown): plain(item, f"{where}: {key}", unknown) for key, item in value.items()}
        return Counter(items) if isinstance(value, Counter) else items  # MultiStepLR counts its milestones
    if isinstance(value, (list, tuple, set, frozenset)):
        kind = list if isinstance(value, list) else tuple if isinstance(value, tuple) else set
        return kind(plain(item, where, unknown) for item in value)
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    if unknown is not None:
        return unknown(value)
    logger.warning("%s is a %s, which cannot be read back without running code.", where, type(value).__qualname__)
    return value
