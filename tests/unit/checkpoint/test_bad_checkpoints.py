"""Checkpoints that cannot be resumed from: what is wrong and what to do is said before anything is changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity.models import flat
from torch import Tensor, nn

import kunren
from kunren.checkpoint import parts
from kunren.checkpoint.store import MANIFEST_NAME
from kunren.checkpoint.weights import load_weights

SETTINGS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}


class TwoLayers(nn.Module):
    def __init__(self, first: str = "hidden", width: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = first
        self.add_module(first, nn.Linear(2, width))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        out = self.head(torch.tanh(getattr(self, self.first)(x))).squeeze(-1)
        return {"logits": out} if labels is None else {"loss": (out - labels).pow(2).mean(), "logits": out}


def trainer_for(folder: Path, model: nn.Module | None = None, **settings: Any) -> kunren.Trainer:
    generator = torch.Generator().manual_seed(0)
    data = [{"x": torch.randn(2, generator=generator), "labels": torch.tensor(1.0)} for _ in range(12)]
    args = arguments(folder, **{**SETTINGS, **settings})
    return kunren.Trainer(model=model or TwoLayers(), args=args, train_dataset=data)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the checkpoints 2 and 4."""
    trainer_for(tmp_path).train()
    return tmp_path


def refusal(trainer: kunren.Trainer, checkpoint: Path | bool) -> str:
    before = flat(trainer.model)
    with pytest.raises(ValueError) as caught:
        trainer.train(resume_from_checkpoint=checkpoint if isinstance(checkpoint, bool) else str(checkpoint))
    assert torch.equal(flat(trainer.model), before)
    assert trainer.state.global_step == 0
    return str(caught.value)


def test_an_empty_folder_with_the_name_of_a_checkpoint(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    empty = run / "checkpoint-9"
    empty.mkdir()
    message = refusal(trainer_for(run), empty)
    assert f"{empty} cannot be resumed from" in message
    assert "trainer_state.json is missing" in message and "it has no weights" in message
    assert str(run / "checkpoint-4") in message
    trainer = trainer_for(run, max_steps=5)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 5
    assert "checkpoint-9 is damaged and was passed over" in caplog.text


def test_nothing_but_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-9").mkdir()
    message = refusal(trainer_for(tmp_path), True)
    assert "no checkpoint that is whole" in message and "checkpoint-9" in message
    assert "resume_from_checkpoint=False" in message


def test_another_model_by_shapes(run: Path) -> None:
    message = refusal(trainer_for(run, TwoLayers(width=5)), run / "checkpoint-2")
    assert "hidden.weight is (4, 2) in the checkpoint and (5, 2) in the model" in message
    assert "head.weight is (1, 4) in the checkpoint and (1, 5) in the model" in message


def test_another_model_by_names(run: Path) -> None:
    message = refusal(trainer_for(run, TwoLayers(first="body")), run / "checkpoint-2")
    assert "hidden.weight" in message and "body.weight" in message


def made_newer(checkpoint: Path) -> Path:
    manifest = json.loads((checkpoint / MANIFEST_NAME).read_text())
    (checkpoint / MANIFEST_NAME).write_text(json.dumps({**manifest, "format": 2}))
    return checkpoint


def test_one_of_a_newer_kunren(run: Path) -> None:
    message = refusal(trainer_for(run), made_newer(run / "checkpoint-2"))
    assert "format 2, and this kunren reads up to 1: update kunren" in message


def test_the_newest_is_of_a_newer_kunren(run: Path) -> None:
    """It is not damaged: to go on from an older one would throw its work away."""
    made_newer(run / "checkpoint-4")
    assert "update kunren" in refusal(trainer_for(run), True)


@pytest.mark.parametrize("name", ["notes.txt", "checkpoint-7", "checkpoint-2/model.safetensors"])
def test_a_path_that_is_a_file(run: Path, name: str) -> None:
    if not (run / name).exists():
        (run / name).write_text("not a folder")
    message = refusal(trainer_for(run), run / name)
    assert f"{run / name} cannot be resumed from: it is not a folder" in message


@pytest.mark.parametrize("only_model_now", [False, True])
def test_without_an_optimizer_the_schedule_is_at_its_step(
    tmp_path: Path, only_model_now: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trainer_for(tmp_path, save_only_model=True).train()
    trainer = trainer_for(tmp_path, save_only_model=only_model_now)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    rates = {log["step"]: log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log}
    assert rates[3] == pytest.approx(rates[1] * 2 / 4)
    assert "checkpoint-2 holds no optimizer or schedule" in caplog.text


def test_without_moments_alone_the_schedule_goes_on(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    straight = trainer_for(run / "straight")
    straight.train()
    for name in ("optimizer.pt", "manifest.json", "cursor.json"):
        (run / "checkpoint-2" / name).unlink()
    trainer = trainer_for(run)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    expected, found = (
        {log["step"]: log["learning_rate"] for log in one.state.log_history if "learning_rate" in log}
        for one in (straight, trainer)
    )
    assert found == expected
    assert "moments start afresh" in caplog.text


def test_what_deepspeed_has_saved_is_for_deepspeed(tmp_path: Path) -> None:
    (tmp_path / "global_step2").mkdir()
    (tmp_path / "latest").write_text("global_step2")
    model = nn.Linear(2, 1)
    told = "is a checkpoint of DeepSpeed.*go on with the same deepspeed.*kunren checkpoint merge"
    with pytest.raises(ValueError, match=told):
        load_weights(model, tmp_path)
    with pytest.raises(ValueError, match=told):
        parts.load_optimizer(torch.optim.SGD(model.parameters()), tmp_path)


def test_saving_only_the_model_from_now_on_still_resumes_all(run: Path) -> None:
    straight = trainer_for(run / "straight")
    straight.train()
    trainer = trainer_for(run, save_only_model=True)
    trainer.train(resume_from_checkpoint=str(run / "checkpoint-2"))
    assert torch.equal(flat(trainer.model), flat(straight.model))
