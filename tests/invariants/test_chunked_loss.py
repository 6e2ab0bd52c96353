"""A run whose loss is computed in chunks is the run without: weights, logs, evaluation, for every kind of model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as tf
from parity import models
from torch import nn

import kunren
from invariants.runs import arguments, losses, without_times
from kunren.losses.functions import chunked_loss, deferred_logits

ROWS, LENGTH = 10, 7


def token_rows() -> list[dict[str, torch.Tensor]]:
    """Random tokens; labels are the tokens, some of them ignored."""
    make = torch.Generator().manual_seed(3)
    rows = []
    for _ in range(ROWS):
        ids = torch.randint(2, models.VOCABULARY, (LENGTH,), generator=make)
        labels = ids.masked_fill(torch.rand(LENGTH, generator=make) < 0.3, -100)
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def opt() -> nn.Module:
    torch.manual_seed(0)
    return tf.OPTForCausalLM(
        tf.OPTConfig(
            vocab_size=models.VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            ffn_dim=24,
            num_attention_heads=2,
            max_position_embeddings=32,
            word_embed_proj_dim=16,
            dropout=0.0,
        )
    )


def soft_capped() -> nn.Module:
    torch.manual_seed(0)
    return tf.Gemma2ForCausalLM(
        tf.Gemma2Config(
            vocab_size=models.VOCABULARY,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=24,
            head_dim=8,
            final_logit_softcapping=5.0,
        )
    )


class Own(models.Tokens):
    """A user's module that takes its loss with classes in the second dimension."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: Any = None, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        logits = self.head(self.drop(self.embedding(input_ids)))
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.CrossEntropyLoss()(logits.transpose(1, 2), labels), "logits": logits}


CHUNKED: dict[str, Callable[[], nn.Module]] = {
    "GPT-2, tied": models.gpt2,
    "Llama": lambda: models.llama(dropout=0.2),
    "OPT": opt,
    "T5": models.t5,
    "Bart": models.bart,
    "BERT": lambda: models.bert("BertForMaskedLM"),
    "own": models.Tokens,
    "own, classes second": Own,
}


class Calls:
    """How often the chunked cross-entropy was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, original = 0, deferred_logits.chunked_cross_entropy

        def counting(*inputs: Any, **options: Any) -> torch.Tensor:
            self.count += 1
            return original(*inputs, **options)

        monkeypatch.setattr(deferred_logits, "chunked_cross_entropy", counting)


def trained(make: Callable[[], nn.Module], folder: Path, build: Any = None, **settings: Any) -> kunren.Trainer:
    rows = token_rows()
    trainer = kunren.Trainer(
        model=make(),
        args=arguments(
            folder,
            **{
                "per_device_train_batch_size": 2,
                "num_train_epochs": 1,
                "gradient_accumulation_steps": 2,
                "eval_strategy": "epoch",
                **settings,
            },
        ),
        train_dataset=rows,
        eval_dataset=rows[:4],
        **(build or {}),
    )
    trainer.train()
    return trainer


def assert_equal_runs(one: kunren.Trainer, other: kunren.Trainer) -> None:
    for mine, theirs in zip(without_times(one.state.log_history), without_times(other.state.log_history), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-5)
    assert losses(one) == pytest.approx(losses(other), rel=1e-5)
    torch.testing.assert_close(models.flat(one.model), models.flat(other.model), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CHUNKED)
def test_a_run_with_a_chunked_loss_is_the_run_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"optim": "sgd", "learning_rate": 0.1}
    plain = trained(CHUNKED[name], tmp_path, chunked_loss="off", **settings)
    calls = Calls(monkeypatch)
    chunked = trained(CHUNKED[name], tmp_path, chunked_loss="on", **settings)
    assert_equal_runs(chunked, plain)
    assert calls.count >= 5 + 1  # the micro-batches, and the evaluation's batch
    assert not [record for record in caplog.records if "chunks" in record.message]
    assert not any("forward" in vars(module) for module in chunked.model.modules())
    calls.count = 0
    metrics, expected = chunked.evaluate(), plain.evaluate()
    assert metrics["eval_loss"] == pytest.approx(expected["eval_loss"], rel=1e-5) and calls.count == 1
    assert not any("forward" in vars(module) for module in chunked.model.modules())


def capped_by_hand() -> nn.Module:
    class Capped(models.Tokens):
        def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> dict[str, torch.Tensor]:
            logits = 2 * torch.tanh(self.head(self.embedding(input_ids)) / 2)
            return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}

    return Capped()


@pytest.mark.parametrize("make", [soft_capped, capped_by_hand])
def test_a_model_that_caps_its_logits_is_right_and_says_so_once(
    make: Callable[[], nn.Module], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = trained(make, tmp_path, chunked_loss="off", num_train_epochs=2)
    assert_equal_runs(trained(make, tmp_path, chunked_loss="on", num_train_epochs=2), plain)
    told = [record for record in caplog.records if "chunks" in record.message]
    assert [record.levelname for record in told] == ["WARNING"]
    assert "torch.Tensor.div" in told[0].message or "torch.Tensor.mul" in told[0].message


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_of_the_users_own(smoothing: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_logits(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = outputs["logits"]
        total = F.cross_entropy(logits[..., :-1, :].flatten(0, 1).float(), labels[..., 1:].flatten(), reduction="sum")
        return total / num_items_in_batch if num_items_in_batch is not None else total / (labels[..., 1:] >= 0).sum()

    settings = {"label_smoothing_factor": smoothing}
    build = {"compute_loss_func": of_logits} if smoothing == 0 else None
    plain = trained(models.llama, tmp_path, build, chunked_loss="off", **settings)
    calls = Calls(monkeypatch)
    assert_equal_runs(trained(models.llama, tmp_path, build, chunked_loss="on", **settings), plain)
    assert (calls.count > 0) is (smoothing == 0)


def test_metrics_see_the_logits_and_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    def accuracy(prediction: kunren.EvalPrediction) -> dict[str, float]:
        return {"mean": float(prediction.predictions.mean())}

    settings = {"gradient_checkpointing": True}
    build = {"compute_metrics": accuracy}
    plain = trained(models.llama, tmp_path, build, chunked_loss="off", **settings)
    chunked = trained(models.llama, tmp_path, build, chunked_loss="on", **settings)
    assert_equal_runs(chunked, plain)
    rows = token_rows()
    found, expected = chunked.predict(rows).predictions, plain.predict(rows).predictions
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_mixed_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"bf16": True, "optim": "sgd"}
    plain = trained(models.gpt2, tmp_path, chunked_loss="off", **settings)
    calls = Calls(monkeypatch)
    chunked = trained(models.gpt2, tmp_path, chunked_loss="on", **settings)
    assert losses(chunked) == pytest.approx(losses(plain), rel=1e-3) and calls.count > 0


def test_auto_leaves_small_logits_as_they_are_and_takes_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    plain = trained(models.llama, tmp_path, chunked_loss="off")
    auto = trained(models.llama, tmp_path)
    assert torch.equal(models.flat(auto.model), models.flat(plain.model)) and calls.count == 0
    monkeypatch.setattr(chunked_loss, "_WORTH_IT", 2 * LENGTH * models.VOCABULARY)
    monkeypatch.setattr(chunked_loss, "_FEWEST_CLASSES", models.VOCABULARY)
    assert_equal_runs(trained(models.llama, tmp_path), plain)
    assert calls.count >= 6


def test_a_run_that_fails_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    class Failing(kunren.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            raise KeyError("stop")

    model = models.gpt2()
    with pytest.raises(KeyError, match="stop"):
        trained(lambda: model, tmp_path, {"callbacks": [Failing()]}, chunked_loss="on")
    assert not any("forward" in vars(module) for module in model.modules())


def test_checkpoints_in_mid_run(tmp_path: Path) -> None:
    trainer = trained(models.gpt2, tmp_path, chunked_loss="on", save_strategy="steps", save_steps=1)
    again = tf.GPT2LMHeadModel.from_pretrained(str(tmp_path / f"checkpoint-{trainer.state.global_step}"))
    assert torch.equal(models.flat(again), models.flat(trainer.model))
