"""Generation in evaluation: it changes nothing of a training, and nothing of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from parity import models
from torch import nn
from unit.seq2seq.tiny import (
    PAD,
    TOKENIZER,
    prompts_and_answers,
    settings_of,
    sources_and_targets,
    trainer_for,
    trimmed,
)

import kunren
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments

ROWS = sources_and_targets(12)


def count(prediction: Any) -> dict[str, float]:
    return {"rows": float(len(prediction.predictions))}


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_a_training_is_the_same_with_and_without(kind: str, tmp_path: Path) -> None:
    rows = ROWS if kind == "bart" else prompts_and_answers(12)
    weights, losses = [], []
    for evaluates in (False, True):
        model = getattr(models, kind)(0.2)
        model.generation_config.do_sample = True  # draws random numbers, as dropout does
        before = settings_of(model)
        trainer = trainer_for(
            model,
            tmp_path,
            rows,
            train_dataset=rows,
            compute_metrics=count,
            num_train_epochs=2,
            logging_steps=1,
            eval_strategy="steps" if evaluates else "no",
            eval_steps=1,
            generation_max_length=14,
        )
        trainer.train()
        evaluations = [entry for entry in trainer.state.log_history if "eval_rows" in entry]
        assert len(evaluations) == (6 if evaluates else 0)
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
        before["model"]["use_cache"] = False  # as the arguments have it, in every training
        assert settings_of(model) == before
    assert losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_settings_given_for_the_evaluation_are_not_saved_with_the_model(tmp_path: Path) -> None:
    model = models.t5(0.0)
    config = transformers.GenerationConfig(max_length=6, num_beams=2, decoder_start_token_id=0, pad_token_id=PAD)
    trainer = trainer_for(model, tmp_path, ROWS, generation_config=config)
    trainer.predict(ROWS)
    trainer.save_model()
    assert transformers.GenerationConfig.from_pretrained(tmp_path).num_beams is None
    assert config.num_beams == 2 and config.eos_token_id is None


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_settings_without_special_tokens_have_those_of_the_model(kind: str, tmp_path: Path) -> None:
    """On transformers an encoder-decoder has no token to start with then, and a decoder none to end with."""
    rows = ROWS if kind == "bart" else prompts_and_answers(12)
    model = getattr(models, kind)(0.0)
    model.generation_config.pad_token_id = PAD
    found = trainer_for(model, tmp_path, generation_config={"max_new_tokens": 6, "num_beams": 2}).predict(rows)
    expected = trainer_for(model, tmp_path).predict(rows, max_new_tokens=6, num_beams=2)
    numpy.testing.assert_array_equal(found.predictions, expected.predictions)


def test_the_length_of_the_first_batch_is_that_of_the_others(tmp_path: Path) -> None:
    """transformers writes its default into the model after the first batch, and reads it as the user's from then on."""
    model = models.bart(0.0)
    model.generation_config.eos_token_id = None
    with pytest.warns(UserWarning, match="model-agnostic default"):
        found = trainer_for(model, tmp_path).predict(ROWS)
    ends = [len(trimmed(row)) for row in found.predictions]
    assert set(ends) == {21}  # the start token and 20 more


def test_options_reach_each_of_several_sets(tmp_path: Path) -> None:
    widths = []

    def width(prediction: Any) -> dict[str, float]:
        widths.append(prediction.predictions.shape[1])
        return {"width": prediction.predictions.shape[1]}

    model = models.bart(0.0)
    model.generation_config.eos_token_id = None
    trainer = trainer_for(model, tmp_path, {"a": ROWS[:4], "b": ROWS[4:]}, compute_metrics=width)
    metrics = trainer.evaluate(max_length=5)
    assert metrics["eval_a_width"] == metrics["eval_b_width"] == 5
    trainer._gen_kwargs = {"max_length": 7, "num_beams": None}  # as overrides of evaluate() set it
    assert trainer.evaluation_loop(trainer.get_eval_dataloader("a"), "Test").predictions.shape == (4, 7)


def test_several_lengths_are_joined_with_the_padding_token_and_nothing_is_lost(tmp_path: Path) -> None:
    class Growing(nn.Module):
        """Row n writes n tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(()))

        def can_generate(self) -> bool:
            return True

        def forward(self, input_ids: torch.Tensor, attention_mask: Any, labels: torch.Tensor) -> Any:
            return {"loss": self.weight + 1.0, "logits": input_ids}

        def generate(self, input_ids: torch.Tensor) -> torch.Tensor:
            lengths = input_ids[:, 0]
            place = torch.arange(int(lengths.max()))
            return torch.where(place < lengths[:, None], lengths[:, None], PAD)

    lengths = [2, 1, 9, 3, 4, 5, 1, 8, 2, 1]
    rows = [{"input_ids": [length], "labels": [length] * length} for length in lengths]
    batches = trainer_for(Growing(), tmp_path, per_device_eval_batch_size=3)
    found = batches.predict(rows)
    assert found.predictions.tolist() == [[length] * length + [PAD] * (9 - length) for length in lengths]
    assert found.label_ids.tolist() == [[length] * length + [-100] * (9 - length) for length in lengths]


def test_other_inputs_than_tokens(tmp_path: Path) -> None:
    """Sound in, text out, as for Whisper; the labels are not handed to the generation."""
    config = transformers.WhisperConfig(
        vocab_size=50,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        num_mel_bins=8,
        max_source_positions=10,
        max_target_positions=20,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=3,
        decoder_start_token_id=2,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model = transformers.WhisperForConditionalGeneration(config)
    generator = torch.Generator().manual_seed(1)
    rows = [
        {"input_features": torch.randn(8, 20, generator=generator), "labels": torch.randint(5, 50, (4,))}
        for _ in range(5)
    ]
    # As scripts for it do, which decode with a tokenizer of their own.
    extractor = transformers.WhisperFeatureExtractor(feature_size=8)
    collator = kunren.default_data_collator
    trainer = trainer_for(model, tmp_path, data_collator=collator, processing_class=extractor)
    found = trainer.predict(rows, max_new_tokens=5)
    assert (found.predictions >= 0).all()
    model.eval()
    expected = model.generate(input_features=rows[0]["input_features"][None], max_new_tokens=5)
    assert trimmed(found.predictions[0]) == trimmed(expected[0])
    assert found.predictions.shape[0] == found.label_ids.shape[0] == 5
    assert found.metrics["test_loss"] > 0


def test_without_generation_it_is_a_trainer(tmp_path: Path) -> None:
    model = models.t5(0.0)
    trainer = trainer_for(model, tmp_path, ROWS, predict_with_generate=False)
    plain = kunren.Trainer(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(tmp_path), use_cpu=True, per_device_eval_batch_size=4),
        data_collator=trainer.data_collator,
        processing_class=TOKENIZER,
    )
    ours, theirs = trainer.predict(ROWS, max_length=5, num_beams=2), plain.predict(ROWS)
    numpy.testing.assert_array_equal(ours.predictions[0], theirs.predictions[0])
    assert ours.metrics["test_loss"] == theirs.metrics["test_loss"]


@pytest.mark.parametrize("kind", [transformers.Seq2SeqTrainingArguments, transformers.TrainingArguments])
def test_arguments_made_by_transformers(kind: Any, tmp_path: Path) -> None:
    generates = {"predict_with_generate": True} if kind is transformers.Seq2SeqTrainingArguments else {}
    trainer = Seq2SeqTrainer(
        model=models.t5(0.0),
        args=kind(output_dir=str(tmp_path), report_to="none", use_cpu=True, **generates),
        data_collator=kunren.DataCollatorForSeq2Seq(TOKENIZER),
        processing_class=TOKENIZER,
    )
    found = trainer.predict(ROWS, max_length=6)
    assert isinstance(found.predictions, tuple) is not bool(generates)


def test_memory_that_runs_out_costs_smaller_batches_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model, sizes = prompts_and_answers(12), models.llama(0.0), []
    expected = trainer_for(model, tmp_path).predict(rows, max_new_tokens=5)
    generate = model.generate

    def little(**inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return generate(**inputs)

    monkeypatch.setattr(model, "generate", little)
    found = trainer_for(model, tmp_path).predict(rows, max_new_tokens=5)
    assert sizes == [4, 2, 2, 2, 2, 2, 2]
    numpy.testing.assert_array_equal(found.predictions, expected.predictions)


def test_a_packed_training_is_evaluated_row_by_row(tmp_path: Path) -> None:
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in prompts_and_answers(12)]
    found = []
    for batching in ("padded", "packed"):
        options = {"batching": batching, "max_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
        given = {"train_dataset": rows, "metrics": ["cer", "chrf"], "generation_config": {"max_new_tokens": 5}}
        trainer = trainer_for(models.llama(0.0), tmp_path, rows, **options, **given)
        trainer.train()
        found.append(next(entry for entry in trainer.state.log_history if "eval_cer" in entry))
    for name in ("eval_loss", "eval_cer", "eval_chrf"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)


@pytest.mark.parametrize("options", [{"bf16": True}, {"bf16_full_eval": True}, {"label_smoothing_factor": 0.1}])
def test_the_loss_is_that_of_an_evaluation_without_generation(options: dict[str, Any], tmp_path: Path) -> None:
    rows = prompts_and_answers(12)
    plain = trainer_for(models.llama(0.0), tmp_path, predict_with_generate=False, **options).predict(rows)
    found = trainer_for(models.llama(0.0), tmp_path, **options).predict(rows, max_new_tokens=4)
    assert found.metrics["test_loss"] == plain.metrics["test_loss"]
    assert found.predictions.shape == (12, 4)


def test_an_evaluation_without_metrics_generates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.t5(0.0)

    def generate(**inputs: Any) -> Any:
        raise AssertionError("generated for nobody")

    monkeypatch.setattr(model, "generate", generate)
    assert trainer_for(model, tmp_path, ROWS).evaluate()["eval_loss"] > 0


def test_overrides_of_the_loss_and_of_the_inputs_are_heard_once(tmp_path: Path) -> None:
    calls: list[str] = []

    class Own(Seq2SeqTrainer):
        def compute_loss(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            inputs.pop("labels")
            calls.append("loss")
            loss = torch.tensor(3.0)
            return (loss, {}) if options.get("return_outputs") else loss

        def _prepare_inputs(self, inputs: Any) -> Any:
            calls.append("inputs")
            return super()._prepare_inputs(inputs)

    model = models.t5(0.0)
    trainer = Own(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(tmp_path), predict_with_generate=True, use_cpu=True),
        data_collator=kunren.DataCollatorForSeq2Seq(TOKENIZER),
        processing_class=TOKENIZER,
    )
    found = trainer.predict(ROWS[:3], max_length=5)
    assert found.metrics["test_loss"] == 3.0 and found.label_ids is not None
    assert calls == ["inputs", "loss"]
