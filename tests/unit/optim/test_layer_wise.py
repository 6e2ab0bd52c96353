"""Layer-wise updates end with their training, and refuse what they could not keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren


def trainer_for(folder: Path, model: torch.nn.Module, **settings: Any) -> kunren.Trainer:
    build = {key: settings.pop(key) for key in ("callbacks",) if key in settings}
    settings = {"num_train_epochs": 1, "max_grad_norm": 0.0, **settings}
    return kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=rows.points(), **build)


class Stop(kunren.TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        raise InterruptedError


@pytest.mark.parametrize("ended", ["as planned", "by an error"])
@pytest.mark.parametrize("then", ["sgd", "lomo"])
def test_a_model_that_was_trained_so_is_free_for_another_trainer(tmp_path: Path, ended: str, then: str) -> None:
    model = models.Points()
    first = trainer_for(tmp_path / "a", model, optim="lomo", callbacks=[Stop] if ended == "by an error" else [])
    if ended == "by an error":
        with pytest.raises(InterruptedError):
            first.train()
    else:
        first.train()
    fresh = models.Points()
    fresh.load_state_dict(model.state_dict())
    trainer_for(tmp_path / "b", model, optim=then).train()
    trainer_for(tmp_path / "c", fresh, optim=then).train()
    assert torch.equal(flat(model), flat(fresh))
    assert first.optimizer is not None  # it is there, and takes no gradients
    model(torch.ones(2, 4), torch.tensor([0, 1]))["loss"].backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_trains_again(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, models.Points(), optim="lomo")
    trainer.train()
    before = flat(trainer.model)
    trainer.train()
    assert not torch.equal(flat(trainer.model), before)


@pytest.mark.parametrize("policy", ["skip", "rollback", "raise"])
def test_an_update_that_cannot_be_held_back_is_no_update_to_guard(tmp_path: Path, policy: str) -> None:
    with pytest.raises(ValueError, match="nonfinite='warn'"):
        trainer_for(tmp_path, models.Points(), optim="lomo", nonfinite=policy).train()
