"""`save_pretrained` with its tensors handed over instead of written: who saves decides when they reach the disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

TakeTensors = Callable[[Mapping[str, torch.Tensor], Path, Mapping[str, str] | None], None]

# Where transformers' models call the writer of safetensors files. It holds the interpreter while it writes, so that no
# thread could do so in the background.
_MODULE, _WRITER = "transformers.modeling_utils", "safe_save_file"
_BARS = "transformers.utils.logging"


@contextmanager
def handing_over_tensors(take: TakeTensors) -> Iterator[None]:
    """Inside, transformers' models give each file of tensors to `take`; whatever else they save is written as ever."""
    module = sys.modules.get(_MODULE)
    original = getattr(module, _WRITER, None)
    if module is None or original is None:
        yield  # no model of transformers, or one of a version that writes in another way
        return

    def hand_over(tensors: dict[str, torch.Tensor], filename: Any, metadata: dict[str, str] | None = None) -> None:
        take(tensors, Path(filename), metadata)

    setattr(module, _WRITER, hand_over)
    try:
        with without_bars():
            yield
    finally:
        setattr(module, _WRITER, original)


@contextmanager
def without_bars() -> Iterator[None]:
    """Inside, transformers draws no progress bars: two of them on a terminal spoil each other's lines."""
    library: Any = sys.modules.get(_BARS)
    if library is None or not library.is_progress_bar_enabled():
        yield
        return
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.enable_progress_bar()
