"""summarization and translation: pairs of texts, with and without generation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import transformers
from unit.hf.tasks.runs import assert_same, bert, by_hand, refused, results, t5, train, words, write

import kunren


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return t5(tmp_path_factory.mktemp("t5"))


def documents(count: int, shift: int = 0) -> list[dict[str, Any]]:
    return [
        {"document": words(*((row + shift + word) % 40 for word in range(4 + row % 3))), "summary": words(row % 40)}
        for row in range(count)
    ]


def files(folder: Path, model: Path) -> dict[str, Any]:
    sets = {"train_dataset": documents(10), "eval_dataset": documents(5, 3)}
    paths = {key: str(write(folder / f"{key}.jsonl", rows)) for key, rows in sets.items()}
    return {"task": "summarization", "model": str(model), **paths}


def encoded(rows: list[dict[str, Any]], tokenizer: Any, prefix: str = "") -> datasets.Dataset:
    return datasets.Dataset.from_list(
        [{**tokenizer(prefix + row["document"]), "labels": tokenizer(row["summary"])["input_ids"]} for row in rows]
    )


@pytest.mark.parametrize("generates", [False, True], ids=["by loss", "by generation"])
def test_the_run_is_that_of_a_script(generates: bool, model: Path, tmp_path: Path) -> None:
    generation = {"predict_with_generate": True, "generation_max_length": 6, "generation_num_beams": 2}
    assert train(tmp_path, **files(tmp_path, model), source_prefix="w49 ", **(generation if generates else {})) == 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    made: list[Any] = []

    def make() -> Any:
        made.append(transformers.AutoModelForSeq2SeqLM.from_pretrained(model))
        return made[0]

    class Collator:
        """Made when the model is: it makes the decoder's inputs."""

        def __call__(self, rows: Any) -> Any:
            return kunren.DataCollatorForSeq2Seq(tokenizer, made[0])(rows)

    trainer = by_hand(
        tmp_path,
        make,
        [encoded(rows, tokenizer, "w49 ") for rows in (documents(10), documents(5, 3))],
        kind=kunren.Seq2SeqTrainer if generates else None,
        data_collator=Collator(),
        processing_class=tokenizer,
        arguments={**generation, "metrics": ["rouge1"]} if generates else {},
    )
    assert_same(trainer, tmp_path, *(["eval_rouge1"] if generates else []))
    assert ("eval_rougeL" in results(tmp_path)) is generates


def test_translations_stand_in_two_columns_or_under_two_languages(model: Path, tmp_path: Path) -> None:
    pairs = [(row["document"], row["summary"]) for row in documents(10)]
    flat = write(tmp_path / "flat.jsonl", [{"xx": source, "yy": target} for source, target in pairs])
    nested = write(
        tmp_path / "nested.jsonl", [{"translation": {"xx": source, "yy": target}} for source, target in pairs]
    )
    options = {"task": "translation", "model": str(model)}
    losses = []
    for path, columns in (
        (flat, {"source_column": "xx", "target_column": "yy"}),
        (nested, {}),
        (nested, {"target_lang": "yy_XX"}),
        (nested, {"source_column": "yy"}),
    ):
        assert train(tmp_path, **options, train_dataset=str(path), **columns) == 0
        losses.append(results(tmp_path)["train_loss"])
    assert losses[0] == losses[1] == losses[2] != losses[3]


def test_what_is_generated_begins_with_the_language(model: Path) -> None:
    from kunren.hf.tasks.text_to_text import begin_with_language

    whole = transformers.AutoModelForSeq2SeqLM.from_pretrained(model)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    begin_with_language(whole, tokenizer, "nothing")
    assert whole.generation_config.forced_bos_token_id is None
    begin_with_language(whole, tokenizer, "w7")
    assert whole.generation_config.forced_bos_token_id == 12


def test_lengths(model: Path, tmp_path: Path) -> None:
    from kunren.hf.tasks.text_to_text import encode_text_pairs

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    batch = {"a": [words(1, 2, 3)], "b": [words(4, 5, 6)]}
    made = encode_text_pairs(batch, tokenizer, "a", "b", None, "w9 ", 3, 2)
    assert made["input_ids"] == [[14, 6, 7]] and made["labels"] == [[9, 10]]


def test_mistakes(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = files(tmp_path, model)
    answer = refused(capsys, tmp_path, **{**options, "model": str(bert(tmp_path / "bert"))})
    assert "A model of the type 'bert' does not fit summarization: it fits text-classification" in answer
    answer = refused(capsys, tmp_path, **{**options, "task": "text-generation", "text_column": "summary"})
    assert "A model of the type 't5' does not fit text-generation: it fits" in answer and "summarization" in answer
    answer = refused(capsys, tmp_path, **options, metrics=["rouge1"])
    assert "The metric 'rouge1' does not fit summarization" in answer and "predict_with_generate" in answer
    answer = refused(capsys, tmp_path, **options, metrics=["accuracy"], predict_with_generate=True)
    assert "The metric 'accuracy' does not fit summarization: there are bleu" in answer
    answer = refused(capsys, tmp_path, **options, target_column="document")
    assert "'document' is both source and target" in answer
    answer = refused(capsys, tmp_path, **{**options, "task": "translation"}, source_lang="en", target_column="summary")
    assert "source_lang='en': the tokenizer of" in answer and "knows no languages" in answer
    empty = write(tmp_path / "empty.jsonl", [{"document": None, "summary": "w1"}, {"document": "w1", "summary": "w1"}])
    answer = refused(capsys, tmp_path, **{**options, "eval_dataset": str(empty)})
    assert "'document' is empty in some rows of eval_dataset" in answer
    nested = write(tmp_path / "nested.jsonl", [{"translation": {"a": "w1", "b": "w2", "c": "w3"}}])
    answer = refused(
        capsys, tmp_path, task="translation", model=str(model), train_dataset=str(nested), source_column="a"
    )
    assert "target_column is None: 'translation' has a, b, c. Set target_column." in answer
    answer = refused(capsys, tmp_path, **{**options, "task": "fill-mask"}, predict_with_generate=True)
    assert "predict_with_generate is not for fill-mask: what is generated are texts, as in text-generation" in answer
