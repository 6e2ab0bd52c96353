"""Generation in evaluation by two processes: the texts, metrics and order of one."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import pytest

from distributed.ranks import run_ranks
from kunren import DataCollatorForSeq2Seq
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments

pytest.importorskip("transformers")
pytestmark = pytest.mark.distributed

SPREAD: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp 2": {"fsdp": True, "fsdp_config": {"version": 2}},
    "fsdp 1": {"fsdp": True, "fsdp_config": {"version": 1}},
}
if find_spec("deepspeed") is not None:
    stage = {"zero_optimization": {"stage": 3}, "train_batch_size": "auto", "zero_force_ds_cpu_optimizer": False}
    SPREAD["deepspeed"] = {"deepspeed": stage}
KINDS = ["bart", "llama"]


def evaluated(folder: Path, kind: str, count: int = 13, **options: Any) -> dict[str, Any]:
    """After a step; the last batch is one row, which a process has none of."""
    from parity import models
    from unit.seq2seq.tiny import EOS, QUIET, TOKENIZER, prompts_and_answers, sources_and_targets

    rows = sources_and_targets(13) if kind == "bart" else prompts_and_answers(13)
    train, rows = rows[:8], rows[:count]
    if kind == "llama" and count > 5:
        rows[5] = {"input_ids": rows[5]["input_ids"][:2], "labels": [-100, 7]}  # one process writes for longer
    model: Any = getattr(models, kind)(0.0)
    model.generation_config.eos_token_id = EOS
    for parameter in model.parameters():  # so that it writes more than the end
        parameter.data *= 3
    usual = {**QUIET, "per_device_eval_batch_size": 3, "max_steps": 1, "optim": "sgd", "learning_rate": 0.05}
    usual |= {"metrics": ["cer", "chrf"], "generation_max_length": 14, "eval_strategy": "epoch", "logging_steps": 1}
    seen: list[Any] = []
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(folder), **usual | options),
        data_collator=DataCollatorForSeq2Seq(TOKENIZER, model=model),
        processing_class=TOKENIZER,
        train_dataset=train,
        eval_dataset=rows,
        compute_metrics=lambda prediction: seen.append(prediction) or {"rows": len(prediction.predictions)},
    )
    trainer.train()
    found = trainer.predict(rows)
    names = ("eval_loss", "eval_cer", "eval_chrf", "eval_rows")
    entry = next(entry for entry in trainer.state.log_history if "eval_cer" in entry)
    return {
        "metrics": {name: entry[name] for name in names},
        "in training": seen[0].predictions,
        "predictions": found.predictions,
        "labels": found.label_ids,
        "test": found.metrics["test_cer"],
    }


def evaluate_all(folder: Path) -> list[Any]:
    found = [evaluated(folder, kind, **options) for options in SPREAD.values() for kind in KINDS]
    return [*found, evaluated(folder, "llama", count=1)]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return list(zip(*run_ranks(evaluate_all, tmp_path_factory.mktemp("two"), timeout=150), strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(SPREAD) * len(KINDS)))
def test_two_processes_write_what_one_does(tmp_path: Path, of_two: list[Any], number: int) -> None:
    one = evaluated(tmp_path, KINDS[number % 2], per_device_train_batch_size=8)
    assert_all_found(one, of_two[number])
    assert len({len(row[row != 0]) for row in one["predictions"]}) > 1 or KINDS[number % 2] == "bart"
    assert (one["predictions"] > 3).any()


@pytest.mark.filterwarnings("ignore")
def test_one_row_for_two_processes(tmp_path: Path, of_two: list[Any]) -> None:
    assert_all_found(evaluated(tmp_path, "llama", count=1, per_device_train_batch_size=8), of_two[-1])


def assert_all_found(one: dict[str, Any], of_all: list[dict[str, Any]]) -> None:
    for found in of_all:
        assert found["metrics"] == pytest.approx(one["metrics"], rel=1e-5)
        assert found["test"] == pytest.approx(one["test"])
        for name in ("predictions", "in training", "labels"):
            numpy.testing.assert_array_equal(found[name], one[name])
