"""`kunren train` on real data: what a file alone makes a small model learn."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

import kunren
from kunren.cli.main import main
from tasks.data import DATA, MINILM, minilm, rows, task

pytestmark = [*task("snips", "xquad_en", "scitldr", packages=(MINILM,))]

QUIET = {"use_cpu": True, "disable_tqdm": True, "run_report": False, "save_strategy": "no", "report_to": "none"}
TAGS_FLOOR, ANSWERS_FLOOR, SUMMARIES_FLOOR = 0.6, 20.0, 0.08


def trained(folder: Path, data: str, **config: Any) -> dict[str, Any]:
    """The results of a run from a file that reads a folder of data, with its test split as evaluation set."""
    place = {"train_dataset": str(DATA / data), "eval_dataset": str(DATA / data), "eval_split": "test"}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**QUIET, "output_dir": str(folder / "out"), **place, **config}))
    assert main(["train", str(path)]) == 0
    values: dict[str, Any] = json.loads((folder / "out" / "all_results.json").read_text())
    return values


def test_tags(tmp_path: Path, report: Callable[..., None]) -> None:
    found = trained(
        tmp_path,
        "snips",
        model=str(minilm()),
        task="token-classification",
        max_train_samples=3000,
        max_length=64,
        learning_rate=3e-4,
        num_train_epochs=1,
        per_device_train_batch_size=16,
        batching="grouped",
        warmup_steps=0.1,
    )
    report("kunren train, tags of Snips, MiniLM", f1=found["eval_f1"], accuracy=found["eval_accuracy"])
    assert found["eval_f1"] > TAGS_FLOOR


def test_answers(tmp_path: Path, report: Callable[..., None]) -> None:
    found = trained(
        tmp_path,
        "xquad_en",
        model=str(minilm()),
        task="question-answering",
        max_length=160,
        stride=32,
        max_eval_samples=100,
        learning_rate=3e-4,
        num_train_epochs=1,
        per_device_train_batch_size=8,
        batching="grouped",
        warmup_steps=0.1,
    )
    report("kunren train, answers of XQuAD, MiniLM", f1=found["eval_f1"], exact_match=found["eval_exact_match"])
    assert found["eval_f1"] > ANSWERS_FLOOR


@pytest.fixture
def small_t5(tmp_path: Path) -> Path:
    """A T5 from scratch, with words of the training set."""
    data = rows("scitldr", "train")
    learnt = ByteLevelBPETokenizer()
    special = ["<pad>", "</s>"]
    learnt.train_from_iterator([*data["document"], *data["summary"]], 1500, special_tokens=special, show_progress=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=learnt._tokenizer, pad_token="<pad>", eos_token="</s>")
    size = {"d_model": 96, "d_kv": 24, "d_ff": 192, "num_layers": 2, "num_heads": 4}
    kunren.set_seed(0)
    config = T5Config(vocab_size=len(tokenizer), decoder_start_token_id=0, eos_token_id=1, dropout_rate=0.0, **size)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    return tmp_path / "t5"


def test_summaries(small_t5: Path, tmp_path: Path, report: Callable[..., None]) -> None:
    options: dict[str, Any] = {
        "model": str(small_t5),
        "task": "summarization",
        "max_length": 96,
        "max_target_length": 32,
        "max_eval_samples": 64,
        "learning_rate": 3e-3,
        "per_device_train_batch_size": 16,
        "warmup_steps": 0.1,
        "predict_with_generate": True,
        "generation_max_length": 24,
        "metrics": ["rouge1", "rougeL", "perplexity"],
    }
    before = trained(tmp_path, "scitldr", **options, max_steps=1)
    after = trained(tmp_path, "scitldr", **options, num_train_epochs=3)
    report(
        "kunren train, summaries of SciTLDR, small T5 from scratch",
        rouge1=after["eval_rouge1"],
        rouge1_before=before["eval_rouge1"],
        perplexity=after["eval_perplexity"],
    )
    assert after["eval_rouge1"] > max(SUMMARIES_FLOOR, 2 * before["eval_rouge1"])
    assert after["eval_perplexity"] < before["eval_perplexity"] / 4
