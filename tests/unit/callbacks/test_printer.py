"""The printer prints what transformers' printer prints, once a machine, and changes nothing."""

from __future__ import annotations

import ast
import io
import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import kunren
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import PrinterCallback

CONTROL = TrainerControl()
LOGS: list[dict[str, Any]] = [
    {"loss": 0.123456, "grad_norm": 12345.678, "learning_rate": 5e-05, "epoch": 0.5, "total_flos": 3.0},
    {"eval_loss": float("nan"), "eval_accuracy": 1.0, "eval_runtime": 1.2345, "eval_n": 3, "epoch": 1},
    {"train_runtime": 1e7, "train_loss": -1e-9, "text": "x" * 200, "flag": True, "nothing": None},
    {"正解率": np.float64(0.123456), "single": np.float32(0.5), "list": [0.123456]},
    {},
]


@pytest.mark.parametrize("logs", LOGS)
def test_prints_what_transformers_prints(capsys: pytest.CaptureFixture[str], logs: dict[str, Any]) -> None:
    theirs = pytest.importorskip("transformers.trainer_callback")
    theirs.PrinterCallback().on_log(None, theirs.TrainerState(), theirs.TrainerControl(), logs=dict(logs))
    expected, before = capsys.readouterr(), dict(logs)
    PrinterCallback().on_log(None, TrainerState(), CONTROL, logs=logs)
    assert capsys.readouterr() == expected
    assert list(logs.items()) == list(before.items())


@pytest.mark.parametrize("on_each_node", [True, False])
@pytest.mark.parametrize(("local", "world"), [(True, True), (True, False), (False, False)])
def test_once_a_machine_or_once_in_all(
    capsys: pytest.CaptureFixture[str], local: bool, world: bool, on_each_node: bool
) -> None:
    state = TrainerState(is_local_process_zero=local, is_world_process_zero=world)
    arguments = SimpleNamespace(log_on_each_node=on_each_node)
    PrinterCallback().on_log(arguments, state, CONTROL, logs={"loss": 1.0})
    PrinterCallback().on_log(arguments, state, CONTROL)
    assert capsys.readouterr().out == ("{'loss': '1'}\n" if (local if on_each_node else world) else "")


def test_an_encoding_without_the_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    PrinterCallback().on_log(None, TrainerState(), CONTROL, logs={"損失": 1.0})
    assert written.getvalue() == b"{'\\u640d\\u5931': '1'}\n"


def test_a_closed_output_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    printer = PrinterCallback()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            printer.on_log(None, TrainerState(), CONTROL, logs={"loss": 1.0})
    assert [record.getMessage() for record in caplog.records] == [
        "Logs cannot be printed (ValueError: I/O operation on closed file); the run goes on."
    ]
    monkeypatch.setattr(sys, "stdout", None)
    PrinterCallback().on_log(None, TrainerState(), CONTROL, logs={"loss": 1.0})  # there never was one


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.inner(x).squeeze(-1)
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


def test_a_training_prints_what_one_with_transformers_prints(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = [{"x": torch.full((4,), float(i)), "labels": torch.tensor(1.0)} for i in range(8)]
    printed = []
    for package in (pytest.importorskip("transformers"), kunren):
        torch.manual_seed(0)
        arguments = package.TrainingArguments(
            str(tmp_path / package.__name__), disable_tqdm=True, report_to="none", use_cpu=True, logging_steps=2,
            eval_strategy="epoch", per_device_train_batch_size=2, num_train_epochs=2, save_strategy="no",
        )  # fmt: skip
        package.Trainer(Model(), arguments, train_dataset=rows, eval_dataset=rows).train()
        found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        printed.append([
            {name: "" if name.endswith(("_runtime", "_per_second")) else value for name, value in entry.items()}
            for entry in map(ast.literal_eval, found)
        ])  # fmt: skip
    assert len(printed[0]) == 7
    assert [list(entry) for entry in printed[1]] == [list(entry) for entry in printed[0]]
    assert printed[1] == printed[0]
