"""The order of the data is a function of the data seed alone, and what is drawn while loading one of the position."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from parity import rows
from parity.models import flat

import kunren
from invariants.runs import Recording, arguments, losses, seed_everything


def numbered(count: int = 24) -> rows.Rows:
    return rows.Rows([{**row, "row": torch.tensor(i)} for i, row in enumerate(rows.points(count))])


def order(folder: Path, dropout: float = 0.0, ambient_seed: int = 0, data: Any = None, **settings: Any) -> list[int]:
    """The rows in the order in which two epochs saw them."""
    seed_everything(ambient_seed)
    model = Recording(dropout)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(folder, **settings),
        train_dataset=numbered() if data is None else data,
        eval_dataset=rows.points(6),
    )
    seed_everything(ambient_seed + 1)
    trainer.train()
    return [row for batch in model.seen for row in batch]


def test_each_row_once_per_epoch_in_a_new_order(tmp_path: Path) -> None:
    seen = order(tmp_path)
    first, second = seen[:24], seen[24:]
    assert sorted(first) == sorted(second) == list(range(24))
    assert first != second
    assert first != list(range(24))


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 5, "data_seed": 42},
        {"dropout": 0.5},
        {"ambient_seed": 9},
        {"per_device_train_batch_size": 3},
        {"gradient_accumulation_steps": 3},
        {"dataloader_num_workers": 2},
        {"eval_strategy": "steps", "eval_steps": 1},
        {"learning_rate": 0.5, "optim": "sgd", "lr_scheduler_type": "constant"},
        {"full_determinism": False, "logging_steps": 7},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_what_does_not_change_the_order(changes: dict[str, Any], tmp_path: Path) -> None:
    assert order(tmp_path / "b", **changes) == order(tmp_path / "a", data_seed=42)


def test_data_seed_is_the_seed_unless_given(tmp_path: Path) -> None:
    assert order(tmp_path, seed=5) == order(tmp_path, seed=5, data_seed=5) == order(tmp_path, seed=3, data_seed=5)


def test_data_seed_changes_the_order(tmp_path: Path) -> None:
    orders = [order(tmp_path, data_seed=seed) for seed in (0, 1, 2)]
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_sequential_is_the_order_of_the_data(tmp_path: Path) -> None:
    assert order(tmp_path, train_sampling_strategy="sequential") == list(range(24)) * 2


def test_data_seed_does_not_change_dropout(tmp_path: Path) -> None:
    """With the rows all alike only dropout is random, and dropout follows `seed`."""
    data = rows.Rows([{**rows.points(1)[0], "row": torch.tensor(i)} for i in range(24)])
    results = {}
    for name, settings in {"a": {"data_seed": 1}, "b": {"data_seed": 2}, "c": {"data_seed": 1, "seed": 6}}.items():
        model = Recording(0.5)
        trainer = kunren.Trainer(model=model, args=arguments(tmp_path, **settings), train_dataset=data)
        trainer.train()
        results[name] = (flat(model), losses(trainer))
    assert torch.equal(results["a"][0], results["b"][0])
    assert results["a"][1] == results["b"][1]
    assert not torch.equal(results["a"][0], results["c"][0])


def noise() -> float:
    return random.random() + float(numpy.random.rand()) + torch.rand(()).item()


def random_collator(batch: list[rows.Row]) -> dict[str, torch.Tensor]:
    out = kunren.default_data_collator(batch)
    out["x"] = out["x"] * (torch.rand(out["x"].shape) > 0.2) + 0.1 * noise()
    return out


class Unsteady(rows.Rows):
    def __getitem__(self, index: int) -> rows.Row:
        row = super().__getitem__(index)
        return {**row, "x": row["x"] + 0.1 * noise()}


RANDOM: dict[str, tuple[Callable[[], Any], Any]] = {
    "collator": (numbered, random_collator),
    "rows": (lambda: Unsteady(numbered().rows), None),
    "both": (lambda: Unsteady(numbered().rows), random_collator),
}


@pytest.mark.parametrize("what", RANDOM)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_draw_what_the_main_process_would(what: str, workers: int, persistent: bool, tmp_path: Path) -> None:
    """Random collators and rows give the same run with and without workers, over two epochs.

    Dropout too, but for workers that stay: with these torch seeds no second iterator, and dropout, which follows in
    the same stream, goes the way it goes in transformers.
    """
    data, collator = RANDOM[what]
    results = []
    for settings in ({}, {"dataloader_num_workers": workers, "dataloader_persistent_workers": persistent}):
        seed_everything(len(settings))
        model = Recording(0.0 if persistent else 0.3)
        trainer = kunren.Trainer(
            model=model, args=arguments(tmp_path, **settings), train_dataset=data(), data_collator=collator
        )
        trainer.train()
        results.append((losses(trainer), flat(model)))
    assert results[1][0] == results[0][0]
    assert torch.equal(results[1][1], results[0][1])


def test_random_rows_differ_from_epoch_to_epoch_and_from_batch_to_batch(tmp_path: Path) -> None:
    """The position decides, so one position is not like another."""
    drawn: list[float] = []

    class Drawing(rows.Rows):
        def __getitem__(self, index: int) -> rows.Row:
            drawn.extend([random.random(), float(numpy.random.rand()), torch.rand(()).item()])
            return super().__getitem__(index)

    trainer = kunren.Trainer(model=Recording(), args=arguments(tmp_path), train_dataset=Drawing(numbered().rows))
    trainer.train()
    assert len(drawn) == 3 * 48
    assert len(set(drawn)) == len(drawn)


def test_loading_leaves_the_models_random_numbers_alone(tmp_path: Path) -> None:
    """Rows that draw and rows that do not give the same dropout."""

    class Drawing(rows.Rows):
        def __getitem__(self, index: int) -> rows.Row:
            noise()
            return super().__getitem__(index)

    weights = []
    for data in (numbered(), Drawing(numbered().rows)):
        model = Recording(0.5)
        kunren.Trainer(model=model, args=arguments(tmp_path), train_dataset=data).train()
        weights.append(flat(model))
    assert torch.equal(*weights)
