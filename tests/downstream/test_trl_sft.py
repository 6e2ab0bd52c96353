"""TRL's SFTTrainer on kunren, by `install()`: what it does on transformers' Trainer, bit for bit.

One number differs where it is a mean over batches of unequal token counts: the loss of an evaluation, see
`test_an_evaluation_in_batches_of_unequal_token_counts`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from downstream.runner import Side, assert_same_log, assert_same_outcome, entries

TRAIN = "downstream.sft_runs:train"
OF_TRL = {"entropy", "mean_token_accuracy", "num_tokens"}


def test_a_few_steps(on_kunren: Side, tmp_path: Path) -> None:
    """The quick one: it runs, on kunren's classes, learns, and logs what TRL adds."""
    ours = on_kunren(TRAIN, tmp_path, gradient_accumulation_steps=2)
    assert ours["trainer"][:3] == [
        "trl.trainer.sft_trainer.SFTTrainer",
        "trl.trainer.base_trainer._BaseTrainer",
        "kunren.trainer.Trainer",
    ]
    logged = entries(ours["log"])
    assert list(logged) == [1, 2, 3, 4, 5, 6]
    assert all(set(entry) >= OF_TRL for entry in logged.values())
    assert logged[6]["loss"] < logged[1]["loss"]
    # The first batch is computed more often, to find out what its loss divides by: it is counted once all the same.
    assert [entry["num_tokens"] for entry in logged.values()] == [93, 172, 252, 333, 412, 504]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": 0.1},
        {"kind": "completion"},
        {"kind": "completion", "completion_only_loss": False},
        {"kind": "chat"},
        {"kind": "chat", "assistant_only_loss": True},
        {"packing": True, "max_length": 16},
        {"packing": True, "max_length": 16, "packing_strategy": "wrapped"},
        {"padding_free": True, "max_length": None},
        {"gradient_checkpointing": True, "dropout": 0.1},
        {"bf16": True},
        {"bf16": True, "gradient_checkpointing": True, "gradient_accumulation_steps": 2, "dropout": 0.1},
        {"kind": "completion", "gradient_accumulation_steps": 4, "per_device_train_batch_size": 3},
        {
            "kind": "completion",
            "gradient_accumulation_steps": 4,
            "per_device_train_batch_size": 4,
        },  # windows of 4 and 2
        {"loss_type": "dft", "gradient_accumulation_steps": 2},
        {"label_smoothing_factor": 0.1},
        {"neftune_noise_alpha": 5.0},
        {"optim": "adafactor", "lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 0.1},
        {"logging_steps": 5, "logging_first_step": True},
    ],
    ids=lambda options: ", ".join(f"{name}={value}" for name, value in options.items()),
)
def test_the_same_training(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    theirs, ours = both(TRAIN, tmp_path, **options)
    assert_same_outcome(theirs, ours)
    assert all(set(entry) >= OF_TRL for entry in entries(ours["log"]).values())


@pytest.mark.slow
def test_an_evaluation_in_one_batch(both: Any, tmp_path: Path) -> None:
    """Equal, its loss to what transformers rounds: it adds the row losses up in float32."""
    theirs, ours = both(TRAIN, tmp_path, evaluates=True, eval_strategy="epoch", per_device_eval_batch_size=10)
    assert_same_outcome(theirs, ours)
    assert_same_log(theirs["log"], ours["log"], "eval_loss", apart={"eval_loss": 1e-6})
    assert len(entries(ours["log"], "eval_mean_token_accuracy")) == 2


@pytest.mark.slow
def test_an_evaluation_in_batches_of_unequal_token_counts(both: Any, tmp_path: Path) -> None:
    """TRL's own metrics are equal. The loss is the mean over all tokens, which is that of one large batch.

    transformers weights the mean of each batch by its rows, whatever they hold: its loss moves with the batch size.
    """
    options = {"evaluates": True, "eval_strategy": "epoch", "kind": "completion"}
    theirs, ours = both(TRAIN, tmp_path, **options)
    whole_of_theirs, whole_of_ours = both(TRAIN, tmp_path, **options, per_device_eval_batch_size=10)
    assert_same_log(theirs["log"], ours["log"], "eval_loss", without=("eval_loss",))
    for step, entry in entries(whole_of_ours["log"], "eval_loss").items():
        assert entry["eval_loss"] == pytest.approx(entries(ours["log"], "eval_loss")[step]["eval_loss"], rel=1e-6)
        in_one = entries(whole_of_theirs["log"], "eval_loss")[step]["eval_loss"]
        assert entry["eval_loss"] == pytest.approx(in_one, rel=1e-6)
        assert abs(entries(theirs["log"], "eval_loss")[step]["eval_loss"] - in_one) > 1e-5


@pytest.mark.slow
def test_evaluate(both: Any, tmp_path: Path) -> None:
    """Of the Trainer's own rows, of given ones, of several sets; before and after a training."""
    theirs, ours = both("downstream.sft_runs:evaluate_rows", tmp_path)
    assert ours["is_training"] is True  # the model is left as it was
    for name in ("before", "after", "given", "several"):
        names = {key for key in theirs[name] if not key.endswith("_preparation_time")}
        assert names <= set(ours[name])
        for key in names:
            if "accuracy" in key or "entropy" in key or "num_tokens" in key:
                assert ours[name][key] == theirs[name][key], (name, key)
    assert len(entries(ours["log"], "eval_short_mean_token_accuracy")) == 0  # TRL names them by `eval_` alone
    assert "eval_mean_token_accuracy" in ours["given"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"gradient_accumulation_steps": 2, "kind": "completion"}])
def test_resumed_is_undisturbed(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    """Log, weights and totals. TRL counts its tokens from the start of the process, in both libraries."""
    theirs, ours = both("downstream.sft_runs:resume", tmp_path, **options)
    undisturbed, resumed = ours["undisturbed"], ours["resumed"]
    assert_same_outcome(theirs["undisturbed"], undisturbed)
    assert_same_log(undisturbed["log"], resumed["log"], without=("num_tokens",))
    assert resumed["weights"] == undisturbed["weights"]
    assert resumed["training_loss"] == undisturbed["training_loss"]  # transformers': of the steps since then
    assert len(entries(resumed["log"])) == len(entries(undisturbed["log"]))


@pytest.mark.slow
def test_the_best_model_by_a_metric_of_trl(both: Any, tmp_path: Path) -> None:
    """`log` adds it to the evaluation, which a look at its names before the training cannot know."""
    theirs, ours = both("downstream.sft_runs:best_model", tmp_path)
    assert_same_outcome(theirs, ours)
    assert ours["best_metric"] == theirs["best_metric"] > 0
    assert ours["loaded"] == theirs["loaded"]
    assert ours["loaded"].items() >= ours["weights"].items()
    assert ours["card"] == theirs["card"] != []


@pytest.mark.slow
def test_callbacks_of_trl(both: Any, tmp_path: Path) -> None:
    """BEMACallback, RichProgressCallback, and one that hears what they are told, in which order, in which mode."""
    theirs, ours = both("downstream.sft_runs:with_callbacks", tmp_path)
    assert_same_outcome(theirs, ours)
    assert ours["heard"] == theirs["heard"]
    assert ours["bema"] == theirs["bema"]


@pytest.mark.slow
def test_arguments_of_the_trainer_itself(both: Any, tmp_path: Path) -> None:
    theirs, ours = both("downstream.sft_runs:plain_arguments", tmp_path)
    assert_same_outcome(theirs, ours)
    assert (ours["args"], ours["max_length"]) == (theirs["args"], theirs["max_length"]) == ("SFTConfig", 1024)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"gradient_accumulation_steps": 2}])
def test_a_stream(both: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    """The epoch apart: after a first pass kunren knows how long one is, transformers takes it for max_steps steps."""
    theirs, ours = both("downstream.sft_runs:stream", tmp_path, **options)
    assert_same_log(theirs["log"], ours["log"], without=("epoch",))
    assert ours["weights"] == theirs["weights"] != {}
    assert ours["training_loss"] == theirs["training_loss"]


@pytest.mark.slow
def test_arguments_as_json_text(both: Any, tmp_path: Path) -> None:
    theirs, ours = both("downstream.sft_runs:json_arguments", tmp_path)
    assert ours == theirs
    assert ours[0] == {"dtype": "float32", "attn_implementation": "eager"}


@pytest.mark.slow
def test_what_trl_says_before_there_is_a_trainer(both: Any, tmp_path: Path) -> None:
    theirs, ours = both("downstream.sft_runs:with_advice", tmp_path)
    assert_same_outcome(theirs, ours)
    for side in ("transformers", "kunren"):
        assert "`model_init_kwargs` will be ignored" in (tmp_path / side / "output.txt").read_text()
