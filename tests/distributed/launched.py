"""A user's script that goes on by itself where it was. Arguments: the output folder, and what happens on the way."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from kunren import Trainer, TrainerCallback, TrainingArguments

FOLDER, FATE = Path(sys.argv[1]), sys.argv[2]
RANK, TOGETHER = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
LIFE = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": functional.mse_loss(self.layers(x)[:, 0], labels)}


class Fate(TrainerCallback):
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        (FOLDER / f"began-{RANK}-{LIFE}-at-{state.global_step}").touch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if FATE == "is slow":
            (FOLDER / f"pid-{RANK}").write_text(str(os.getpid()))
            time.sleep(0.1)
        if RANK != TOGETHER - 1:
            return
        if FATE == "is killed" and LIFE == 0 and state.global_step == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        if FATE == "waits" and state.global_step == 7 and not (FOLDER / "waits").exists():
            (FOLDER / "waits").write_text(str(os.getpid()))
            time.sleep(120)
        if FATE == "exits" and state.global_step == 3:
            sys.exit(7)


torch.manual_seed(0)
inputs = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
arguments = TrainingArguments(
    output_dir=str(FOLDER),
    per_device_train_batch_size=6 // TOGETHER,
    max_steps=400 if FATE == "is slow" else 12,
    learning_rate=0.05,
    logging_steps=4,
    save_steps=200 if FATE == "is slow" else 5,
    resume_from_checkpoint="auto",
    use_cpu=True,
    run_report=False,
    ddp_find_unused_parameters=False,
    ddp_timeout=int(os.environ.get("SECONDS_TO_WAIT", 1800)),
)
trainer = Trainer(Net(), arguments, train_dataset=[{"x": x, "labels": x.sum() * 2} for x in inputs], callbacks=[Fate()])
trainer.train()
if trainer.is_world_process_zero():
    torch.save((trainer.state.global_step, trainer.model.state_dict()), FOLDER / "end.pt")
