"""The scores of the example scripts, against the packages that people know for them."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest

TASKS = Path(__file__).parents[2] / "examples" / "tasks"
TRUTHS = ["the cat sat on the mat near the door .", "a quick test of scores", "one more line for good measure ."]
ANSWERS = ["the cat is on the mat by a door .", "a quick test of the scores", "one line more , for measure ."]


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TASKS))
    spec = importlib.util.spec_from_file_location(name, TASKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_bleu_and_chrf_are_those_of_sacrebleu(monkeypatch: pytest.MonkeyPatch) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    scores = load("text_scores", monkeypatch)
    theirs = sacrebleu.corpus_bleu(ANSWERS, [TRUTHS], smooth_method="none").score
    assert scores.bleu(ANSWERS, TRUTHS) == pytest.approx(theirs)
    assert scores.chrf(ANSWERS, TRUTHS) == pytest.approx(sacrebleu.corpus_chrf(ANSWERS, [TRUTHS]).score)
    assert scores.bleu(TRUTHS, TRUTHS) == scores.chrf(TRUTHS, TRUTHS) == pytest.approx(100)
    assert scores.bleu(["x"], ["y"]) == scores.chrf(["x"], ["y"]) == scores.bleu([], []) == 0


def test_rouge_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    found = load("text_scores", monkeypatch).rouge(["the cat sat here"], ["the cat was here"])
    assert found == pytest.approx({"rouge1": 75.0, "rouge2": 100 / 3, "rougeL": 75.0})


@pytest.mark.parametrize(
    ("answer", "truths", "exact", "f1"),
    [
        ("The Cat!", ["a cat"], 1, 1),
        ("big cat", ["the cat", "dog"], 0, 2 / 3),
        ("", [], 1, 1),
        ("x", [], 0, 0),
        ("dog", ["cat", "dog"], 1, 1),
    ],
)
def test_scores_of_squad(answer: str, truths: list, exact: float, f1: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("text_scores", monkeypatch).squad(answer, truths) == pytest.approx((exact, f1))


def test_entity_scores_are_those_of_seqeval(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = pytest.importorskip("seqeval.metrics")
    pytest.importorskip("transformers")
    scores = load("run_ner", monkeypatch).entity_scores
    draw = random.Random(0)
    tags = ["O", "O", "B-A", "I-A", "B-B", "I-B"]
    rows = [[[draw.choice(tags) for _ in range(8)] for _ in range(40)] for _ in range(2)]
    ours, (answers, truths) = scores(*rows, of_each_kind=True), rows
    names = {"precision": "precision_score", "recall": "recall_score", "f1": "f1_score", "accuracy": "accuracy_score"}
    for name, theirs in names.items():
        assert ours[name] == pytest.approx(getattr(metrics, theirs)(truths, answers))
    report = metrics.classification_report(truths, answers, output_dict=True)
    assert (ours["A_f1"], ours["B_f1"]) == pytest.approx((report["A"]["f1-score"], report["B"]["f1-score"]))
