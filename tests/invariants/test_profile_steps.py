"""`profile_steps` leaves a trace of these steps, and the training as it is."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from parity import rows
from parity.models import Points, flat

import kunren
from invariants.runs import arguments, losses


def trained(folder: Path, **settings: str) -> kunren.Trainer:
    args = arguments(folder, run_report=False, **settings)
    trainer = kunren.Trainer(model=Points(0.2), args=args, train_dataset=rows.points(24))
    trainer.train()
    return trainer


def test_a_trace_and_the_same_training(tmp_path: Path) -> None:
    profiled, plain = trained(tmp_path / "a", profile_steps="3:4"), trained(tmp_path / "b")
    trace = json.loads((tmp_path / "a" / "profile" / "steps-3-4.json").read_text(encoding="utf-8"))
    names = [event.get("name", "") for event in trace["traceEvents"]]
    assert sum(name == "aten::linear" for name in names) == 4  # two layers, two steps
    assert torch.equal(flat(profiled.model), flat(plain.model)) and losses(profiled) == losses(plain)
    assert not any(type(one).__name__ == "ProfilerCallback" for one in profiled.callback_handler.callbacks)
