"""`args.use_liger_kernel`: a model's norms, activations and loss by the Triton kernels of the package liger-kernel."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from kunren.model.signature import base_of, is_pretrained

logger = logging.getLogger(__name__)

_DEVICES = ("cuda", "xpu", "npu")  # cuda is also the name of AMD's


def use_liger_kernels(model: nn.Module, device: torch.device, config: Mapping[str, Any] | None) -> None:
    """Put the kernels that `config` names, or the package's choice, into a model of transformers, for good.

    ImportError without the package, ValueError on a device that Triton does not compile for.
    """
    if device.type not in _DEVICES:
        raise ValueError(
            f"use_liger_kernel=True needs a GPU, as its kernels are compiled by Triton, and this run is on the device "
            f"{device.type!r}: set use_liger_kernel=False here. The numbers are the same without."
        )
    try:
        package = importlib.import_module("liger_kernel.transformers")
    except ImportError as error:
        raise ImportError(
            f"use_liger_kernel=True needs the package liger-kernel, which cannot be imported ({error}): "
            "pip install liger-kernel, or set use_liger_kernel=False."
        ) from error
    base = base_of(model)
    if not is_pretrained(base):
        logger.warning("use_liger_kernel=True changes nothing: %s is no model of transformers.", type(base).__name__)
        return
    package._apply_liger_kernel_to_instance(model=base, **(config or {}))
