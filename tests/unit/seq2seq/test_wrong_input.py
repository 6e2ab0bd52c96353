"""What cannot work is told at construction, or before the first step, with what to change."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity import models
from unit.seq2seq.tiny import TOKENIZER, prompts_and_answers, sources_and_targets, trainer_for

import kunren
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments

ROWS = sources_and_targets(6)


def nothing(prediction: Any) -> dict[str, float]:
    return {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"generation_max_length": 0}, "generation_max_length=0 cannot work"),
        ({"generation_num_beams": 0}, "generation_num_beams=0 cannot work"),
        ({"generation_num_beams": 2.5}, "generation_num_beams=2.5 cannot work: it must be a whole number"),
        ({"predict_with_generate": "perhaps"}, "it is a switch"),
        ({"prediction_loss_only": True}, "prediction_loss_only=True cannot work.*Keep one"),
        ({"generation_max_lenght": 3}, "Did you mean 'generation_max_length'"),
    ],
)
def test_arguments(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Seq2SeqTrainingArguments(output_dir=str(tmp_path), **{"predict_with_generate": True, **settings})


def test_arguments_from_text_and_back(tmp_path: Path) -> None:
    config = transformers.GenerationConfig(num_beams=2, max_length=6)
    given = Seq2SeqTrainingArguments(output_dir=str(tmp_path), generation_max_length="8", generation_config=config)
    assert given.generation_max_length == 8
    values = given.to_dict()
    assert values["generation_config"]["num_beams"] == 2
    again = Seq2SeqTrainingArguments(**values)
    assert trainer_for(models.t5(0.0), tmp_path, generation_config=again.generation_config)._generation_config == config


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{folder}/missing/generation_config.json", "there is no such file or folder"),
        ("{folder}/missing", "there is no such file or folder"),
        ("no-such-model-anywhere", "no file or folder here, and no model on the hub"),
        ("{folder}", "the folder holds no JSON file, and no generation_config.json"),
        (3, "not int"),
    ],
)
def test_a_generation_config_that_is_not_there(path: Any, message: str, tmp_path: Path) -> None:
    given = path.format(folder=tmp_path) if isinstance(path, str) else path
    with pytest.raises((OSError, TypeError), match=message):
        trainer_for(models.t5(0.0), tmp_path, generation_config=given)


def test_a_generation_config_that_contradicts_itself(tmp_path: Path) -> None:
    config = transformers.GenerationConfig(temperature=0.5, do_sample=False)
    with pytest.raises(ValueError, match="(?s)generation_config: .*temperature.*Mend that before you train"):
        trainer_for(models.t5(0.0), tmp_path, generation_config=config)


@pytest.mark.parametrize("model", [models.bert(), models.Points()], ids=["bert", "plain torch"])
def test_a_model_that_cannot_generate(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="predict_with_generate=True, and .* cannot generate"):
        trainer_for(model, tmp_path)
    trainer_for(model, tmp_path, predict_with_generate=False)


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_an_option_that_generate_does_not_know(call: str, tmp_path: Path) -> None:
    trainer = trainer_for(models.t5(0.0), tmp_path)
    with pytest.raises(TypeError, match=r"'num_beam' is no option of T5.*\.generate. Did you mean 'num_beams'"):
        getattr(trainer, call)(ROWS, num_beam=2)
    with pytest.raises(ValueError, match="num_return_sequences=2 makes several texts for each row"):
        getattr(trainer, call)(ROWS, num_return_sequences=2, num_beams=2)


def test_a_config_that_makes_several_texts(tmp_path: Path) -> None:
    config = {"num_return_sequences": 2, "num_beams": 2}
    with pytest.raises(ValueError, match="num_return_sequences=2"):
        trainer_for(models.t5(0.0), tmp_path, generation_config=config)


def training(model: Any, folder: Path, rows: Any, **options: Any) -> Seq2SeqTrainer:
    given = {"compute_metrics": nothing, "train_dataset": rows, "eval_strategy": "epoch", **options}
    return trainer_for(model, folder, rows, **given)


def test_a_prompt_longer_than_the_whole_before_the_first_step(tmp_path: Path) -> None:
    trainer = training(models.llama(0.0), tmp_path, prompts_and_answers(6), generation_max_length=4)
    longest = "max_length=4 counts prompt and answer, and a prompt alone has . tokens: set generation_max_length to"
    with pytest.raises(ValueError, match=longest):
        trainer.train()
    assert trainer.state.global_step == 0
    with pytest.raises(ValueError, match=longest):
        trainer.predict(prompts_and_answers(6))


def test_a_prompt_that_leaves_no_room_does_not_end_a_training(tmp_path: Path) -> None:
    rows = [{"input_ids": [5] * length, "labels": [-100] * (length - 1) + [5]} for length in (3, 3, 3, 3, 9, 4)]
    seen: list[Any] = []
    trainer = training(
        models.llama(0.0),
        tmp_path,
        rows,
        compute_metrics=lambda prediction: seen.append(prediction.predictions) or {},
        generation_max_length=5,
        num_train_epochs=1,
    )
    trainer.train()
    assert [int((row != 0).any()) for row in seen[0]] == [1, 1, 1, 1, 0, 1]


def test_labels_that_begin_with_the_row_before_the_first_step(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"], "labels": row["input_ids"]} for row in ROWS]
    trainer = training(models.llama(0.0), tmp_path, rows)
    with pytest.raises(ValueError, match="row 0 of an evaluation batch has no prompt.*-100.*generation_input_ids"):
        trainer.train()


def test_a_start_that_is_not_known_before_the_first_step(tmp_path: Path) -> None:
    model = models.t5(0.0)
    model.generation_config.decoder_start_token_id = None
    trainer = training(model, tmp_path, ROWS, generation_max_length=5)
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        trainer.train()
    assert trainer.state.global_step == 0 and all(module.training for module in model.modules()) is model.training


@pytest.mark.parametrize(
    "extra",
    [
        {"cu_seq_lens_q": torch.tensor([0, 3, 6])},
        {"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])},
        {"attention_mask": torch.ones(1, 1, 6, 6)},
    ],
    ids=lambda extra: next(iter(extra)),
)
def test_packed_rows(extra: dict[str, Any], tmp_path: Path) -> None:
    batch = {"input_ids": torch.arange(5, 11)[None], "labels": torch.arange(5, 11)[None], **extra}
    trainer = trainer_for(models.llama(0.0), tmp_path)
    with pytest.raises(ValueError, match="its rows are packed into one"):
        trainer.prediction_step(trainer.model, batch, False)


def test_a_collator_that_packs(tmp_path: Path) -> None:
    from kunren.collators import DataCollatorWithFlattening

    with pytest.raises(ValueError, match="DataCollatorWithFlattening packs the rows"):
        trainer_for(models.llama(0.0), tmp_path, data_collator=DataCollatorWithFlattening())


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        (["accuracy"], "'accuracy' is not a metric of generated texts.* There are: bleu, .*, rougeL, .*, wer"),
        (["blue"], "Did you mean 'bleu'"),
        (["bertscore"], "a second model: take chrf"),
        (["METEOR"], "a thesaurus of each language: take chrf"),
    ],
)
def test_metrics_that_texts_do_not_have(metrics: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        trainer_for(models.t5(0.0), tmp_path, metrics=metrics)


def test_metrics_of_texts_need_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is none: pass processing_class=tokenizer"):
        trainer_for(models.t5(0.0), tmp_path, metrics=["chrf"], processing_class=None)
    trainer_for(models.t5(0.0), tmp_path, metrics=["perplexity"], processing_class=None)


def test_metrics_of_texts_need_texts(tmp_path: Path) -> None:
    arguments = Seq2SeqTrainingArguments(output_dir=str(tmp_path), metrics=["rougeL"], use_cpu=True)
    with pytest.raises(ValueError, match="'rougeL' compares generated texts: take Seq2SeqTrainer.*there are: accuracy"):
        kunren.Trainer(model=models.t5(0.0), args=arguments, processing_class=TOKENIZER)


def test_a_sampler_that_does_nothing_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        trainer_for(models.t5(0.0), tmp_path, sortish_sampler=True)
    assert "batching='grouped'" in caplog.text


@pytest.mark.parametrize("options", [{"num_beams": 0}, {"max_new_tokens": 0}, {"max_length": -1}])
def test_numbers_that_generate_nothing(options: dict[str, int], tmp_path: Path) -> None:
    (name, value) = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"{name}={value} cannot work: give 1 or more"):
        trainer_for(models.t5(0.0), tmp_path, ROWS).evaluate(**options)


def test_a_typing_error_in_a_dict_of_settings(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'max_lenght' is no setting of generation. Did you mean 'max_length'"):
        trainer_for(models.t5(0.0), tmp_path, generation_config={"max_lenght": 5})
    own = trainer_for(models.t5(0.0), tmp_path, generation_config={"setting_of_my_own_model": 5})
    assert own._generation_config.setting_of_my_own_model == 5


@pytest.mark.parametrize("returned", [[[1, 2]], torch.zeros(1, 3), torch.zeros(6)], ids=["list", "rows", "flat"])
def test_what_generate_returns_is_tokens_for_each_row(returned: Any, tmp_path: Path, monkeypatch: Any) -> None:
    model = models.t5(0.0)
    monkeypatch.setattr(model, "generate", lambda *args, **kwargs: returned)
    with pytest.raises(TypeError, match="generate returned .*a row for each row that it is given, here 4"):
        trainer_for(model, tmp_path, ROWS).predict(ROWS)


def test_a_model_without_settings_of_generation(tmp_path: Path) -> None:
    model = models.t5(0.0)
    expected = trainer_for(model, tmp_path, ROWS, generation_max_length=6).predict(ROWS).predictions
    model.generation_config = None
    found = trainer_for(model, tmp_path, ROWS, generation_max_length=6).predict(ROWS).predictions
    assert (found == expected).all() and model.generation_config is None
