"""The attention of transformers' models, replaced by a function of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

_FIELD = "_attn_implementation_internal"  # what attention layers look up at every call; never written to config.json


def register_attention(name: str, function: Callable[..., Any]) -> None:
    """Make `function` known to transformers under `name`. For a name without a mask function no mask is built."""
    from transformers import AttentionInterface

    AttentionInterface.register(name, function)


def attention_choices(model: nn.Module) -> list[tuple[Any, str]]:
    """Each configuration of the model and its parts, with the name of the attention that it asks for."""
    found = {id(config): config for part in model.modules() if hasattr(config := getattr(part, "config", None), _FIELD)}
    return [(config, getattr(config, _FIELD)) for config in found.values()]


def choose_attention(config: Any, name: str) -> None:
    """Let every layer that reads `config` use the attention of that name from its next call on."""
    setattr(config, _FIELD, name)
