"""What the ranks of these tests train: small, without dropout, with labels of unequal numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].roll(1)
        if self.ragged:
            labels = torch.where(torch.arange(LENGTH) < index % (LENGTH + 1), labels, -100)
        return {"input_ids": self.tokens[index], "labels": labels}


class Stream(IterableDataset[Any]):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


class Tagger(nn.Module):
    """Its loss is the mean over its batch, or divides by the count that it is handed."""

    def __init__(self, takes_count: bool = False) -> None:
        super().__init__()
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
        logits = self.head(torch.tanh(self.embedding(input_ids)))
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


def trained(folder: Path, rows: int = 50, stream: bool = False, takes_count: bool = False, **options: Any) -> Any:
    """(losses, gradient norms, weights, state) of a short run; in any number of processes."""
    resume = options.pop("resume", None)
    callbacks, ragged = options.pop("callbacks", []), options.pop("ragged", True)
    noting = Noting()
    data: Any = Rows(rows, ragged)
    trainer = Trainer(
        Tagger(takes_count),
        arguments(folder, **options),
        train_dataset=Stream(data) if stream else data,
        callbacks=[noting, *callbacks],
    )
    output = trainer.train(resume_from_checkpoint=resume)
    weights = [parameter.detach().clone().numpy() for parameter in trainer.model.parameters()]
    losses = [log["loss"] for log in noting.logs if "loss" in log]
    norms = [log["grad_norm"] for log in noting.logs if "grad_norm" in log]
    return {
        "losses": losses,
        "norms": norms,
        "weights": weights,
        "train_loss": output.training_loss,
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "logs": noting.logs,
    }
