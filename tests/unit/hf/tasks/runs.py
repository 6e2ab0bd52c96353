"""Tiny models by their kind, and runs of `kunren train` beside the same ones in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from parity.tokenizer import make_tokenizer

import kunren
from kunren.cli.main import main

SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
LEARNING = {"learning_rate": 3e-3, "num_train_epochs": 2, "per_device_train_batch_size": 4}
QUIET = {"use_cpu": True, "disable_tqdm": True, "run_report": False, "save_strategy": "no", "report_to": "none"}


def save(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    """The model with a tokenizer of 55 words; the folder."""
    model.save_pretrained(folder)
    (tokenizer or make_tokenizer()).save_pretrained(folder)
    return folder


def bert(folder: Path, **options: Any) -> Path:
    transformers.set_seed(0)
    config = transformers.BertConfig(vocab_size=55, max_position_embeddings=64, **{**SIZES, **options})
    return save(transformers.BertModel(config), folder)


def gpt2(folder: Path, tokenizer: Any = None) -> Path:
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=55, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=3, eos_token_id=3, pad_token_id=0
    )
    return save(transformers.GPT2LMHeadModel(config), folder, tokenizer)


def t5(folder: Path) -> Path:
    transformers.set_seed(0)
    config = transformers.T5Config(
        vocab_size=55, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0, eos_token_id=3
    )
    return save(transformers.T5ForConditionalGeneration(config), folder)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows as lines of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def words(*numbers: int) -> str:
    return " ".join(f"w{number}" for number in numbers)


def train(folder: Path, *options: str, **config: Any) -> int:
    """`kunren train` with these keys; the results go to `folder`/out."""
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**LEARNING, **QUIET, "output_dir": str(folder / "out"), **config}))
    return main(["train", str(path), *options])


def told(capsys: Any) -> str:
    """The one line that a refusal is."""
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kunren: ")]
    assert len(lines) == 1
    return str(lines[0])


def refused(capsys: Any, folder: Path, *options: str, **config: Any) -> str:
    """What is told of a run that cannot be; nothing has been trained."""
    assert train(folder, *options, **config) == 2
    assert not list((folder / "out").glob("*.safetensors"))
    return told(capsys)


def results(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "out" / "all_results.json").read_text())
    return values


def by_hand(folder: Path, make: Any, sets: list[Any], kind: Any = None, **options: Any) -> Any:
    """The Trainer that has trained on `sets` with the same arguments; `make` is called after the seed is set."""
    further = options.pop("arguments", {})
    kind_of_arguments = kunren.Seq2SeqTrainingArguments if kind else kunren.TrainingArguments
    args = kind_of_arguments(str(folder / "by-hand"), **LEARNING, **QUIET, **further)
    kunren.set_seed(args.seed)
    model = make()
    trainer = (kind or kunren.Trainer)(model, args, train_dataset=sets[0], eval_dataset=sets[1], **options)
    trainer.trained = trainer.train()
    return trainer


def assert_same(trainer: Any, folder: Path, *metrics: str) -> None:
    """Losses, metrics and weights of the two runs are the same numbers."""
    found, measured = results(folder), trainer.evaluate()
    assert trainer.trained.training_loss == found["train_loss"]
    for name in ("eval_loss", *metrics):
        assert measured[name] == found[name], name
    saved = type(trainer.model).from_pretrained(folder / "out").state_dict()
    assert saved
    assert all(torch.equal(tensor, trainer.model.state_dict()[name]) for name, tensor in saved.items())
