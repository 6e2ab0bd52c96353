"""How things stand while an evaluation is made, told and logged, for whoever looks: overrides, callbacks, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kunren.loop.evaluate import in_eval_mode
from kunren.model.features.mixed_precision import in_mixed_precision


@contextmanager
def evaluating(trainer: Any, loader: Any) -> Iterator[None]:
    """Inside, callbacks see this loader, and a model in evaluation mode; then it is let go of, data and workers too."""
    trainer.callback_handler.eval_dataloader = loader
    try:
        with in_eval_mode(trainer.model), in_mixed_precision(trainer):
            yield
    finally:
        trainer.callback_handler.eval_dataloader = None
