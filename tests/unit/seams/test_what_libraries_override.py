"""What sentence-transformers and TRL do with the seams, each in a few lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch.utils.data import DataLoader, RandomSampler

import kunren


class ScaledByItself(kunren.Trainer):
    loss_is_scaled_for_ga = True

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        loss = model(**inputs)["loss"] / self.current_gradient_accumulation_steps
        return (loss, {}) if return_outputs else loss


class AddsAFile(kunren.Trainer):
    """Writes into the checkpoint once it has been saved, and reads it when it goes on."""

    found: Any = None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        (folder / "extra.json").write_text(json.dumps({"step": self.state.global_step}))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.found = json.loads((Path(checkpoint) / "extra.json").read_text())


class LoaderOfItsOwn(kunren.Trainer):
    """Its data may be anything: here the splits of a DatasetDict, which kunren alone would not train on."""

    def get_train_dataloader(self) -> Any:
        assert isinstance(self.train_dataset, datasets.DatasetDict)
        rows = torch.utils.data.ConcatDataset([one.with_format("torch") for one in self.train_dataset.values()])
        return DataLoader(rows, batch_size=4)


class CountsEvaluations(kunren.Trainer):
    """Does more in an evaluation than to pass over the data."""

    evaluations = 0

    def evaluation_loop(self, *args: Any, **keywords: Any) -> Any:
        output = super().evaluation_loop(*args, **keywords)
        self.evaluations += 1
        output.metrics["eval_score"] = float(self.evaluations)
        return output


def test_a_loss_that_is_scaled_by_itself_is_not_multiplied_by_the_processes(tmp_path: Path) -> None:
    for kind, ranks in ((ScaledByItself, 1), (kunren.Trainer, 2)):
        trainer = kind(models.Points(), arguments(tmp_path), train_dataset=rows.points(8))
        trainer.engine.data_place = (2, 0)
        trainer.prepare_loss_scale()
        assert trainer.loss_scale.ranks == ranks


def test_a_checkpoint_is_there_when_an_override_adds_to_it(tmp_path: Path) -> None:
    def make() -> AddsAFile:
        saves = {"save_strategy": "steps", "save_steps": 2}
        return AddsAFile(models.Points(), arguments(tmp_path, max_steps=4, **saves), train_dataset=rows.points(24))

    for step in make().steps():
        if step == 2:
            break
    again = make()
    again.train(resume_from_checkpoint=True)
    assert again.found == {"step": 2}
    assert again.state.global_step == 4


def test_an_own_loader_may_read_what_it_likes(tmp_path: Path) -> None:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).tolist()
    one = datasets.Dataset.from_dict({"x": x, "labels": [0, 1] * 4})
    sets = datasets.DatasetDict({"one": one, "two": one})
    trainer = LoaderOfItsOwn(models.Points(), arguments(tmp_path, num_train_epochs=1), train_dataset=sets)
    assert trainer.train().global_step == 4
    with pytest.raises(TypeError, match="train_dataset is a DatasetDict"):
        kunren.Trainer(models.Points(), arguments(tmp_path), train_dataset=sets).train()


def test_an_override_of_the_evaluation_loop_is_not_run_to_try_a_name(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "metric_for_best_model": "score"}
    trainer = CountsEvaluations(
        models.Points(),
        arguments(tmp_path, save_strategy="best", greater_is_better=True, **settings),
        train_dataset=rows.points(24),
        eval_dataset=rows.points(8),
    )
    trainer.train()
    assert trainer.evaluations == 2
    assert trainer.state.best_metric == 2.0


def test_loaders_that_the_accelerator_prepares_have_the_order_of_transformers(tmp_path: Path) -> None:
    """The data seed and `use_seedable_sampler` of the arguments reach it."""
    trainer = kunren.Trainer(models.Points(), arguments(tmp_path, data_seed=7), train_dataset=rows.points(8))
    numbers = torch.arange(10)
    loader = trainer.accelerator.prepare(
        DataLoader(numbers, batch_size=10, sampler=RandomSampler(numbers, generator=torch.Generator()))
    )
    loader.set_epoch(1)
    expected = torch.randperm(10, generator=torch.Generator().manual_seed(7 + 1))
    assert torch.equal(next(iter(loader)), expected)
