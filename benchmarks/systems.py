"""One and the same training run in a hand-written PyTorch loop, kunren, transformers' Trainer and Lightning's."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

LOOP = "hand-written loop"
LEARNING_RATE = 1e-3
MAX_GRADIENT_NORM = 1.0


class Rows(Dataset[dict[str, Tensor]]):
    """A map-style dataset that takes a reading when two of its rows are fetched.

    The readings are what is measured: they bound the same number of steps in every system, leave set-up and
    shut-down out, and ask nothing of the system. One that fetches ahead does so at both.
    """

    def __init__(self, columns: dict[str, Tensor], between: tuple[int, int], read: Callable[[], float]) -> None:
        self.columns = columns
        self.between = between
        self.read = read
        self.readings: list[float] = []

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index in self.between:
            self.readings.append(self.read())
        return {name: values[index] for name, values in self.columns.items()}


@dataclass
class Task:
    """A model, data and a number of optimizer steps; some before them and one after them are not measured."""

    make_model: Callable[[], nn.Module]
    make_columns: Callable[[int], dict[str, Tensor]]
    batch_size: int
    measured_steps: int
    accumulation: int = 1
    read: Callable[[], float] = field(default=float)

    @property
    def first_measured_step(self) -> int:
        return 3 + self.measured_steps // 10

    @property
    def steps(self) -> int:
        return self.first_measured_step + self.measured_steps + 1

    def model_and_rows(self) -> tuple[nn.Module, Rows]:
        torch.manual_seed(0)
        rows_per_step = self.batch_size * self.accumulation
        first = self.first_measured_step * rows_per_step
        bounds = (first, first + self.measured_steps * rows_per_step)
        return self.make_model(), Rows(self.make_columns(self.steps * rows_per_step), bounds, self.read)


@dataclass(frozen=True)
class Outcome:
    per_step: float
    parameters: Tensor


def run(system: str, task: Task) -> Outcome:
    """Train with a system; return what a step cost by the task's readings, and the parameters after the last one."""
    model, rows = task.model_and_rows()
    with tempfile.TemporaryDirectory() as folder, quiet():
        SYSTEMS[system](model, rows, task, folder)
    first, last = rows.readings
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return Outcome((last - first) / task.measured_steps, parameters)


def train_by_hand(model: nn.Module, rows: Rows, task: Task, folder: str) -> Tensor:
    optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / task.steps))
    total_loss = torch.zeros(())
    model.train()
    for number, batch in enumerate(DataLoader(rows, batch_size=task.batch_size), start=1):
        loss = model(**batch)["loss"]
        if task.accumulation > 1:
            loss = loss / task.accumulation
        loss.backward()
        total_loss += loss.detach()
        if number % task.accumulation == 0:
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return total_loss


def train_with_trainer(package: str) -> Callable[[nn.Module, Rows, Task, str], None]:
    """transformers' Trainer or kunren's, which are written alike."""

    def train(model: nn.Module, rows: Rows, task: Task, folder: str) -> None:
        library = importlib.import_module(package)
        arguments = library.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.batch_size,
            gradient_accumulation_steps=task.accumulation,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            max_grad_norm=MAX_GRADIENT_NORM,
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        library.Trainer(model=model, args=arguments, train_dataset=rows).train()

    return train


def train_with_lightning(model: nn.Module, rows: Rows, task: Task, folder: str) -> None:
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
            loss: Tensor = self.model(**batch)["loss"]
            return loss

        def configure_optimizers(self) -> dict[str, Any]:
            optimizer = AdamW(self.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
            scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / task.steps))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        accumulate_grad_batches=task.accumulation,
        gradient_clip_val=MAX_GRADIENT_NORM,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module().train(), DataLoader(rows, batch_size=task.batch_size))


SYSTEMS: dict[str, Callable[[nn.Module, Rows, Task, str], Any]] = {
    LOOP: train_by_hand,
    "kunren": train_with_trainer("kunren"),
    "transformers": train_with_trainer("transformers"),
    "Lightning": train_with_lightning,
}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No notices on the terminal, which would be measured too."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
