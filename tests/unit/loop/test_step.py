"""One micro-batch: the loss, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch import nn

import kunren
from kunren.loop.work import operations_per_token, real_tokens_in, tokens_in


class Returns(nn.Module):
    """Answers with whatever `make` makes of the logits."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.inner, self.make = models.Points(), make

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        return self.make(self.inner(x, labels))


def trainer_of(model: nn.Module, folder: Path, data: Any = None, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    return kunren.Trainer(
        model=model, args=arguments(folder, max_steps=2, **settings), train_dataset=data or rows.points(12), **build
    )


FORMS: dict[str, Any] = {
    "dict": lambda out: out,
    "tuple": lambda out: (out["loss"], out["logits"]),
    "list": lambda out: [out["loss"], out["logits"]],
    "loss alone": lambda out: out["loss"],
    "loss of shape (1,)": lambda out: {"loss": out["loss"].reshape(1)},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_output(form: str, tmp_path: Path) -> None:
    plain, other = models.Points(), Returns(FORMS[form])
    expected = trainer_of(plain, tmp_path).train().training_loss
    assert trainer_of(other, tmp_path).train().training_loss == expected
    assert torch.equal(models.flat(plain), models.flat(other))


def test_missing_loss_names_the_model_its_outputs_and_its_inputs(tmp_path: Path) -> None:
    trainer = trainer_of(Returns(lambda out: {"logits": out["logits"]}), tmp_path)
    with pytest.raises(ValueError, match=r"Returns returned no loss, only: logits\. It was given: x, labels\."):
        trainer.train()


@pytest.mark.parametrize("build", [models.Points, models.bert])
def test_missing_labels_are_named(build: Any, tmp_path: Path) -> None:
    name = "x" if build is models.Points else "input_ids"
    data = rows.points(12) if build is models.Points else rows.sentences(12)
    trainer = trainer_of(build(), tmp_path, rows.Rows([{name: row[name]} for row in data.rows]))
    with pytest.raises(ValueError, match=r"no labels among the inputs: name the target column `labels`"):
        trainer.train()


def test_loss_of_many_numbers_is_refused_with_its_shape(tmp_path: Path) -> None:
    trainer = trainer_of(Returns(lambda out: {"loss": out["logits"]}), tmp_path)
    with pytest.raises(ValueError, match=r"loss of shape \(4, 3\).*Average it"):
        trainer.train()


def test_loss_of_the_users_own_function(tmp_path: Path) -> None:
    seen: list[tuple[Any, Any]] = []

    def loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        seen.append((labels.shape, float(num_items_in_batch)))
        return nn.functional.cross_entropy(outputs["logits"], labels)

    own, plain = models.Points(), models.Points()
    trainer_of(own, tmp_path, compute_loss_func=loss).train()
    trainer_of(plain, tmp_path).train()
    assert seen == [((4,), 4.0)] * 2
    assert torch.equal(models.flat(own), models.flat(plain))


def test_label_smoothing_needs_no_labels_inside_the_model(tmp_path: Path) -> None:
    own, plain = models.Points(), models.Points()
    trainer_of(own, tmp_path, settings={"label_smoothing_factor": 0.3}).train()
    trainer_of(
        plain,
        tmp_path,
        compute_loss_func=lambda outputs, labels, num_items_in_batch=None: nn.functional.cross_entropy(
            outputs["logits"], labels, label_smoothing=0.3
        ),
    ).train()
    torch.testing.assert_close(models.flat(own), models.flat(plain))


def test_batches_that_are_tuples(tmp_path: Path) -> None:
    data = [(row["x"], row["labels"]) for row in rows.points(12)]

    def collate(batch: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.stack([x for x, _ in batch]), torch.stack([label for _, label in batch])

    own, plain = models.Points(), models.Points()
    trainer_of(own, tmp_path, data, data_collator=collate).train()
    trainer_of(plain, tmp_path).train()
    assert torch.equal(models.flat(own), models.flat(plain))


def test_step_returns_a_loss_without_a_graph_and_leaves_the_batch_alone(tmp_path: Path) -> None:
    trainer = trainer_of(models.Points(), tmp_path, settings={"label_smoothing_factor": 0.1})
    batch = kunren.default_data_collator(list(rows.points(4)))
    keys = list(batch)
    loss = trainer.training_step(trainer.model, batch)
    assert not loss.requires_grad
    assert list(batch) == keys
    assert all(parameter.grad is not None for parameter in trainer.model.parameters())


def test_empty_batch_names_what_the_model_takes(tmp_path: Path) -> None:
    trainer = trainer_of(models.Points(), tmp_path, data_collator=lambda batch: {})
    with pytest.raises(ValueError, match=r"batch given to the model is empty.*x, labels"):
        trainer.train()


def test_counting_work() -> None:
    batch = {"input_ids": torch.tensor([[5, 6, 0], [7, 0, 0]]), "labels": torch.zeros(2)}
    assert tokens_in(batch, "input_ids") == 6
    assert tokens_in(batch, "pixel_values") == 0
    assert tokens_in([torch.ones(2)], "input_ids") == 0
    assert real_tokens_in(batch, "input_ids", 0) == 3
    assert real_tokens_in(batch, "input_ids", None) == 6
    assert real_tokens_in({**batch, "attention_mask": torch.ones(2, 3)}, "input_ids", 0) == 6
    assert real_tokens_in({}, "input_ids", 0) == 0
    assert operations_per_token(models.Points()) == 0
    llama = models.llama()
    assert operations_per_token(llama) == 6 * llama.num_parameters(exclude_embeddings=True) > 0


@pytest.mark.parametrize(("choice", "expected"), [("all", 64), ("non_padding", 48), (True, 64), ("no", 0)])
def test_tokens_seen(choice: Any, expected: int, tmp_path: Path) -> None:
    data = rows.tokens(8)
    for row in data.rows:
        row["attention_mask"] = torch.tensor([1] * 6 + [0] * 2)
    trainer = trainer_of(models.llama(), tmp_path, data, settings={"include_num_input_tokens_seen": choice})
    trainer.train()
    assert trainer.state.num_input_tokens_seen == expected
    assert ("num_input_tokens_seen" in trainer.state.log_history[-1]) is (choice != "no")
    assert trainer.state.total_flos == 64 * operations_per_token(trainer.model)
