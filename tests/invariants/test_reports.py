"""Numbers reported beside the loss: the same for any division into micro-batches, through evaluations and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import rows
from parity.models import Points, PointsTakingCount, Tokens, flat

import kunren
from invariants.runs import arguments, losses
from invariants.test_rescue import Failure, raising


class Reporting(kunren.Trainer):
    """Reports its own loss and a number of the batch, once in each way."""

    returns_dict = False

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        values = {"same": outputs["loss"], "spread": outputs["logits"].std()}
        if self.returns_dict and not return_outputs:
            return outputs["loss"], values
        self.report(values)
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]


class Returning(Reporting):
    returns_dict = True


class FromTheStep(kunren.Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        loss = super().training_step(model, inputs, num_items_in_batch)
        return loss, {"rows": len(inputs["labels"])}


def trained(
    folder: Path, kind: type[kunren.Trainer] = Reporting, model: Any = None, resume: Any = None, **extra: Any
) -> Any:
    settings = {key: extra.pop(key) for key in list(extra) if key not in ("callbacks", "train_dataset", "eval_dataset")}
    extra = {"train_dataset": rows.points(24), **extra}
    trainer = kind(model=model or Points(), args=arguments(folder, **settings), **extra)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def logged(trainer: Any, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize("kind", [Reporting, Returning])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_loss_that_is_reported_is_the_loss(kind: type[kunren.Trainer], accumulate: int, tmp_path: Path) -> None:
    trainer = trained(tmp_path, kind, logging_steps=2, gradient_accumulation_steps=accumulate)
    assert logged(trainer, "same") == pytest.approx(logged(trainer, "loss"), rel=1e-6)
    assert len(logged(trainer, "spread")) == len(logged(trainer, "same")) > 1


def test_uneven_labels_weigh_as_they_do_in_the_loss(tmp_path: Path) -> None:
    data = rows.tokens(24, keep=(1, 8, 3, 5))
    settings = {"train_dataset": data, "gradient_accumulation_steps": 3, "per_device_train_batch_size": 2}
    trainer = trained(tmp_path, model=Tokens(), **settings)
    assert logged(trainer, "same") == pytest.approx(logged(trainer, "loss"), rel=1e-5)


def test_the_weights_do_not_move_otherwise(tmp_path: Path) -> None:
    with_reports = trained(tmp_path, gradient_accumulation_steps=2)
    without = trained(tmp_path, kunren.Trainer, gradient_accumulation_steps=2)
    assert torch.equal(flat(with_reports.model), flat(without.model)) and losses(with_reports) == losses(without)


def test_from_training_step(tmp_path: Path) -> None:
    trainer = trained(tmp_path, FromTheStep, model=PointsTakingCount(), train_dataset=rows.points(22), logging_steps=6)
    assert logged(trainer, "rows") == pytest.approx([22 / 6, 22 / 6])


@pytest.mark.parametrize("is_first", [True, False])
def test_from_training_step_uneven_labels_weigh_as_they_do_in_the_loss(is_first: bool, tmp_path: Path) -> None:
    class Trainer(kunren.Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            counted = (inputs["labels"] != -100).float().sum()
            if is_first:
                self.report(counted=counted)
            loss = super().training_step(model, inputs, num_items_in_batch)
            return loss if is_first else (loss, {"counted": counted})

    settings = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, "max_steps": 1}
    trainer = trained(tmp_path, Trainer, Tokens(), train_dataset=rows.tokens(2, keep=(1, 7)), **settings)
    assert logged(trainer, "counted") == [pytest.approx((1 * 1 + 7 * 7) / 8)]


def test_in_pieces_too(tmp_path: Path) -> None:
    class Trainer(FromTheStep):
        def compute_loss(self, model: Any, inputs: Any, *others: Any, **options: Any) -> Any:
            if len(inputs["labels"]) > 2:
                raise torch.OutOfMemoryError("out of memory")
            return super().compute_loss(model, inputs, *others, **options)

    trainer = trained(tmp_path, Trainer)
    assert set(logged(trainer, "rows")) == {2.0}
    assert logged(trainer, "loss") == pytest.approx(logged(trained(tmp_path, kunren.Trainer), "loss"))


def test_an_evaluation_has_its_own(tmp_path: Path) -> None:
    settings = {"eval_strategy": "steps", "eval_steps": 1, "logging_steps": 3}
    trainer = trained(tmp_path, eval_dataset=rows.points(13), **settings)
    assert logged(trainer, "eval_same") == pytest.approx(logged(trainer, "eval_loss"), rel=1e-6)
    alone = trained(tmp_path, logging_steps=3)
    assert logged(trainer, "same") == logged(alone, "same")


def test_the_open_interval_survives_a_resume(tmp_path: Path) -> None:
    settings = {"logging_steps": 5, "save_strategy": "steps", "save_steps": 100}
    straight = trained(tmp_path / "straight", **settings)
    with pytest.raises(Failure):
        trained(tmp_path / "run", callbacks=[raising("on_step_end", at=3)], **settings)
    resumed = trained(tmp_path / "run", resume=True, **settings)
    assert logged(resumed, "same") == logged(straight, "same")


BAD = {
    "loss": 1.0,
    "step": 2,
    "eval_loss": 1.0,
    "vector": torch.ones(3),
    "text": "good",
    "none": None,
    "huge": 10**400,
    "sparse": torch.ones(1).to_sparse(),
    "complex": torch.tensor(1j),
    "elsewhere": torch.ones((), device="meta"),
}


def test_what_cannot_be_averaged_is_told_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Trainer(kunren.Trainer):
        def compute_loss(self, *inputs: Any, **options: Any) -> Any:
            self.report(BAD, good=3)
            return super().compute_loss(*inputs, **options)

    trainer = trained(tmp_path, Trainer, eval_strategy="steps", eval_steps=2, eval_dataset=rows.points(4))
    plain = trained(tmp_path, kunren.Trainer)
    assert logged(trainer, "loss") == logged(plain, "loss")
    assert set(logged(trainer, "good")) == {3.0}
    for name in BAD:
        assert caplog.text.count(f"report({name}=...)") == 1
        assert name in ("loss", "step", "eval_loss") or not logged(trainer, name)
    assert all(loss != 1.0 for loss in logged(trainer, "eval_loss"))


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.bfloat16, 1.5), (torch.float16, 300.0), (torch.uint8, 200.0), (torch.bool, 1.0)]
)
def test_sums_of_narrow_numbers_neither_stand_still_nor_overflow(
    dtype: torch.dtype, value: float, tmp_path: Path
) -> None:
    class Trainer(kunren.Trainer):
        def compute_loss(self, *inputs: Any, **options: Any) -> Any:
            self.report(number=torch.tensor(value, dtype=dtype))
            return super().compute_loss(*inputs, **options)

    trainer = trained(tmp_path, Trainer, max_steps=400, logging_steps=400, num_train_epochs=1)
    assert logged(trainer, "number") == [pytest.approx(value)]


def test_a_number_is_the_one_that_was_reported_not_what_became_of_it(tmp_path: Path) -> None:
    seen: list[float] = []

    class Trainer(kunren.Trainer):
        def compute_loss(self, model: Any, *inputs: Any, **options: Any) -> Any:
            weight = next(model.parameters()).view(-1)[:1]
            seen.append(weight.item())
            self.report(weight=weight)
            return super().compute_loss(model, *inputs, **options)

    assert logged(trained(tmp_path, Trainer), "weight") == pytest.approx(seen)


def test_outside_of_training_it_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = Reporting(model=Points(), args=arguments(tmp_path), train_dataset=rows.points(24))
    trainer.report(early=1.0)
    assert "report(early=...) is left out of the log: call it within compute_loss" in caplog.text
    trainer.train()
    assert "eval_same" in trainer.evaluate(rows.points(6)) and not logged(trainer, "early")


def test_a_loss_beside_outputs_of_any_kind_is_still_refused(tmp_path: Path) -> None:
    class Trainer(kunren.Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
            outputs = model(**inputs)
            return outputs["loss"], outputs["logits"]

    with pytest.raises(TypeError, match="compute_loss returned tuple"):
        trained(tmp_path, Trainer)
