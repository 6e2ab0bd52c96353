"""What devices can do at best, by name: what the utilisation of a run is a share of."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import nn

_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class Peak(NamedTuple):
    """TFLOP/s of matrix products without sparsity, sums kept in 32 bits; None where there is no such unit."""

    bf16: float | None
    fp16: float | None
    tf32: float | None
    fp32: float


# By what the driver calls the device, the first that matches. From the makers' data sheets, their figures "with
# sparsity" halved: NVIDIA's of V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H200, GH200 and HGX B200; NVIDIA's
# papers on the GA102, Ada and RTX Blackwell architectures for GeForce and RTX cards; AMD's of MI250X, MI300X, MI325X.
# Laptops' chips and other variants under a longer name have lower peaks, so the short names end the pattern.
_PEAKS = {
    r"V100S-PCIE": Peak(None, 130, None, 16.4),
    r"V100-SXM": Peak(None, 125, None, 15.7),
    r"V100-PCIE": Peak(None, 112, None, 14),
    r"\bT4$": Peak(None, 65, None, 8.1),
    r"\bA10$": Peak(125, 125, 62.5, 31.2),
    r"\bA30$": Peak(165, 165, 82, 10.3),
    r"\bA40$": Peak(149.7, 149.7, 74.8, 37.4),
    r"\bA100\b": Peak(312, 312, 156, 19.5),
    r"RTX A6000$": Peak(154.8, 154.8, 77.4, 38.7),
    r"RTX 3090$": Peak(71, 71, 35.6, 35.6),
    r"RTX 4090$": Peak(165.2, 165.2, 82.6, 82.6),
    r"RTX 5090$": Peak(209.5, 209.5, 104.8, 104.8),
    r"\bL4$": Peak(121, 121, 60, 30.3),
    r"\bL40$": Peak(181, 181, 90.5, 90.5),
    r"\bL40S$": Peak(362, 362, 183, 91.6),
    r"\bH100 NVL$|\bH200 NVL$": Peak(835.5, 835.5, 417.5, 60),
    r"\bH100 PCIe$": Peak(756, 756, 378, 51),
    r"\bH100\b|\bH200\b|\bGH200\b": Peak(989, 989, 494, 67),
    r"\bB200\b": Peak(2250, 2250, 1125, 75),
    # Each of the two halves of a card is a device of its own.
    r"\bMI250X\b": Peak(191.5, 191.5, None, 47.9),
    r"\bMI300X\b|\bMI325X\b": Peak(1307, 1307, 653.7, 163.4),
}


def peak_operations(device: torch.device, dtype_name: str) -> float | None:
    """Floating-point operations a second in "bf16", "fp16", "tf32" or "fp32"; None where they are not known."""
    return peak_of(torch.cuda.get_device_name(device), dtype_name) if device.type == "cuda" else None


def peak_of(device_name: str, dtype_name: str) -> float | None:
    """The same by the name that the driver gives the device. A slice of one (MIG) has a peak of its own: not known."""
    if " MIG " in device_name:
        return None
    peak = next((peak for pattern, peak in _PEAKS.items() if re.search(pattern, device_name)), None)
    tera: float | None = getattr(peak, dtype_name, None)
    return None if tera is None else tera * 1e12


def number_format(model: nn.Module, autocast: torch.dtype | None) -> str:
    """What a run's matrix products are computed in: "bf16", "fp16", "tf32" or "fp32"."""
    weights = next((weight.dtype for weight in model.parameters() if weight.is_floating_point()), torch.float32)
    if name := _NAMES.get(autocast or weights):
        return name
    products = torch.backends.cuda.matmul
    # From torch 2.9 on, asking for the old name is an error where the new one was set.
    is_tf32 = products.fp32_precision == "tf32" if hasattr(products, "fp32_precision") else products.allow_tf32
    return "tf32" if is_tf32 else "fp32"
