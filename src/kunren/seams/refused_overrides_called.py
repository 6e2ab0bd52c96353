"""What copies of transformers' own methods call on the Trainer: overriding these is refused, calling them works."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from kunren.seams.data import DataSeams

logger = logging.getLogger(__name__)


class _NoMemoryTracker:
    """Measures nothing, as transformers' does by default."""

    def start(self) -> None:
        """Nothing begins."""

    def stop_and_update_metrics(self, metrics: dict[str, Any] | None = None) -> None:
        """Nothing is added."""


class CalledByCopies(DataSeams):
    """Overrides of `evaluate`, `evaluation_loop` or `prediction_step` often begin as a copy of transformers' code."""

    is_fsdp_xla_v1_enabled = is_fsdp_xla_v2_enabled = False
    _memory_tracker = _NoMemoryTracker()

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """The model as it is: where it has to be wrapped, the engine has done so."""
        return model

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Move a model; the Trainer's own is there."""
        model.to(device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | None:
        """The labels of the batches, in a training those of all processes; None where there are none."""
        count = torch.as_tensor(sum(float(self.counted(batch)) for batch in batch_samples))
        if self.model.training and self.engine.world_size > 1:
            count = self.engine.sum(count)
        return count.to(device) if count else None

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Tell of weights that a checkpoint lacks or the model has no place for."""
        for what, names in (
            ("lacks", load_result.missing_keys),
            ("has more than the model:", load_result.unexpected_keys),
        ):
            if names:
                logger.warning("The checkpoint %s %s.", what, ", ".join(names))
