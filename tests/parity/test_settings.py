"""The same tiny run in both libraries over many settings of the arguments: equal bit for bit, dropout on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from parity import models, rows
from parity.harness import Outcome, assert_same_training, train_both, training_entries

# transformers 5.24 has renamed gradient checkpointing and says so; both spellings are among the settings below.
pytestmark = pytest.mark.filterwarnings("ignore:.*activation_checkpointing.*:FutureWarning")

BERT: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosine_with_warmup_steps": {"lr_scheduler_type": "cosine", "warmup_steps": 3},
    "cosine_of_many_cycles": {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 1.5}},
    "constant": {"lr_scheduler_type": "constant"},
    "constant_with_warmup": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 4},
    "warmup_as_a_share": {"warmup_steps": 0.3},
    "weight_decay": {"weight_decay": 0.1},
    "weight_decay_and_cosine": {"weight_decay": 0.3, "lr_scheduler_type": "cosine", "learning_rate": 2e-2},
    "clipping_hard": {"max_grad_norm": 0.1},
    "clipping_off": {"max_grad_norm": 0.0},
    "max_steps_within_an_epoch": {"max_steps": 4},
    "max_steps_over_epochs": {"max_steps": 15},
    "fractional_epochs": {"num_train_epochs": 1.5},
    "less_than_an_epoch": {"num_train_epochs": 0.4},
    "bf16": {"bf16": True},
    "adamw_not_fused": {"optim": "adamw_torch", "weight_decay": 0.01},
    "adam_betas_and_epsilon": {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-4},
    "sgd": {"optim": "sgd", "learning_rate": 0.1},
    "sgd_with_momentum": {"optim": "sgd", "optim_args": "momentum=0.9, nesterov=True", "learning_rate": 0.05},
    "adafactor": {"optim": "adafactor", "weight_decay": 0.01},
    "neftune": {"neftune_noise_alpha": 5.0},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "activation_checkpointing": {"activation_checkpointing": True},
    "label_smoothing": {"label_smoothing_factor": 0.1},
    "seed": {"seed": 7},
    "data_seed": {"data_seed": 11},
    "seed_and_data_seed": {"seed": 3, "data_seed": 11},
    "sequential": {"train_sampling_strategy": "sequential"},
    "logging_every_third_step": {"logging_steps": 3, "max_steps": 10},
    "logging_share_of_the_run": {"logging_steps": 0.25},
    "logging_first_step": {"logging_steps": 5, "logging_first_step": True},
    "logging_every_epoch": {"logging_strategy": "epoch"},
    "counting_tokens": {"include_num_input_tokens_seen": "all"},
    "workers": {"dataloader_num_workers": 2, "num_train_epochs": 1},
    "persistent_workers": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
    "batches_of_one": {"per_device_train_batch_size": 1, "max_steps": 9},
}


@pytest.mark.parametrize("arguments", BERT.values(), ids=BERT.keys())
def test_sequence_classification(arguments: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), arguments)
    assert_same_training(theirs, ours)


@pytest.mark.parametrize("drop_last", [False, True])
def test_last_batch_of_an_epoch_is_shorter(drop_last: bool, tmp_path: Path) -> None:
    theirs, ours = train_both(
        tmp_path, models.bert(), rows.sentences(22), {"dataloader_drop_last": drop_last, "lr_scheduler_type": "cosine"}
    )
    assert_same_training(theirs, ours)
    assert ours.state.global_step == (10 if drop_last else 12)


LLAMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulation_2": {"gradient_accumulation_steps": 2},
    "accumulation_3": {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2},
    "accumulation_with_a_short_last_window": {
        "gradient_accumulation_steps": 4,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
    },
    "accumulation_4_short_windows_in_logs_of_2": {
        "gradient_accumulation_steps": 5,
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
        "logging_steps": 2,
    },
    "accumulation_and_max_steps": {"gradient_accumulation_steps": 4, "max_steps": 4},
    "accumulation_and_fractional_epochs": {"gradient_accumulation_steps": 4, "num_train_epochs": 1.5},
    "accumulation_over_more_than_an_epoch": {"gradient_accumulation_steps": 9, "num_train_epochs": 3},
    "accumulation_and_label_smoothing": {"gradient_accumulation_steps": 2, "label_smoothing_factor": 0.1},
    "accumulation_and_bf16": {"gradient_accumulation_steps": 2, "bf16": True},
    "accumulation_and_workers": {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1},
    "accumulation_and_neftune": {"gradient_accumulation_steps": 2, "neftune_noise_alpha": 5.0},
    "accumulation_and_drop_last": {
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 5,
        "dataloader_drop_last": True,
    },
    "label_smoothing": {"label_smoothing_factor": 0.2},
    "bf16": {"bf16": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
    "gradient_checkpointing_reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "adafactor": {"optim": "adafactor"},
    "weight_decay_cosine_warmup_clipping": {
        "weight_decay": 0.1,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.2,
        "max_grad_norm": 0.5,
    },
}


@pytest.mark.parametrize("arguments", LLAMA.values(), ids=LLAMA.keys())
def test_causal_language_model(arguments: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.llama(), rows.tokens(28, keep=rows.RAGGED), arguments)
    assert_same_training(theirs, ours)


T5: dict[str, dict[str, Any]] = {
    "plain": {},
    "cosine_decay_clipping": {"lr_scheduler_type": "cosine", "weight_decay": 0.1, "max_grad_norm": 0.2},
    "adafactor": {"optim": "adafactor", "learning_rate": 1e-2},
    "bf16": {"bf16": True},
    "gradient_checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("arguments", T5.values(), ids=T5.keys())
def test_sequence_to_sequence(arguments: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.t5(), rows.tokens(keep=rows.RAGGED), arguments)
    assert_same_training(theirs, ours)


def test_sequence_to_sequence_with_label_smoothing(tmp_path: Path) -> None:
    """The decoder's input is in the data, as the seq2seq collator puts it there: transformers takes the labels away."""
    model, data = models.t5(), rows.tokens(keep=rows.RAGGED)
    for row in data.rows:
        row["decoder_input_ids"] = model.prepare_decoder_input_ids_from_labels(row["labels"][None])[0]
    theirs, ours = train_both(tmp_path, model, data, {"label_smoothing_factor": 0.1})
    assert_same_training(theirs, ours)


VIT: dict[str, dict[str, Any]] = {
    "plain": {},
    "sgd_constant": {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant"},
    "weight_decay_warmup": {"weight_decay": 0.1, "warmup_steps": 2},
    "accumulation_2": {"gradient_accumulation_steps": 2},
    "accumulation_3": {"gradient_accumulation_steps": 3},
    "bf16": {"bf16": True},
    "workers_and_accumulation": {"dataloader_num_workers": 1, "gradient_accumulation_steps": 2},
}


@pytest.mark.parametrize("arguments", VIT.values(), ids=VIT.keys())
def test_image_classification(arguments: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.vit(), rows.images(), arguments)
    assert_same_training(theirs, ours)


HEADS: dict[str, tuple[Callable[[], nn.Module], Callable[[], rows.Rows], dict[str, Any]]] = {
    "regression": (lambda: models.bert(num_labels=1, problem_type="regression"), rows.regression, {}),
    "token_classification": (
        lambda: models.bert("BertForTokenClassification"),
        lambda: rows.tokens(keep=rows.RAGGED, classes=3),
        {},
    ),
    "masked_language_model": (lambda: models.bert("BertForMaskedLM"), lambda: rows.tokens(keep=rows.RAGGED), {}),
    "question_answering": (lambda: models.bert("BertForQuestionAnswering"), rows.questions, {}),
    "question_answering_accumulation_2": (
        lambda: models.bert("BertForQuestionAnswering"),
        rows.questions,
        {"gradient_accumulation_steps": 2},
    ),
    "plain_module": (lambda: models.Points(0.3), rows.points, {}),
    "plain_module_accumulation_2": (lambda: models.Points(0.3), rows.points, {"gradient_accumulation_steps": 2}),
    "plain_module_accumulation_3": (lambda: models.Points(0.3), rows.points, {"gradient_accumulation_steps": 3}),
    "plain_module_short_last_window": (lambda: models.Points(0.3), rows.points, {"gradient_accumulation_steps": 4}),
    "plain_module_counting_accumulation_3": (
        lambda: models.PointsTakingCount(0.3),
        rows.points,
        {"gradient_accumulation_steps": 3},
    ),
}


@pytest.mark.parametrize(("model", "data", "arguments"), HEADS.values(), ids=HEADS.keys())
def test_other_kinds_of_model(
    model: Callable[[], nn.Module],
    data: Callable[[], rows.Rows],
    arguments: dict[str, Any],
    tmp_path: Path,
) -> None:
    theirs, ours = train_both(tmp_path, model(), data(), arguments)
    assert_same_training(theirs, ours)


def test_frozen_parameters_stay_and_the_rest_is_equal(tmp_path: Path) -> None:
    model = models.bert()
    for parameter in model.bert.parameters():
        parameter.requires_grad = False
    theirs, ours = train_both(tmp_path, model, rows.sentences(), {"weight_decay": 0.1})
    assert_same_training(theirs, ours)
    assert all(bool((ours.weights[f"bert.{n}"] == p).all()) for n, p in model.bert.named_parameters())


def test_kunren_logs_the_window_that_the_end_of_the_run_cuts_short(tmp_path: Path) -> None:
    theirs, ours = train_both(tmp_path, models.bert(), rows.sentences(), {"logging_steps": 5})
    assert_same_training(theirs, ours)
    assert sorted(training_entries(theirs)) == [5, 10]
    assert sorted(training_entries(ours)) == [5, 10, 12]
    assert _mean_of_windows(ours) == pytest.approx(ours.result.training_loss, rel=1e-6)
    assert [entry["step"] for entry in ours.log if "train_loss" in entry] == [12]


def _mean_of_windows(outcome: Outcome) -> float:
    total, last = 0.0, 0
    for step, entry in sorted(training_entries(outcome).items()):
        total += entry["loss"] * (step - last)
        last = step
    return total / last
