"""The model saved, with what belongs to it (S024, S300)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat

import kunren


def trainer_for(folder: Path, **build: Any) -> kunren.Trainer:
    settings = build.pop("settings", {})
    defaults = {"model": models.Points(), "train_dataset": rows.points(24), "eval_dataset": rows.points(6)}
    return kunren.Trainer(args=arguments(folder, **settings), **{**defaults, **build})


@pytest.fixture
def words() -> Any:
    """A tokenizer of four words."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers import models as kinds

    tokenizer = Tokenizer(kinds.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def test_collator_is_chosen_by_what_can_pad(tmp_path: Path, words: Any) -> None:
    assert trainer_for(tmp_path).data_collator is kunren.default_data_collator
    padding = trainer_for(tmp_path, processing_class=words).data_collator
    assert isinstance(padding, kunren.DataCollatorWithPadding)
    assert trainer_for(tmp_path, processing_class=words, data_collator=list).data_collator is list


def test_saved_folder_is_read_by_from_pretrained(tmp_path: Path, words: Any) -> None:
    trainer = trainer_for(
        tmp_path,
        model=models.bert(),
        processing_class=words,
        train_dataset=rows.sentences(8),
        settings={"max_steps": 1},
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    again = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    assert torch.equal(flat(again), flat(trainer.model))
    assert tf.AutoTokenizer.from_pretrained(tmp_path / "model")("good bad").input_ids == [2, 3]
    assert (tmp_path / "model" / "training_args.bin").is_file()


def test_save_model_without_a_place_writes_into_the_output_folder(tmp_path: Path) -> None:
    trainer_for(tmp_path / "out", model=models.bert()).save_model()
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("through", ["processing class", "collator"])
def test_processing_class_lies_beside_the_weights_of_checkpoints(through: str, tmp_path: Path, words: Any) -> None:
    """S024, S300: the collator's tokenizer is saved where there is no processing class."""
    build = (
        {"processing_class": words}
        if through == "processing class"
        else {"data_collator": kunren.DataCollatorWithPadding(words)}
    )
    trainer = trainer_for(
        tmp_path,
        model=models.bert(),
        train_dataset=rows.sentences(8),
        settings={"max_steps": 1, "save_strategy": "steps", "save_steps": 1},
        **build,
    )
    trainer.train()
    assert tf.AutoTokenizer.from_pretrained(tmp_path / "checkpoint-1")("bad").input_ids == [3]
