"""Which number format the forward pass runs in, and whether this device can."""

from __future__ import annotations

from typing import Any

import torch


def autocast_dtype(args: Any, device: torch.device) -> torch.dtype | None:
    """The autocast type, or None for full precision; ValueError where the device cannot run it."""
    if args.bf16:
        if device.type == "cuda" and not torch.cuda.is_bf16_supported():
            name = torch.cuda.get_device_name(device)
            raise ValueError(f"bf16=True, but {name} cannot compute in bfloat16: set fp16=True, or neither.")
        return torch.bfloat16
    if args.fp16:
        if device.type == "mps":
            raise ValueError("fp16=True does not train on an mps device: set bf16=True, or neither.")
        return torch.float16
    return None


def allow_tf32(allowed: bool) -> None:
    """Let CUDA matrix products round their inputs to TensorFloat-32; off means full float32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed
