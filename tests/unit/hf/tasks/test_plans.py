"""`kunren plan` of every task: the steps that the run then takes, and nothing trained or left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from unit.hf.tasks import (
    test_image_classification,
    test_multiple_choice,
    test_question_answering,
    test_text_generation,
    test_text_to_text,
    test_token_classification,
)
from unit.hf.tasks.runs import bert, gpt2, t5, train, write

from kunren.cli.main import main
from kunren.hf.tasks import TASKS


def classified(folder: Path, model: Path) -> dict[str, Any]:
    path = write(folder / "train.jsonl", [{"text": f"w{row}", "label": "ab"[row % 2]} for row in range(9)])
    return {"task": "text-classification", "model": str(model), "train_dataset": str(path)}


def tagged(folder: Path, model: Path) -> dict[str, Any]:
    return {"model": str(model), **test_token_classification.files(folder)}


def texts(folder: Path, model: Path) -> dict[str, Any]:
    return test_text_generation.files(folder, model, test_text_generation.texts)


def pairs(folder: Path, model: Path) -> dict[str, Any]:
    return test_text_generation.files(folder, model, test_text_generation.pairs)


def summaries(folder: Path, model: Path) -> dict[str, Any]:
    return test_text_to_text.files(folder, model)


def vit(folder: Path) -> Path:
    folder.mkdir()
    return test_image_classification.save_vit(folder)


def shown(folder: Path, model: Path) -> dict[str, Any]:
    (folder / "pictures").mkdir()
    return {"model": str(model), "train_dataset": str(test_image_classification.draw(folder / "pictures"))}


RUNS: dict[str, tuple[Any, Any, str]] = {
    "text-classification": (bert, classified, "BertForSequenceClassification"),
    "token-classification": (bert, tagged, "BertForTokenClassification"),
    "question-answering": (bert, test_question_answering.files, "BertForQuestionAnswering"),
    "text-generation": (gpt2, pairs, "GPT2LMHeadModel"),
    "fill-mask": (bert, texts, "BertForMaskedLM"),
    "summarization": (t5, summaries, "T5ForConditionalGeneration"),
    "translation": (t5, summaries, "T5ForConditionalGeneration"),
    "text2text-generation": (t5, summaries, "T5ForConditionalGeneration"),
    "image-classification": (vit, shown, "ViTForImageClassification"),
    "multiple-choice": (bert, test_multiple_choice.files, "BertForMultipleChoice"),
}


def test_every_task_is_here() -> None:
    assert RUNS.keys() == TASKS.keys()


@pytest.mark.parametrize("task", RUNS)
def test_the_plan_is_of_the_run(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, files, kind = RUNS[task]
    options = {**files(tmp_path, make(tmp_path / "model")), "task": task}
    if task == "translation":
        options["target_column"] = "summary"
    config = {"source_column": "document"} if task == "text2text-generation" else {}
    assert train(tmp_path, **options, **config) == 0
    steps = json.loads((tmp_path / "out" / "trainer_state.json").read_text())["global_step"]
    (tmp_path / "out").rename(tmp_path / "done")
    capsys.readouterr()
    assert main(["plan", "--json", str(tmp_path / "run.yaml")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["max_steps"] == steps and values["model"] == kind
    assert values["memory"]["gradients"] == 4 * values["weights"]["count"] and values["seconds"] > 0
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = classified(tmp_path, bert(tmp_path / "model"))
    assert train(tmp_path, **options, peft={"r": 2, "target_modules": ["query"]}) == 0
    capsys.readouterr()
    assert main(["plan", "--json", str(tmp_path / "run.yaml")]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["memory"]["gradients"] == 4 * (2 * 16 * 2 + 16 * 2 + 2)  # two matrices, and the head
