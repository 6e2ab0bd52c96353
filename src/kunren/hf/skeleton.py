"""A model of transformers without its weights: names, shapes and classes of its modules, in no memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn


def skeleton_of(config: Path) -> nn.Module:
    """The model that a `config.json` describes, on the meta device; ImportError without transformers."""
    try:
        import transformers
    except ImportError as error:
        raise ImportError(f"{config} is read with transformers, which is missing: pip install kunren[hf]") from error
    settings = transformers.AutoConfig.from_pretrained(str(config))
    named = next(iter(settings.architectures or []), "")
    kind = getattr(transformers, named, None)
    with torch.device("meta"):
        model: nn.Module = kind(settings) if kind is not None else transformers.AutoModel.from_config(settings)
    return model
