"""Prompt and answer in one row: what is generated from the prompts of a batch, and what comes back."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from parity import models
from parity.tokenizer import make_tokenizer
from torch import nn
from unit.seq2seq.tiny import (
    EOS,
    PAD,
    TOKENIZER,
    prompt_of,
    prompts_and_answers,
    sources_and_targets,
    trainer_for,
    trimmed,
)

import kunren
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from kunren.seq2seq.generation import Generation, generate
from kunren.seq2seq.prompts import prompts_of_decoder


@functools.cache
def model_called(name: str) -> Any:
    model = getattr(models, name)(0.0).eval()
    model.generation_config.eos_token_id = EOS
    for parameter in model.parameters():  # wide apart, so that rounding decides nothing
        parameter.data *= 3
    return model


def alone(model: Any, prompt: list[int], **options: Any) -> list[int]:
    """What transformers generates for one prompt."""
    tokens = model.generate(torch.tensor([prompt]), pad_token_id=PAD, do_sample=False, **options)
    return trimmed(tokens[0, len(prompt) :])


@settings(max_examples=25, deadline=None)
@example(  # a beam that goes on in the batch, and has ended alone
    name="llama",
    lengths=[(2, 0), (9, 0), (9, 0), (9, 0)],
    seed=593,
    options={"max_length": 12, "num_beams": 3},
    on_the_left=False,
    has_mask=False,
)
@given(
    name=st.sampled_from(["llama", "gpt2"]),
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    options=st.sampled_from([{"max_new_tokens": 6}, {"max_length": 12}, {"max_length": 12, "num_beams": 3}]),
    on_the_left=st.booleans(),
    has_mask=st.booleans(),
)
def test_a_batch_writes_what_each_row_writes_alone(
    name: str,
    lengths: list[tuple[int, int]],
    seed: int,
    options: dict[str, Any],
    on_the_left: bool,
    has_mask: bool,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(5, 50, (length,), generator=generator).tolist() for length, _ in lengths]
    answers = [torch.randint(5, 50, (length,), generator=generator).tolist() for _, length in lengths]
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))

    def padded(row: list[int], fill: int) -> list[int]:
        filling = [fill] * (width - len(row))
        return filling + row if on_the_left else row + filling

    pairs = list(zip(prompts, answers, strict=True))
    batch = {
        "input_ids": torch.tensor([padded(prompt + answer, PAD) for prompt, answer in pairs]),
        "labels": torch.tensor([padded([-100] * len(prompt) + answer, -100) for prompt, answer in pairs]),
    }
    if has_mask:
        batch["attention_mask"] = torch.tensor([padded([1] * len(prompt + answer), 0) for prompt, answer in pairs])
        batch["position_ids"] = torch.zeros_like(batch["input_ids"])  # of the whole rows: not those of the prompts
    found = prompts_of_decoder(batch, ["labels"], PAD)
    assert found.answers is not None
    assert [trimmed(row, -100) for row in found.answers] == answers

    model = model_called(name)
    tokens = generate(model, found, Generation(options, pad_token=PAD))
    assert [trimmed(row) for row in tokens] == [alone(model, prompt, **options) for prompt in prompts]
    assert tokens.shape[1] <= (6 if "max_new_tokens" in options else 12 - min(map(len, prompts)))


def test_evaluation_compares_answer_with_answer(tmp_path: Path) -> None:
    rows, model, seen = prompts_and_answers(), model_called("llama"), []

    def keep(prediction: Any) -> dict[str, float]:
        seen.append(prediction)
        return {}

    trainer = trainer_for(model, tmp_path, rows, compute_metrics=keep)
    metrics = trainer.evaluate(max_length=16)
    plain = trainer_for(model, tmp_path, rows, predict_with_generate=False)
    assert metrics["eval_loss"] == plain.evaluate()["eval_loss"]  # of prompt and answer, as without generation
    for row, tokens, labels in zip(rows, seen[0].predictions, seen[0].label_ids, strict=True):
        assert trimmed(tokens) == alone(model, prompt_of(row), max_length=16)
        assert trimmed(labels, -100) == [label for label in row["labels"] if label != -100]


@pytest.mark.parametrize("batch_size", [1, 3, 11])
def test_predictions_do_not_depend_on_the_batches(batch_size: int, tmp_path: Path) -> None:
    rows, model = prompts_and_answers(), model_called("gpt2")
    found = trainer_for(model, tmp_path, rows, per_device_eval_batch_size=batch_size).predict(rows, max_length=15)
    expected = trainer_for(model, tmp_path, rows).predict(rows, max_length=15)
    numpy.testing.assert_array_equal(found.predictions, expected.predictions)
    numpy.testing.assert_array_equal(found.label_ids, expected.label_ids)
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], rel=1e-6)


def test_rows_may_carry_their_prompts(tmp_path: Path) -> None:
    rows, model = prompts_and_answers(), model_called("llama")
    expected = trainer_for(model, tmp_path, rows).predict(rows, max_new_tokens=5)
    # Prompts of their own, of whose tokens the loss sees nothing.
    carried = [{**row, "generation_input_ids": prompt_of(row)} for row in rows]
    import datasets

    for data in (carried, datasets.Dataset.from_list(carried)):
        for removes in (True, False):
            options = {"remove_unused_columns": removes, "max_steps": 1}
            trainer = trainer_for(model_called("llama"), tmp_path, data, train_dataset=data, **options)
            found = trainer.predict(data, max_new_tokens=5)
            numpy.testing.assert_array_equal(found.predictions, expected.predictions)
            assert found.metrics["test_loss"] == expected.metrics["test_loss"]
            batch = next(iter(trainer.get_train_dataloader()))
            assert not any(name.startswith("generation_") for name in batch)
    other = [{**row, "generation_input_ids": [7, 8, 9]} for row in rows[:2]]
    found = trainer_for(model, tmp_path).predict(other, max_new_tokens=5)
    assert [trimmed(row) for row in found.predictions] == [alone(model, [7, 8, 9], max_new_tokens=5)] * 2
    with pytest.raises(ValueError, match="Row 1 of a batch has no 'generation_input_ids'"):
        trainer_for(model, tmp_path).predict([carried[0], rows[1]])


def test_rows_without_labels_are_prompts(tmp_path: Path) -> None:
    rows, model = [{"input_ids": prompt_of(row)} for row in prompts_and_answers()], model_called("llama")
    trainer = trainer_for(model, tmp_path, data_collator=kunren.DataCollatorWithPadding(TOKENIZER))
    found = trainer.predict(rows, max_new_tokens=5)
    assert [trimmed(row) for row in found.predictions] == [
        alone(model, row["input_ids"], max_new_tokens=5) for row in rows
    ]
    assert found.label_ids is None


def test_of_several_turns_the_last_is_generated(tmp_path: Path) -> None:
    row = {"input_ids": [5, 6, 7, 8, 9, 10, 11, 12], "labels": [-100, -100, 7, 8, -100, -100, 11, 12]}
    model = model_called("llama")
    found = trainer_for(model, tmp_path).predict([row], max_new_tokens=4)
    assert trimmed(found.predictions[0]) == alone(model, row["input_ids"][:6], max_new_tokens=4)
    assert found.label_ids.tolist() == [[11, 12]]


def test_an_override_written_for_transformers_gets_what_it_got_there(tmp_path: Path) -> None:
    """As libraries do that take labels and prompts away themselves."""

    class Theirs(Seq2SeqTrainer):
        def prediction_step(self, model: Any, inputs: Any, loss_only: bool, *rest: Any, **options: Any) -> Any:
            labels = inputs.pop("labels")
            loss, tokens, _ = super().prediction_step(model, inputs, loss_only, *rest, **options)
            tokens[:, : inputs["input_ids"].shape[1]] = PAD
            return loss, tokens.contiguous(), labels

    model, prompts = model_called("llama"), [prompt_of(row) for row in prompts_and_answers(4)]
    rows = [{"input_ids": prompt, "labels": [9, 9]} for prompt in prompts]
    left = make_tokenizer(padding_side="left")
    trainer = Theirs(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(tmp_path), predict_with_generate=True, use_cpu=True),
        data_collator=kunren.DataCollatorForSeq2Seq(left, pad_to_multiple_of=8),
        processing_class=left,
    )
    found = trainer.predict(rows, max_new_tokens=5)
    for prompt, tokens in zip(prompts, found.predictions, strict=True):
        assert [token for token in tokens if token != PAD] == alone(model, prompt, max_new_tokens=5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads what transformers renamed
def test_adapters_generate(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = models.llama(0.0)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, init_lora_weights=False, task_type="CAUSAL_LM"))
    config = transformers.GenerationConfig(max_new_tokens=4, pad_token_id=PAD, eos_token_id=EOS)
    before = base.generation_config
    rows = prompts_and_answers(5)
    found = trainer_for(adapted, tmp_path, generation_config=config).predict(rows)
    adapted.eval()
    assert [trimmed(row) for row in found.predictions] == [
        alone(base, prompt_of(row), max_new_tokens=4, eos_token_id=EOS) for row in rows
    ]
    assert base.generation_config is before


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_adapters_of_an_encoder_decoder_generate(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    base = models.t5(0.0)
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=2, init_lora_weights=False, task_type="SEQ_2_SEQ_LM"))
    rows = sources_and_targets(5)
    trainer = trainer_for(adapted, tmp_path, rows, generation_config={"max_new_tokens": 4, "num_beams": 2})
    found = trainer.predict(rows)
    adapted.eval()
    for row, tokens in zip(rows, found.predictions, strict=True):
        expected = base.generate(torch.tensor([row["input_ids"]]), max_new_tokens=4, num_beams=2)
        assert trimmed(tokens) == trimmed(expected[0])


class Loop(nn.Module):
    """No model of transformers: it writes the last token of its prompt again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 50)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.embedding(input_ids)
        loss = None if labels is None else nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}

    def generate(self, input_ids: torch.Tensor, times: int = 2) -> torch.Tensor:
        return input_ids[:, -1:].repeat(1, times)


def test_a_model_of_ones_own_generates(tmp_path: Path) -> None:
    rows = [{"input_ids": [4, 5], "labels": [5, 6]}, {"input_ids": [7, 8], "labels": [8, 9]}]
    trainer = trainer_for(Loop(), tmp_path, data_collator=kunren.default_data_collator)
    assert trainer.predict(rows).predictions.tolist() == [[5, 5], [8, 8]]
    assert trainer.predict(rows, times=3).predictions.tolist() == [[5, 5, 5], [8, 8, 8]]
    with pytest.raises(TypeError, match=r"'time' is no option of Loop.generate. Did you mean 'times'"):
        trainer.predict(rows, time=3)
