"""What the ranks of these tests train: small, without dropout, with labels of unequal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, IterableDataset

from kunren import Trainer, TrainerCallback, TrainingArguments

TOKENS, LENGTH = 11, 5


class Rows(Dataset[Any]):
    """Rows of tokens; `ragged`: the n-th has n % (LENGTH + 1) labels that count."""

    def __init__(self, number: int, ragged: bool = True) -> None:
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(TOKENS, (number, LENGTH), generator=generator)
        self.ragged = ragged
        self.without_labels: set[int] = set()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].roll(1)
        if self.ragged:
            labels = torch.where(torch.arange(LENGTH) < index % (LENGTH + 1), labels, -100)
        if index in self.without_labels:
            labels = torch.full_like(labels, -100)
        return {"input_ids": self.tokens[index], "labels": labels}


class Stream(IterableDataset[Any]):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


class Tagger(nn.Module):
    """Its loss is the mean over its batch, or divides by the count that it is handed."""

    def __init__(self, takes_count: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.takes_count = takes_count
        generator = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding(TOKENS, 8)
        self.head = nn.Linear(8, TOKENS)
        for parameter in self.parameters():
            parameter.data.normal_(generator=generator)
        self.accepts_loss_kwargs = takes_count

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, num_items_in_batch: Any = None
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.dropout(torch.tanh(self.embedding(input_ids))))
        if labels is None:
            return {"logits": logits}
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        count = num_items_in_batch if num_items_in_batch is not None and self.takes_count else (labels != -100).sum()
        return {"loss": total / count, "logits": logits}


class Noting(TrainerCallback):
    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


class Stopping(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_save = state.global_step == self.step


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 3,
        "learning_rate": 0.05,
        "max_steps": 8,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "optim": "sgd",
        "use_cpu": True,
        "run_report": False,
        "seed": 1,
    }
    return TrainingArguments(**usual | options)


class Reporting(Trainer):
    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        self.report(logit=outputs["logits"].mean())
        if torch.distributed.is_initialized() and torch.distributed.get_rank() == 1:
            self.report(of_one=1.0)
        return (loss, outputs) if return_outputs else loss


def summed(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> torch.Tensor:
    """A user's loss that divides by the count that it is handed."""
    total = functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), reduction="sum")
    return total / num_items_in_batch


def trained(folder: Path, rows: int = 50, stream: bool = False, takes_count: bool = False, **options: Any) -> Any:
    """What a short run leaves; in any number of processes."""
    resume, owner = options.pop("resume", None), options.pop("trainer_to", None)
    callbacks, ragged = options.pop("callbacks", []), options.pop("ragged", True)
    kind = Reporting if options.pop("reports", False) else Trainer
    data: Any = Rows(rows, ragged)
    if options.pop("empty_rank", False):  # the second half of each batch of eight, which the second process has
        options["train_sampling_strategy"] = "sequential"
        data.without_labels = {row for row in range(rows) if row % 8 >= 4 and row < 32}
    if stop_at := options.pop("stop_at", None):
        callbacks = [Stopping(stop_at), *callbacks]
    noting, function = Noting(), summed if options.pop("function", False) else None
    trainer = kind(
        Tagger(takes_count, options.pop("dropout", 0.0)),
        arguments(folder, **options),
        train_dataset=Stream(data) if stream else data,
        callbacks=[noting, *callbacks],
        compute_loss_func=function,
    )
    if owner is not None:
        owner.trainer = trainer
    output = trainer.train(resume_from_checkpoint=resume)
    return {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "reported": [log["logit"] for log in noting.logs if "logit" in log],
        "weights": [parameter.detach().clone().numpy() for parameter in trainer.model.parameters()],
        "train_loss": output.training_loss,
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "logs": noting.logs,
    }


def assert_same(several: dict[str, Any], one: dict[str, Any], tolerance: float = 1e-6) -> None:
    """Two runs have the same numbers, up to the order in which they were added up."""
    assert several["step"] == one["step"]
    assert several["epoch"] == pytest.approx(one["epoch"])
    assert (several["tokens"], several["flos"]) == (one["tokens"], one["flos"])
    for name in ("losses", "reported"):
        numpy.testing.assert_allclose(several[name], one[name], rtol=tolerance, atol=tolerance)
    numpy.testing.assert_allclose(several["norms"], one["norms"], rtol=10 * tolerance, atol=tolerance)
    for found, expected in zip(several["weights"], one["weights"], strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    assert several["train_loss"] == pytest.approx(one["train_loss"], rel=tolerance)
