"""Arguments as dicts and text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from kunren.arguments import TrainingArguments


@dataclass
class WithMore(TrainingArguments):
    eos_token: str = "</s>"
    service_token: str | None = None
    model_dtype: Any = torch.bfloat16


def test_to_dict_is_plain() -> None:
    values = WithMore("out", service_token="secret", debug="underflow_overflow", accelerator_config={}).to_dict()
    assert values["eval_strategy"] == "no"
    assert type(values["eval_strategy"]) is str
    assert values["debug"] == ["underflow_overflow"]
    assert values["model_dtype"] == "bfloat16"
    assert values["accelerator_config"]["even_batches"] is True
    assert (values["eos_token"], values["service_token"]) == ("</s>", "<SERVICE_TOKEN>")
    assert json.loads(WithMore("out").to_json_string())["output_dir"] == "out"


def test_sanitized_dict_has_scalars_only() -> None:
    values = TrainingArguments("out", use_cpu=True, per_device_train_batch_size=3).to_sanitized_dict()
    assert {type(value) for value in values.values()} <= {bool, int, float, str}
    assert (values["train_batch_size"], values["eval_batch_size"], values["report_to"]) == (3, 8, "[]")


def test_text_has_a_line_for_each_argument() -> None:
    args = TrainingArguments("out")
    text = str(args)
    assert text == repr(args)
    assert text.startswith("TrainingArguments(\n    accelerator_config=")
    assert len(text.splitlines()) == len(args.to_dict()) + 2
