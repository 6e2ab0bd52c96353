"""Texts from tokens, and what becomes of rows, of errors and of Japanese."""

from __future__ import annotations

import importlib.util
import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models
from unit.seq2seq.tiny import TOKENIZER, prompts_and_answers, sources_and_targets, trainer_for

from kunren.arguments.metric_direction import greater_is_better
from kunren.metrics.names import check_names
from kunren.metrics.outputs import BatchOutputs, WholeSet
from kunren.metrics.text.generated import GeneratedTextMetrics
from kunren.metrics.text.names import TEXT_METRICS, requests_for_texts
from kunren.metrics.text.reader import TokenReader

pytest.importorskip("torchmetrics")

NAMES = ["bleu", "sacrebleu", "chrf", "rouge1", "rougeL", "wer", "cer", "exact_match", "perplexity"]


class Letters:
    """Token n is the n-th letter; 0 is no letter."""

    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        assert skip_special_tokens
        return ["".join(chr(96 + token) for token in row if token) for row in rows]


class Japanese(Letters):
    def batch_decode(self, rows: list[list[int]], skip_special_tokens: bool) -> list[str]:
        return ["".join(chr(0x3040 + token) for token in row if token) for row in rows]


def metrics_of(names: list[str], tokens: Any, labels: Any, is_in_train: bool = False, reader: Any = None) -> Any:
    found = GeneratedTextMetrics(names, TokenReader(reader or Letters()), is_in_train)
    found.update(BatchOutputs(torch.tensor(tokens), torch.tensor(labels)))
    return found.result(WholeSet(0.5))


def test_padding_and_ignored_labels_are_no_text() -> None:
    found = metrics_of(["exact_match", "cer"], [[1, 2, 0], [3, 0, 0]], [[1, 2, -100], [-100, 3, -100]])
    assert found == {"exact_match": 1.0, "cer": 0.0}


def test_rows_without_an_answer_do_not_count() -> None:
    assert metrics_of(["exact_match"], [[1], [2]], [[1], [-100]]) == {"exact_match": 1.0}
    found = metrics_of(["exact_match", "chrf", "perplexity"], [[1]], [[-100]])
    assert math.isnan(found["exact_match"]) and math.isnan(found["chrf"])
    assert found["perplexity"] == pytest.approx(math.exp(0.5))


def test_without_labels_there_are_no_metrics(caplog: pytest.LogCaptureFixture) -> None:
    found = GeneratedTextMetrics(["chrf"], TokenReader(Letters()))
    found.update(BatchOutputs(torch.tensor([[1]]), None))
    with caplog.at_level(logging.WARNING):
        assert found.result(WholeSet(None)) == {}
    assert "for want of labels" in caplog.text


def test_words_are_not_looked_for_in_japanese(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        metrics_of(["bleu", "chrf", "cer"], [[1, 2]], [[1, 2]], reader=Japanese())
        assert "bleu divide texts at blanks" in caplog.text and "sacrebleu_ja_mecab" in caplog.text
        caplog.clear()
        metrics_of(["chrf", "cer", "rougeL_char"], [[1, 2]], [[1, 2]], reader=Japanese())
        metrics_of(["bleu"], [[1, 2]], [[1, 2]])
    assert caplog.text == ""


def test_an_error_costs_one_metric_and_not_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kunren.metrics.text.translation import CharacterFScore

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(CharacterFScore, "update", fail)
    assert metrics_of(["chrf", "cer"], [[1]], [[1]], is_in_train=True) == {"cer": 0.0}
    assert "chrf failed" in caplog.text
    with pytest.raises(RuntimeError, match="broken"):
        metrics_of(["chrf", "cer"], [[1]], [[1]])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("rougeL", "rougeL"),
        ("ROUGE-L", "rougeL"),
        ("rouge_1", "rouge1"),
        ("SacreBLEU", "sacrebleu"),
        ("em", "exact_match"),
    ]
    + [("chrF++", "chrf++"), ("chrfpp", "chrf++"), ("rougel char", "rougeL_char"), ("Word Error Rate", "wer")],
)
def test_spellings(given: str, name: str) -> None:
    assert requests_for_texts([given]) == [name]


@pytest.mark.parametrize("name", TEXT_METRICS)
def test_the_direction_of_each_is_known(name: str) -> None:
    assert greater_is_better(f"eval_{name}") is (name not in ("wer", "cer"))


def test_the_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    present = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "MeCab" else present(name))
    with pytest.raises(ImportError, match="'sacrebleu_ja_mecab' needs mecab-python3"):
        check_names(["chrf", "sacrebleu_ja_mecab"], of_texts=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    check_names(["chrf", "exact_match", "perplexity"], of_texts=True)  # which need nothing
    with pytest.raises(ImportError, match="'cer' needs torchmetrics: pip install torchmetrics"):
        check_names(["cer"], of_texts=True)


@pytest.mark.parametrize("kind", ["bart", "llama"])
def test_evaluations_do_not_depend_on_the_batch_size(kind: str, tmp_path: Path) -> None:
    rows = sources_and_targets(11) if kind == "bart" else prompts_and_answers(11)
    model = getattr(models, kind)(0.0)
    found = [
        trainer_for(model, tmp_path, rows, metrics=NAMES, per_device_eval_batch_size=size).evaluate(max_new_tokens=6)
        for size in (1, 4, 11)
    ]
    for name in NAMES:
        assert found[0][f"eval_{name}"] == pytest.approx(found[1][f"eval_{name}"], rel=1e-5), name
        assert found[0][f"eval_{name}"] == pytest.approx(found[2][f"eval_{name}"], rel=1e-5), name


def test_metrics_are_of_the_texts_that_predict_returns(tmp_path: Path) -> None:
    rows = prompts_and_answers(11)
    trainer = trainer_for(models.llama(0.0), tmp_path, metrics=["cer", "chrf"])
    found = trainer.predict(rows, max_new_tokens=6)
    texts = TOKENIZER.batch_decode(found.predictions, skip_special_tokens=True)
    right = [TOKENIZER.decode([token for token in row if token >= 0]) for row in found.label_ids.tolist()]
    expected = TEXT_METRICS["cer"]
    state = expected.make()
    expected.feed(state, texts, right)
    assert found.metrics["test_cer"] == pytest.approx(expected.read(state))
    assert found.metrics["test_chrf"] > 0
