"""Names in the headers of safetensors files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kunren.checkpoint.formats.safetensors_file import dtypes


@pytest.mark.parametrize(
    "name",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "bool",
        "complex64",
        "float8_e4m3fn",
        "float8_e5m2",
    ],
)
def test_types_have_the_names_of_torch(tmp_path: Path, name: str) -> None:
    save_file({"t": torch.zeros(2, dtype=getattr(torch, name))}, tmp_path / "t.safetensors")
    assert dtypes(tmp_path / "t.safetensors") == {name}
