"""The model of a run: its name, revision, tokenizer and number format; adapters and quantized weights."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from unit.hf.tasks.runs import LEARNING, QUIET, assert_same, bert, by_hand, gpt2, refused, results, train, words, write

import kunren

# peft asks transformers for it by a name that this is about to give up.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")

LORA = {"type": "lora", "r": 4, "lora_alpha": 8, "target_modules": ["query", "value"], "lora_dropout": 0.1}


def rows(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {"text": words(row % 40, (row + shift) % 40), "label": ("a", "b")[(row + shift) % 2]} for row in range(count)
    ]


def files(folder: Path, model: Path) -> dict[str, Any]:
    sets = {"train_dataset": rows(16), "eval_dataset": rows(6, 3)}
    paths = {key: str(write(folder / f"{key}.jsonl", one)) for key, one in sets.items()}
    return {"task": "text-classification", "model": str(model), **paths}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bert(tmp_path_factory.mktemp("bert"))


def encoded(model: Path) -> list[datasets.Dataset]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    return [
        datasets.Dataset.from_list(
            [{**tokenizer(row["text"]), "labels": ("a", "b").index(row["label"])} for row in one]
        )
        for one in (rows(16), rows(6, 3))
    ]


def adapted(model: Path) -> Any:
    options = {name: value for name, value in LORA.items() if name != "type"}
    whole = transformers.AutoModelForSequenceClassification.from_pretrained(model, num_labels=2)
    return peft.get_peft_model(whole, peft.LoraConfig(task_type="SEQ_CLS", **options))


def test_an_adapter_is_trained_as_by_a_script(model: Path, tmp_path: Path) -> None:
    assert train(tmp_path, **files(tmp_path, model), peft=LORA) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    trainer = by_hand(tmp_path, lambda: adapted(model), encoded(model), processing_class=tokenizer)
    found = results(tmp_path)
    assert trainer.trained.training_loss == found["train_loss"]
    assert trainer.evaluate()["eval_loss"] == found["eval_loss"]
    saved = load_file(tmp_path / "out" / "adapter_model.safetensors")
    expected = peft.get_peft_model_state_dict(trainer.model)
    assert saved.keys() == expected.keys() and any("lora" in name for name in saved)
    assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["r"] == 4 and settings["lora_alpha"] == 8 and settings["task_type"] == "SEQ_CLS"
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_an_adapter_goes_on_where_it_was(model: Path, tmp_path: Path) -> None:
    options = {**files(tmp_path, model), "peft": LORA, "save_strategy": "steps", "save_steps": 3}
    assert train(tmp_path, **options, max_steps=6) == 0
    whole = load_file(tmp_path / "out" / "adapter_model.safetensors")
    (tmp_path / "out" / "checkpoint-6").rename(tmp_path / "gone")
    assert train(tmp_path, "--resume", **options, max_steps=6) == 0
    again = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_an_adapter_from_the_command_line(model: Path, tmp_path: Path) -> None:
    words_of = ["--peft", "{r: 2, target_modules: [query]}", "--max_steps", "1"]
    assert train(tmp_path, *words_of, **files(tmp_path, model)) == 0
    settings = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
    assert settings["peft_type"] == "LORA" and settings["r"] == 2 and settings["target_modules"] == ["query"]


def test_mistakes_in_an_adapter(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = files(tmp_path, model)
    answer = refused(capsys, tmp_path, **options, peft={"r": 4, "target_module": ["query"]})
    assert "peft: lora has no option 'target_module'. Did you mean 'target_modules'?" in answer
    assert "there is no type 'lorra'" in refused(capsys, tmp_path, **options, peft={"type": "lorra"})
    answer = refused(capsys, tmp_path, **options, peft={"target_modules": ["nothing"]})
    assert "peft: No modules were targeted" in answer and answer.endswith(
        "The model has the layers LayerNorm, classifier, dense, key, position_embeddings, query, "
        "token_type_embeddings, value, word_embeddings."
    )
    assert "peft is 'lora': it has to be `name: value` pairs" in refused(capsys, tmp_path, **options, peft="lora")
    assert "peft: `r` should be a positive" in refused(
        capsys, tmp_path, **options, peft={"r": 0, "target_modules": ["query"]}
    )
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    assert "an adapter needs the package peft: pip install peft" in refused(capsys, tmp_path, **options, peft=LORA)


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_an_adapter_beside_quantized_weights(tmp_path: Path) -> None:
    model = bert(tmp_path / "bert", hidden_size=64, intermediate_size=64)  # on a CPU it computes blocks of 32
    options = {**files(tmp_path, model), "peft": LORA, "max_steps": 2}
    assert train(tmp_path, **options, quantization={"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}) == 0
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    quantized = results(tmp_path)["eval_loss"]
    assert train(tmp_path, **options) == 0
    assert quantized != results(tmp_path)["eval_loss"] and abs(quantized - results(tmp_path)["eval_loss"]) < 0.3


def test_mistakes_in_a_quantization(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = files(tmp_path, model)
    for given, answer in (
        ({"load_in_4bit": True}, "quantization without peft: quantized weights cannot be trained. Add an adapter"),
        ({"load_in_4bits": True}, "quantization has no option 'load_in_4bits'"),
        ({"load_in_4bit": False}, "set load_in_4bit or load_in_8bit to true"),
        ("4bit", "quantization is '4bit': it has to be `name: value` pairs"),
    ):
        assert answer in refused(capsys, tmp_path, **options, quantization=given)
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    answer = refused(capsys, tmp_path, **options, peft=LORA, quantization={"load_in_4bit": True})
    assert "quantization needs the package bitsandbytes: pip install bitsandbytes" in answer


def test_the_number_format_of_weights(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model)
    assert train(tmp_path, **options, torch_dtype="bfloat16", max_steps=1) == 0
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert {tensor.dtype for tensor in saved.values()} == {torch.bfloat16}
    (tmp_path / "out").rename(tmp_path / "done")
    answer = refused(capsys, tmp_path, **options, torch_dtype="half")
    assert "torch_dtype is 'half': choose auto, float32, float16, bfloat16" in answer


def test_the_tokenizer_of_another_folder(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare"
    transformers.AutoModel.from_pretrained(model).save_pretrained(bare)
    options = files(tmp_path, bare)
    assert "has no tokenizer, and the rows have no input_ids" in refused(capsys, tmp_path, **options)
    answer = refused(capsys, tmp_path, **options, tokenizer="nowhere/none")
    assert "tokenizer: nowhere/none has no tokenizer that can be read" in answer
    assert train(tmp_path, **options, tokenizer=str(model)) == 0
    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForSequenceClassification.from_pretrained(bare, num_labels=2),
        encoded(model),
        processing_class=transformers.AutoTokenizer.from_pretrained(model),
    )
    assert_same(trainer, tmp_path)


def test_a_revision_that_there_is_not(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = refused(capsys, tmp_path, **{**files(tmp_path, model), "model": "owner/none"}, model_revision="v2")
    assert "model: there is no folder 'owner/none'" in answer and "at the revision 'v2'" in answer


def test_the_folder_of_an_adapter_is_no_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapted(model).save_pretrained(tmp_path / "adapter")
    answer = refused(capsys, tmp_path, **files(tmp_path, tmp_path / "adapter"))
    assert "holds an adapter and no model" in answer


def test_an_adapter_for_answers(tmp_path: Path) -> None:
    """Where nothing but the adapter is new, what it adds is 0 at first."""
    model = gpt2(tmp_path / "gpt2")
    path = write(tmp_path / "pairs.jsonl", [{"prompt": words(row), "completion": words(row + 1)} for row in range(8)])
    options = {"task": "text-generation", "model": str(model), "train_dataset": str(path), "eval_dataset": str(path)}
    still = {"peft": {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True}, "learning_rate": 0}
    assert train(tmp_path, **{**options, **still}) == 0
    loss = results(tmp_path)["eval_loss"]
    assert train(tmp_path, **{**options, "learning_rate": 0}) == 0
    assert results(tmp_path)["eval_loss"] == loss


def test_keys_of_another_type(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model)
    for key, value, answer in (
        ("max_length", "many", "max_length is 'many': it has to be a whole number."),
        ("max_length", 0, "max_length is 0: it has to be a whole number above 0."),
        ("text_column", {"a": 1}, "text_column is {'a': 1}: it has to be a text or a list."),
        ("eval_split", True, "eval_split is True: it has to be a text."),
    ):
        assert answer in refused(capsys, tmp_path, **options, **{key: value})


def test_the_arguments_are_those_of_the_trainer() -> None:
    assert {*LEARNING, *QUIET} <= {*kunren.TrainingArguments.__dataclass_fields__}
