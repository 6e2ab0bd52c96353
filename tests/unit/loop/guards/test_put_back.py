"""What a subclass counts while something is only tried is as it was: numbers, collections, nested ones."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.loop.guards.put_back import put_back


class Owner:
    def __init__(self) -> None:
        self.tokens, self.name, self.last = 3, "a", None
        self.metrics = {"train": defaultdict(list, {"loss": [1.0]}), "eval": defaultdict(list)}
        self.window, self.seen, self.times = deque([1, 2], maxlen=3), {1}, Counter(a=2)
        self.log: Any = [{"step": [1]}]
        self.itself = self.metrics
        self.weight = torch.zeros(1)


def test_everything_is_as_it_was_and_the_same_objects() -> None:
    owner = Owner()
    objects = dict(vars(owner))
    with put_back(owner):
        owner.tokens, owner.name, owner.last = 9, "b", 1.5  # type: ignore[assignment]
        owner.metrics["train"]["loss"].append(2.0)
        owner.metrics["train"]["new"].append(1)
        owner.metrics["eval"].clear()
        owner.window.extend([3, 4])
        owner.seen.add(2)
        owner.times["a"] += 1
        owner.log[0]["step"][0] = 7
        owner.log.append({})
        owner.weight += 1
    assert (owner.tokens, owner.name, owner.last) == (3, "a", None)
    assert owner.metrics == {"train": {"loss": [1.0]}, "eval": {}}
    assert list(owner.window) == [1, 2]
    assert owner.seen == {1}
    assert owner.times == Counter(a=2)
    assert owner.log == [{"step": [1]}]
    assert all(vars(owner)[name] is value for name, value in objects.items())
    assert float(owner.weight) == 1  # an object, out of reach


def test_it_is_put_back_after_an_error_and_large_collections_are_left_alone() -> None:
    owner = Owner()
    owner.log = list(range(100_000))
    with pytest.raises(RuntimeError), put_back(owner):
        owner.tokens = 9
        owner.log.append(1)
        raise RuntimeError
    assert owner.tokens == 3
    assert len(owner.log) == 100_001


class Counting(kunren.Trainer):
    """As TRL's trainers do: numbers that `compute_loss` notes, and `log` adds, by the mode of the model."""

    def __init__(self, *positional: Any, **keywords: Any) -> None:
        super().__init__(*positional, **keywords)
        self.calls, self.noted = 0, {"train": defaultdict(list), "eval": defaultdict(list)}

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        mode = "train" if self.model.training else "eval"
        self.calls += mode == "train"
        self.noted[mode]["rows"].append(len(inputs["labels"]))
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    def prediction_step(self, model: Any, inputs: Any, loss_only: bool, ignore_keys: Any = None) -> Any:
        with torch.no_grad():
            return self.compute_loss(model, inputs).detach(), None, None

    def log(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        mode = "train" if self.model.training else "eval"
        prefix = "" if mode == "train" else "eval_"
        logs.update({f"{prefix}{name}": sum(values) for name, values in self.noted[mode].items()})
        super().log(logs, start_time)
        self.noted[mode].clear()


@pytest.mark.parametrize("watches", [False, True], ids=["plain", "a metric is looked for beforehand"])
def test_a_batch_that_is_tried_counts_once(tmp_path: Path, watches: bool) -> None:
    watched = {"metric_for_best_model": "eval_rows", "greater_is_better": True}
    best = {**watched, "load_best_model_at_end": True, "save_strategy": "epoch"}
    args = arguments(
        tmp_path,
        gradient_accumulation_steps=2,
        per_device_train_batch_size=4,
        num_train_epochs=1,
        eval_strategy="epoch",
        **(best if watches else {}),
    )
    data = rows.points(16)
    trainer = Counting(models.PointsTakingCount(), args, train_dataset=data, eval_dataset=data)
    trainer.train()
    assert trainer.calls == 4
    log = trainer.state.log_history
    assert [entry["rows"] for entry in log if "loss" in entry] == [8, 8]
    assert [entry["eval_rows"] for entry in log if "eval_loss" in entry] == [16]
    if watches:
        assert trainer.state.best_metric == 16
    trainer.evaluate()
    assert trainer.state.log_history[-1]["eval_rows"] == 16
    assert trainer.model.training


def test_a_plan_leaves_the_counts_alone(tmp_path: Path) -> None:
    trainer = Counting(models.Points(), arguments(tmp_path), train_dataset=rows.points(16))
    trainer.plan()
    assert trainer.calls == 0
    assert trainer.noted == {"train": {}, "eval": {}}
