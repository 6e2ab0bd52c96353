"""Values of arguments as strings, numbers, lists and dicts. Loads no torch."""

from __future__ import annotations

import sys
from enum import Enum
from typing import Any

# Tokens of a vocabulary, which libraries have as arguments; every other name of this ending is a secret.
_VOCABULARY_TOKENS = frozenset(
    f"{kind}_token"
    for kind in ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "image", "audio", "video", "response")
)


def plain(value: Any) -> Any:
    """`value` with enums, dtypes and settings objects replaced by strings and dicts."""
    if isinstance(value, Enum):
        return value.value
    if (torch := sys.modules.get("torch")) is not None and isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    for method in ("to_dict", "to_json"):
        if hasattr(value, method) and not isinstance(value, type):
            return getattr(value, method)()
    return value


def is_secret(name: str, value: Any) -> bool:
    """Whether the argument of that name holds what nobody should read."""
    return value is not None and name.endswith("_token") and name not in _VOCABULARY_TOKENS
