"""Peaks by the names that drivers give."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kunren.engine.backends.peaks import _PEAKS, number_format, peak_of, peak_operations


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("Tesla V100-SXM2-32GB", None, 15.7),
        ("Tesla T4", None, 8.1),
        ("NVIDIA A10", 125, 31.2),
        ("NVIDIA A10G", None, None),  # another chip
        ("NVIDIA A100-SXM4-80GB", 312, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 19.5),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None, None),
        ("NVIDIA L4", 121, 30.3),
        ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
        ("NVIDIA H100 80GB HBM3", 989, 67),
        ("NVIDIA H100 PCIe", 756, 51),
        ("NVIDIA H100 NVL", 835.5, 60),
        ("NVIDIA H200", 989, 67),
        ("NVIDIA GH200 480GB", 989, 67),
        ("NVIDIA B200", 2250, 75),
        ("AMD Instinct MI250X / MI250", 191.5, 47.9),
        ("AMD Instinct MI300X", 1307, 163.4),
        ("NVIDIA GeForce GTX 1080", None, None),
    ],
)
def test_peaks_of_devices(name: str, bf16: float | None, fp32: float | None) -> None:
    assert peak_of(name, "bf16") == (None if bf16 is None else pytest.approx(bf16 * 1e12))
    assert peak_of(name, "fp32") == (None if fp32 is None else pytest.approx(fp32 * 1e12))


def test_narrower_formats_are_never_slower() -> None:
    for peak in _PEAKS.values():
        known = [value for value in (peak.fp32, peak.tf32, peak.bf16) if value is not None]
        assert known == sorted(known)
        assert peak.bf16 in (None, peak.fp16)


def test_a_processor_has_no_known_peak() -> None:
    assert peak_operations(torch.device("cpu"), "fp32") is None


def test_the_format_of_the_matrix_products() -> None:
    model = nn.Linear(2, 2)
    assert number_format(model, torch.bfloat16) == "bf16"
    assert number_format(model, torch.float16) == "fp16"
    assert number_format(model, None) == "fp32"
    assert number_format(nn.Identity(), None) == "fp32"
    assert number_format(model.bfloat16(), None) == "bf16"
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        assert number_format(nn.Linear(2, 2), None) == "tf32"
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
