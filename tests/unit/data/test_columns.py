"""Which columns the model takes, and what happens to the others."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from torch import nn

import kunren
from kunren.data.columns import ColumnFilter, drop_unused, is_column_dataset, signature_columns
from kunren.model.signature import read_signature

datasets = pytest.importorskip("datasets")


def with_adapter() -> nn.Module:
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(models.bert(), peft.LoraConfig(target_modules=["query"], r=2, task_type="SEQ_CLS"))


def with_compiled_adapter() -> nn.Module:
    return torch.compile(with_adapter(), backend="eager")


MODELS: dict[str, Callable[[], nn.Module]] = {
    "plain": models.bert,
    "compiled": lambda: torch.compile(models.bert(), backend="eager"),
    "with adapter": with_adapter,
    "compiled with adapter": with_compiled_adapter,
    "data parallel": lambda: nn.DataParallel(models.bert()),
}


# peft still reads a name that transformers has renamed.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
@pytest.mark.parametrize("wrapper", MODELS)
def test_wrappers_are_looked_through(wrapper: str) -> None:
    columns = signature_columns(read_signature(MODELS[wrapper]()), ["labels"])
    assert columns is not None
    assert {"input_ids", "attention_mask", "labels", "label", "label_ids"} <= set(columns)
    assert not {"text", "args", "kwargs", "self"} & set(columns)
    assert len(columns) == len(set(columns))


def test_open_forward_keeps_everything() -> None:
    assert signature_columns(read_signature(models.PointsTakingKeywords()), ["labels"]) is None


def test_keywords_of_a_pretrained_model_are_options_not_data() -> None:
    signature = read_signature(models.llama())
    assert signature.takes_keywords
    assert "text" not in (signature_columns(signature, ["labels"]) or ["text"])


def table(**columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns)


def test_unused_columns_are_dropped_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    data = table(x=[[1.0]], labels=[0], text=["a"], id=[7])
    with caplog.at_level(logging.INFO, "kunren"):
        left = drop_unused(data, ["x", "labels"], "training", "Points")
    assert left.column_names == ["x", "labels"]
    assert data.column_names == ["x", "labels", "text", "id"]
    assert "training" in caplog.text
    assert "id, text" in caplog.text
    assert "Points.forward" in caplog.text


def test_nothing_to_drop_returns_the_same_data() -> None:
    data = table(x=[[1.0]])
    assert drop_unused(data, ["x", "labels"], "training", "Points") is data
    assert drop_unused(data, None, "training", "Points") is data
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"x": 1}]))
    assert drop_unused(stream, ["y"], "training", "Points") is stream, "a stream may not know its columns"


def test_nothing_left_is_an_error_that_names_both_sides() -> None:
    with pytest.raises(ValueError, match=r"evaluation set \(sentence, stars\).*Points\.forward.*\(x, labels\)"):
        drop_unused(table(sentence=["a"], stars=[1]), ["x", "labels"], "evaluation", "Points")


def test_column_data_sets_are_told_apart() -> None:
    assert is_column_dataset(table(x=[1]))
    assert is_column_dataset(table(x=[1]).to_iterable_dataset())
    assert not is_column_dataset([{"x": 1}])
    assert not is_column_dataset(rows.points(2))


def test_rows_that_are_dicts_are_filtered_before_the_collator(caplog: pytest.LogCaptureFixture) -> None:
    collator = ColumnFilter(list, ["x", "labels"], "training")
    batch = [{"x": 1, "labels": 0, "text": "a"}, {"x": 2, "labels": 1, "text": "b"}]
    with caplog.at_level(logging.INFO, "kunren"):
        assert collator(batch) == [{"x": 1, "labels": 0}, {"x": 2, "labels": 1}]
        collator(batch)
    assert caplog.text.count("text") == 1, "the keys are named once, not at every batch"
    assert batch[0] == {"x": 1, "labels": 0, "text": "a"}
    assert collator([{"x": 1}]) == [{"x": 1}]
    assert collator([(1, 2)]) == [(1, 2)]
    assert collator([{"x": 1}, {"x": 2, "text": "b"}, None]) == [{"x": 1}, {"x": 2}, None], "rows of different keys"


def test_rows_of_which_nothing_is_left_are_an_error_that_names_both_sides() -> None:
    with pytest.raises(ValueError, match=r"training rows \(sentence, stars\).*\(labels, x\)"):
        ColumnFilter(list, ["x", "labels"], "training")([{"sentence": "a", "stars": 1}])


def columns_seen(trainer: kunren.Trainer) -> set[str]:
    return set(next(iter(trainer.get_train_dataloader())))


@pytest.mark.parametrize("kind", ["table", "rows"])
def test_trainer(kind: str, tmp_path: Any) -> None:
    items = [{"x": [0.0] * 4, "labels": 0, "id": 3}] * 8
    data = datasets.Dataset.from_list(items) if kind == "table" else items

    def trainer(model: nn.Module, **settings: Any) -> kunren.Trainer:
        return kunren.Trainer(model=model, args=arguments(tmp_path, **settings), train_dataset=data)

    assert columns_seen(trainer(models.Points())) == {"x", "labels"}
    assert columns_seen(trainer(torch.compile(models.Points(), backend="eager"))) == {"x", "labels"}
    assert columns_seen(trainer(models.PointsTakingKeywords())) == {"x", "labels", "id"}
    assert columns_seen(trainer(models.Points(), remove_unused_columns=False)) == {"x", "labels", "id"}


def test_label_columns_of_other_names_are_kept(tmp_path: Any) -> None:
    data = datasets.Dataset.from_list([{"x": [0.0] * 4, "labels": 0, "weights_of_rows": 1.0}] * 4)
    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path, label_names=["labels", "weights_of_rows"]), train_dataset=data
    )
    assert columns_seen(trainer) == {"x", "labels", "weights_of_rows"}


def test_columns_of_a_stream_that_does_not_know_them(tmp_path: Any) -> None:
    table = datasets.Dataset.from_list([{"x": [0.0] * 4, "labels": 0, "text": "a"}] * 8)
    stream = table.to_iterable_dataset().map(lambda row: {"text": row["text"] + "b"})
    assert stream.column_names is None
    trainer = kunren.Trainer(model=models.Points(), args=arguments(tmp_path, max_steps=2), train_dataset=stream)
    assert columns_seen(trainer) == {"x", "labels"}
