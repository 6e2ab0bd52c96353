"""Batches by length through whole runs: each row once an epoch, resumed as undisturbed, with workers as without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from parity import rows
from parity.models import flat
from torch import nn
from torch.nn import functional
from torch.utils.data import RandomSampler

import kunren
from invariants.lengths import log_normal
from invariants.runs import arguments

COUNT = 42
LENGTHS = log_normal(COUNT)

WAYS: dict[str, dict[str, Any]] = {
    "grouped": {"batching": "grouped"},
    "token_budget": {"batching": "token_budget", "token_budget": 400},
    "batch_rebalance": {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2},
}


class Recording(nn.Module):
    """Remembers which rows it was trained on and evaluated on, and how many tokens each batch had."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.dropout, self.out = nn.Embedding(300, 8), nn.Dropout(0.2), nn.Linear(8, 3)
        self.seen: list[list[int]] = []
        self.evaluated: list[int] = []
        self.tokens: list[int] = []

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, row: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        assert row is not None
        if self.training:
            self.seen.append(row.tolist())
            self.tokens.append(input_ids.numel())
        else:
            self.evaluated += row.tolist()
        counts = (input_ids > 0).unsqueeze(-1)  # padding is to change nothing
        logits = self.out((self.dropout(self.table(input_ids)) * counts).sum(1) / counts.sum(1))
        assert labels is not None
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def sentences(lengths: torch.Tensor = LENGTHS) -> list[rows.Row]:
    return [{"input_ids": torch.full((int(size),), i + 1), "labels": i % 3, "row": i} for i, size in enumerate(lengths)]


def pad(batch: list[rows.Row]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence([torch.as_tensor(row["input_ids"]) for row in batch], batch_first=True)
    return {"input_ids": ids, **{name: torch.tensor([row[name] for row in batch]) for name in ("labels", "row")}}


def trainer(folder: Path, data: Any = None, kind: type[kunren.Trainer] = kunren.Trainer, **settings: Any) -> Any:
    return kind(
        model=Recording(),
        args=arguments(folder, **settings),
        train_dataset=sentences() if data is None else data,
        eval_dataset=sentences(),
        data_collator=pad,
    )


def epochs(one: Any) -> list[list[list[int]]]:
    """The batches of each epoch."""
    size = len(one.model.seen) // 2
    return [one.model.seen[:size], one.model.seen[size:]]


@pytest.mark.parametrize("way", WAYS)
def test_each_row_once_an_epoch(way: str, tmp_path: Path) -> None:
    one = trainer(tmp_path, **WAYS[way])
    output = one.train()
    first, second = epochs(one)
    for batches in (first, second):
        assert sorted(row for batch in batches for row in batch) == list(range(COUNT))
    assert first != second
    accumulation = one.args.gradient_accumulation_steps
    assert output.global_step == 2 * -(-len(first) // accumulation)
    assert one.state.epoch == 2


def test_token_budget_is_kept(tmp_path: Path) -> None:
    one = trainer(tmp_path, **WAYS["token_budget"])
    one.train()
    assert max(one.model.tokens) <= 400
    assert sum(one.model.tokens) < 2.4 * int(LENGTHS.sum())


@pytest.mark.parametrize("way", WAYS)
def test_resumed_in_the_second_epoch(way: str, tmp_path: Path) -> None:
    straight = trainer(tmp_path, save_strategy="steps", save_steps=1, **WAYS[way])
    straight.train()
    steps = straight.state.max_steps
    at = steps // 2 + 2
    resumed = trainer(tmp_path, **WAYS[way])
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{at}"))
    assert resumed.state.global_step == steps
    left = len(resumed.model.seen)
    assert 0 < left < len(straight.model.seen) // 2
    assert resumed.model.seen == straight.model.seen[-left:]
    assert torch.equal(flat(resumed.model), flat(straight.model))


@pytest.mark.parametrize("way", ["grouped", "token_budget"])
def test_resumed_with_another_batch_size(way: str, tmp_path: Path) -> None:
    """Refused within an epoch, whose order it would change; at an epoch's end the next one is simply another."""
    trainer(tmp_path, save_strategy="steps", max_steps=2, save_steps=2, **WAYS[way]).train()
    with pytest.raises(ValueError, match="per_device_train_batch_size was 4 and is 6"):
        trainer(tmp_path, per_device_train_batch_size=6, **WAYS[way]).train(str(tmp_path / "checkpoint-2"))
    straight = trainer(tmp_path / "epochs", save_strategy="epoch", **WAYS[way])
    straight.train()
    resumed = trainer(tmp_path, per_device_train_batch_size=6, **WAYS[way])
    resumed.train(str(tmp_path / "epochs" / f"checkpoint-{straight.state.max_steps // 2}"))
    assert sorted(row for batch in resumed.model.seen for row in batch) == list(range(COUNT))


@pytest.mark.parametrize("way", WAYS)
def test_workers_change_nothing(way: str, tmp_path: Path) -> None:
    runs = []
    for workers in (0, 2):
        runs.append(trainer(tmp_path, dataloader_num_workers=workers, **WAYS[way]))
        runs[-1].train()
    assert runs[0].model.seen == runs[1].model.seen
    assert torch.equal(flat(runs[0].model), flat(runs[1].model))


def test_data_seed_alone_orders_the_rows(tmp_path: Path) -> None:
    def seen(ambient: int, **settings: Any) -> list[list[int]]:
        torch.manual_seed(ambient)
        one = trainer(tmp_path, batching="grouped", **settings)
        one.train()
        return one.model.seen

    assert seen(1, seed=1, data_seed=5) == seen(2, seed=2, data_seed=5) == seen(3, seed=5)
    assert seen(1, data_seed=5) != seen(1, data_seed=6)


@pytest.mark.parametrize("way", WAYS)
def test_evaluation_keeps_the_order_of_the_data(way: str, tmp_path: Path) -> None:
    one = trainer(tmp_path, **WAYS[way])
    one.evaluate()
    output = one.predict(sentences())
    assert one.model.evaluated == [*range(COUNT), *range(COUNT)]
    assert output.label_ids.tolist() == [i % 3 for i in range(COUNT)]


def test_a_column_of_lengths_need_not_be_an_input(tmp_path: Path) -> None:
    """It says that the rows of input are long where they are short: the batches follow it."""
    told = torch.arange(COUNT) // 4
    columns = datasets.Dataset.from_list([{**row, "size": int(told[i])} for i, row in enumerate(sentences())])
    one = trainer(tmp_path, columns, batching="grouped", length_column_name="size")
    one.train()
    spread = [int(told[batch].max() - told[batch].min()) for batch in one.model.seen]
    assert sum(spread) / len(spread) < 3


def test_samples_per_second_count_rows(tmp_path: Path) -> None:
    """Under a budget a batch has as many rows as fit, not per_device_train_batch_size."""
    one = trainer(tmp_path, **WAYS["token_budget"], max_steps=5)
    metrics = one.train().metrics
    steps_per_epoch = len(one.get_train_dataloader())
    rows_per_step = metrics["train_samples_per_second"] / metrics["train_steps_per_second"]
    assert rows_per_step == pytest.approx(COUNT / steps_per_epoch, rel=0.02)


class OwnOrder(kunren.Trainer):
    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return RandomSampler(range(8))


@pytest.mark.parametrize("way", ["grouped", "token_budget"])
def test_an_order_of_ones_own_goes_first(way: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = trainer(tmp_path, kind=OwnOrder, **WAYS[way])
    with caplog.at_level(logging.WARNING):
        one.train()
    assert f"batching='{way}' has no effect: _get_train_sampler is overridden" in caplog.text
    assert [len(batch) for batch in one.model.seen] == [4, 4, 4, 4]


class Stream(torch.utils.data.IterableDataset[rows.Row]):
    def __iter__(self) -> Iterator[rows.Row]:
        return iter(sentences())


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_cannot_be_put_in_order(way: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="(batching|train_sampling_strategy)='.*': the training set is a stream"):
        trainer(tmp_path, Stream(), max_steps=2, **WAYS[way]).train()


def test_rebalancing_leaves_the_steps_as_they_are(tmp_path: Path) -> None:
    """The rows of a step are only dealt out anew among its micro-batches: the weights move the same."""
    weights = []
    for strategy in ("random", "batch_rebalance"):
        one = trainer(tmp_path, gradient_accumulation_steps=3, train_sampling_strategy=strategy, optim="sgd")
        one.model.dropout.p = 0.0
        one.train()
        weights.append(flat(one.model))
    assert torch.allclose(*weights, atol=1e-6)
