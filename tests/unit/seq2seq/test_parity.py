"""The same evaluation on transformers' Seq2SeqTrainer: equal texts, losses and metrics."""

from __future__ import annotations

import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy
import pytest
import transformers
from parity import models
from torch import nn
from unit.seq2seq.tiny import PAD, QUIET, TOKENIZER, settings_of, sources_and_targets

import kunren
import kunren.seq2seq

ROWS = sources_and_targets(12, target_length=5)
CONFIG = transformers.GenerationConfig(
    max_length=10, num_beams=2, length_penalty=2.0, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1
)


@pytest.fixture(autouse=True)
def quiet() -> None:
    transformers.logging.set_verbosity_error()


def evaluated(
    library: ModuleType,
    model: nn.Module,
    folder: Path,
    arguments: dict[str, Any],
    told: dict[str, Any],
    rows: list[dict[str, Any]] = ROWS,
) -> tuple[dict[str, float], Any]:
    model = copy.deepcopy(model)

    def written(prediction: Any) -> dict[str, float]:
        return {"written": float((prediction.predictions != PAD).sum()), "sum": float(prediction.predictions.sum())}

    trainer = library.Seq2SeqTrainer(
        model=model,
        args=library.Seq2SeqTrainingArguments(output_dir=str(folder), **{**QUIET, **arguments}),
        data_collator=transformers.DataCollatorForSeq2Seq(TOKENIZER, model=model),
        processing_class=TOKENIZER,
        compute_metrics=written,
        eval_dataset=rows,
    )
    return trainer.evaluate(**told), trainer.predict(rows, **told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"generation_max_length": 12, "generation_num_beams": 3}, {}),
        ({"generation_max_length": 12}, {"max_length": 7}),
        ({}, {"max_new_tokens": 7, "num_beams": 2}),
        ({}, {"max_new_tokens": 7, "num_beams": None, "repetition_penalty": 1.5}),
        ({"generation_config": CONFIG}, {}),
        ({"generation_config": "saved"}, {"max_new_tokens": 6}),
    ],
    ids=["arguments", "keyword wins", "new tokens and beams", "other keywords", "object", "path"],
)
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_transformers_generates_the_same(
    name: str, arguments: dict[str, Any], told: dict[str, Any], tmp_path: Path
) -> None:
    if arguments.get("generation_config") == "saved":
        CONFIG.save_pretrained(tmp_path)
        arguments = {"generation_config": str(tmp_path)}
    model = getattr(models, name)(0.0)
    before = settings_of(model)
    ours, found = evaluated(kunren.seq2seq, model, tmp_path, arguments, told)
    theirs, expected = evaluated(transformers, model, tmp_path, arguments, told)

    for key in ("eval_loss", "eval_written", "eval_sum"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-6)
        test = key.replace("eval", "test")
        assert found.metrics[test] == pytest.approx(expected.metrics[test], rel=1e-6)
    width = found.predictions.shape[1]
    numpy.testing.assert_array_equal(found.predictions, expected.predictions[:, :width])
    assert (expected.predictions[:, width:] == PAD).all()  # up to the model's max_length, whatever was asked for
    numpy.testing.assert_array_equal(found.label_ids, expected.label_ids[:, :5])
    assert settings_of(model) == before


def test_the_loss_of_one_batch_is_bit_for_bit(tmp_path: Path) -> None:
    # transformers takes the mean of a number for each row, in single precision: of eight it is exact.
    arguments = {"generation_max_length": 6, "per_device_eval_batch_size": 8}
    ours, _ = evaluated(kunren.seq2seq, models.t5(0.0), tmp_path, arguments, {}, ROWS[:8])
    theirs, _ = evaluated(transformers, models.t5(0.0), tmp_path, arguments, {}, ROWS[:8])
    assert ours["eval_loss"] == theirs["eval_loss"]


def test_the_arguments_have_transformers_names_and_defaults(tmp_path: Path) -> None:
    names = ("sortish_sampler", "predict_with_generate", "generation_max_length", "generation_num_beams")
    ours = kunren.seq2seq.Seq2SeqTrainingArguments(output_dir=str(tmp_path))
    theirs = transformers.Seq2SeqTrainingArguments(output_dir=str(tmp_path))
    for name in (*names, "generation_config"):
        assert getattr(ours, name) == getattr(theirs, name)
