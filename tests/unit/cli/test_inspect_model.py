"""`kunren inspect`: the groups of a model folder, of a configuration, of a checkpoint, and of plain files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models
from safetensors.torch import save_file
from torch import nn

import kunren
from kunren.checkpoint import parts
from kunren.cli.main import main


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    models.bert(num_hidden_layers=2).save_pretrained(folder)
    return folder


def answer(capsys: pytest.CaptureFixture[str], *arguments: Any) -> list[list[str]]:
    assert main(["inspect", *map(str, arguments)]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: Any) -> str:
    assert main(["inspect", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_the_groups_are_those_of_a_training(bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = [{"pattern": "classifier", "learning_rate": 1e-3}]
    args = kunren.TrainingArguments(
        "out", use_cpu=True, weight_decay=0.01, layer_decay=0.5, learning_rate=2e-3, parameter_groups=rules
    )
    expected = [
        (sum(parameter.numel() for parameter in group["params"]), group["lr"], group["weight_decay"])
        for group in kunren.Trainer(models.bert(num_hidden_layers=2), args).create_optimizer().param_groups
    ]
    options = ["--weight_decay=0.01", "--layer-decay=0.5", "--learning_rate", "2e-3"]
    for path in (bert, bert / "config.json"):
        table = answer(capsys, path, *options, "--parameter_groups", json.dumps(rules))
        assert table[0] == ["group", "parameters", "tensors", "weights", "rate", "decay"]
        found = [(int(row[-3].replace(",", "")), float(row[-2]), float(row[-1])) for row in table[1:]]
        assert found == expected
    names = answer(capsys, bert, "--names")
    assert len(names) == 1 + len(list(models.bert(num_hidden_layers=2).parameters()))
    assert ["bert.encoder.layer.1.attention.self.query.bias"] in names


def test_arguments_come_from_the_checkpoint_then_from_a_file_then_from_the_line(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_bytes((bert / "config.json").read_bytes())
    saved = kunren.TrainingArguments("out", use_cpu=True, learning_rate=0.25, weight_decay=0.5)
    parts.save_training_args(saved.to_dict(), tmp_path)
    assert [row[-2:] for row in answer(capsys, tmp_path)[1:]] == [["0.25", "0.5"], ["0.25", "0"]]
    (tmp_path / "run.yaml").write_text("model: somewhere\nlearning_rate: 1e-3\n")
    (tmp_path / "run.json").write_text('{"learning_rate": 0.001}')
    for name in ("run.yaml", "run.json"):
        table = answer(capsys, tmp_path, "--args", tmp_path / name, "--weight-decay", 0)
        assert [row[-2:] for row in table[1:]] == [["0.001", "0"]]
    (tmp_path / "run.json").write_text("[]")
    assert "no mapping" in refusal(capsys, tmp_path, "--args", tmp_path / "run.json")


def test_plain_files_are_read_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Sequential(nn.Linear(4, 2)))
    save_file({**model.state_dict(), "kinds": torch.arange(3)}, tmp_path / "model.safetensors")
    table = answer(capsys, tmp_path, "--weight_decay", 0.1, "--names")
    assert [row[1] if len(row) > 1 else row[0] for row in table[1:]] == [
        "0.weight", "2.0.weight", "0.bias", "1.bias", "1.weight", "2.0.bias",
    ]  # fmt: skip
    assert [row[-1] for row in table if len(row) > 2] == ["decay", "0.1", "0"]


def test_what_cannot_be_read_is_told(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "does not exist" in refusal(capsys, tmp_path / "nowhere")
    assert "neither a config.json nor safetensors" in refusal(capsys, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "describe_parameter_groups" in refusal(capsys, tmp_path)
    rules = '[{"pattern": "clasifier", "learning_rate": 1}]'
    assert "nearest are: classifier.weight" in refusal(capsys, bert, "--parameter_groups", rules)
    assert "Did you mean 'sgd'" in refusal(capsys, bert, "--optim", "sgdd")
