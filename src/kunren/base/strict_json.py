"""JSON that is JSON: arrays and numpy values become lists and numbers, what is not finite becomes null.

A metric may be anything a user returns. Whatever it is, writing it must never end a run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import torch


def to_jsonable(value: Any) -> Any:
    """The nearest thing to `value` that strict JSON can hold; what has no counterpart becomes its `repr`."""
    if value is None or isinstance(value, (bool, str)):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return to_jsonable(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, torch.Tensor):
        return to_jsonable(value.detach().cpu().tolist())
    if isinstance(value, (numpy.ndarray, numpy.generic)):
        return to_jsonable(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_jsonable(item) for item in value]
    return repr(value)


def dumps(value: Any) -> str:
    """Strict, indented JSON text with sorted keys."""
    return json.dumps(to_jsonable(value), indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as strict JSON; see `to_jsonable` for what happens to values that JSON does not have."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(dumps(value), encoding="utf-8")
        os.replace(temporary, path)  # a full disk leaves the file that was there
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))
