"""What stands beside merged weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint.spread.merging import _tell_dtype


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2"}, {"model_type": "gpt2", "dtype": "float32"}),
        ({"model_type": "gpt2", "dtype": "bfloat16"}, {"model_type": "gpt2", "dtype": "float32"}),  # DeepSpeed's bf16
        ({"model_type": "gpt2", "torch_dtype": "float16"}, {"model_type": "gpt2", "torch_dtype": "float32"}),
        ({"width": 3}, {"width": 3}),  # of a module that is none of transformers
    ],
)
def test_the_config_names_the_type_of_the_weights(
    tmp_path: Path, config: dict[str, Any], expected: dict[str, Any]
) -> None:
    write_json(tmp_path / "config.json", config)
    save_file({"w": torch.ones(2), "n": torch.ones(1, dtype=torch.int64)}, tmp_path / "model.safetensors")
    _tell_dtype(tmp_path)
    assert read_json(tmp_path / "config.json") == expected


def test_weights_of_several_types_leave_the_config_as_it_is(tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"model_type": "gpt2", "dtype": "bfloat16"})
    save_file({"w": torch.ones(2), "h": torch.ones(1).half()}, tmp_path / "model.safetensors")
    _tell_dtype(tmp_path)
    assert read_json(tmp_path / "config.json")["dtype"] == "bfloat16"
