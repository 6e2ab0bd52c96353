"""Weights that the optimizer trains and the model does not hold, those of a loss for example: a file of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from kunren.checkpoint.formats import torch_file
from kunren.checkpoint.layout import WEIGHTS_BESIDE_MODEL_NAME as NAME


def save(weights: Sequence[torch.Tensor], folder: Path) -> None:
    """Write them, in the order in which the optimizer has them; no file where there are none."""
    if weights:
        torch_file.save([weight.detach().cpu() for weight in weights], folder / NAME)


def load(weights: Sequence[torch.Tensor], folder: Path) -> None:
    """Read them into `weights`; ValueError where these are others. A checkpoint without the file changes nothing."""
    path = folder / NAME
    if not (weights and path.is_file()):
        return
    saved = torch_file.load_plain(path)
    there, here = [tuple(one.shape) for one in saved], [tuple(one.shape) for one in weights]
    if there != here:
        raise ValueError(
            f"{path} holds weights of shapes {there}, and the optimizer trains weights beside the model of shapes "
            f"{here}: resume with the loss that the checkpoint was made with."
        )
    with torch.no_grad():
        for weight, value in zip(weights, saved, strict=True):
            weight.copy_(value)
