"""A user's script, the same in one process and under torchrun. Arguments: the output folder, and what goes wrong."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from kunren import Trainer, TrainerCallback, TrainingArguments

FOLDER, FATE = Path(sys.argv[1]), sys.argv[2]
RANK, TOGETHER = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.mse_loss(x @ self.weight, labels)}


class Fate(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5 and RANK == 1 and FATE == "raises":
            raise ArithmeticError("of the second process")
        if state.global_step == 5 and RANK == 1 and FATE == "is asked to stop":
            os.kill(os.getpid(), signal.SIGTERM)


generator = torch.Generator().manual_seed(0)
inputs = torch.randn(40, 3, generator=generator)
rows = [{"x": x, "labels": x.sum() * 2} for x in inputs]
arguments = TrainingArguments(
    output_dir=str(FOLDER),
    per_device_train_batch_size=8 // TOGETHER,
    num_train_epochs=3,
    logging_steps=2,
    save_steps=10,
    eval_strategy="epoch",
    learning_rate=0.01,
    use_cpu=True,
    seed=4,
)
trainer = Trainer(Line(), arguments, train_dataset=rows, eval_dataset=rows[:7], callbacks=[Fate()])
trainer.train()
trainer.save_model(str(FOLDER / "last"))
if trainer.is_world_process_zero():
    found = {"weight": trainer.model.weight.tolist(), "losses": [log.get("loss") for log in trainer.state.log_history]}
    (FOLDER / "found.json").write_text(json.dumps(found))
