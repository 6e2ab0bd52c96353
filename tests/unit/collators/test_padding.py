"""Padding against transformers' collator, and its answers to columns that cannot be padded."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.collators import DataCollatorWithPadding


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    vocabulary = tmp_path_factory.mktemp("tokenizer") / "vocab.txt"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]
    Path(vocabulary).write_text("\n".join(words))
    return transformers.BertTokenizerFast(str(vocabulary))


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert (type(got[name]), got[name].dtype) == (type(value), value.dtype), name
        assert got[name].tolist() == value.tolist()


rows_of_tokens = st.lists(st.lists(st.integers(0, 54), max_size=9), min_size=1, max_size=4)


@settings(deadline=None)
@given(
    tokens=rows_of_tokens,
    kind=st.sampled_from(["pt", "np"]),
    source=st.sampled_from(["list", "numpy", "torch"]),
    label=st.sampled_from([None, "label", "label_ids", "labels"]),
    label_type=st.sampled_from([int, float, bool, numpy.int64, numpy.float64]),
    mask=st.booleans(),
    options=st.sampled_from(
        [{}, {"pad_to_multiple_of": 8}, {"padding": "max_length", "max_length": 12}, {"padding": "longest"}]
    ),
    side=st.sampled_from(["left", "right"]),
)
def test_batches_are_those_of_transformers(
    tokenizer: Any,
    tokens: Any,
    kind: str,
    source: str,
    label: Any,
    label_type: Any,
    mask: bool,
    options: Any,
    side: str,
) -> None:
    makers: dict[str, Any] = {
        "list": list,
        "numpy": functools.partial(numpy.array, dtype=numpy.int64),
        "torch": functools.partial(torch.tensor, dtype=torch.int64),
    }
    convert = makers[source]
    rows = []
    for index, ids in enumerate(tokens):
        row = {"input_ids": convert(ids), "token_type_ids": convert([0] * len(ids))}
        if mask:
            row["attention_mask"] = convert([1] * len(ids))
        if label:
            row[label] = label_type(index % 2)
        rows.append(row)
    tokenizer.padding_side = side
    before = copy.deepcopy(rows)
    got = DataCollatorWithPadding(tokenizer, return_tensors=kind, **options)(rows)
    assert repr(rows) == repr(before)
    same(got, transformers.DataCollatorWithPadding(tokenizer, return_tensors=kind, **options)(before))


def test_rows_that_the_tokenizer_made(tokenizer: Any) -> None:
    tokenizer.padding_side = "right"
    rows = [tokenizer("w1 w2 w3"), tokenizer("w4")]
    same(DataCollatorWithPadding(tokenizer)(rows), transformers.DataCollatorWithPadding(tokenizer)(rows))
    assert DataCollatorWithPadding(tokenizer)(rows)["attention_mask"].tolist() == [[1] * 5, [1] * 3 + [0] * 2]


def test_other_columns_keep_their_arrays(tokenizer: Any) -> None:
    rows: list[dict[str, Any]] = [
        {
            "input_ids": [1] * count,
            "score": 0.5,
            "image": numpy.ones((2, 2)),
            "weight": torch.tensor(1.0, dtype=torch.float64),
        }
        for count in (1, 3)
    ]
    same(DataCollatorWithPadding(tokenizer)(rows), transformers.DataCollatorWithPadding(tokenizer)(rows))


def test_a_fast_tokenizer_does_not_advise_while_a_batch_is_padded() -> None:
    class Fast:
        def __init__(self) -> None:
            self.deprecation_warnings: dict[str, bool] = {}
            self.advised = 0

        def pad(self, features: list[Any], **options: Any) -> dict[str, Any]:
            if not self.deprecation_warnings.get("Asking-to-pad-a-fast-tokenizer", False):
                self.advised += 1
            if not features[0]["input_ids"]:
                raise ValueError("nothing to pad")
            return {"input_ids": [row["input_ids"] for row in features]}

    tokenizer = Fast()
    collate = DataCollatorWithPadding(tokenizer)
    collate([{"input_ids": [1]}])
    with pytest.raises(ValueError, match="nothing to pad"):
        collate([{"input_ids": []}])
    assert tokenizer.advised == 0
    assert tokenizer.deprecation_warnings == {"Asking-to-pad-a-fast-tokenizer": False}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([[1, 2], [1, 2, 3]], r"row 0 has shape \(2,\), row 1 has shape \(3,\)"),
        (["a", "b"], "values of type str"),
        ([1, None], "None in row 1"),
        ([None, 1.5], "None in row 0"),
    ],
)
@pytest.mark.parametrize("source", [list, torch.tensor])
def test_a_column_that_cannot_be_a_tensor_is_named(tokenizer: Any, values: list[Any], says: str, source: Any) -> None:
    rows = [{"input_ids": source([1]), "extra": value} for value in values]
    with pytest.raises(ValueError, match=f"Column 'extra' cannot become one array: .*{says}"):
        DataCollatorWithPadding(tokenizer)(rows)


def test_rows_without_labels_and_with_gaps(tokenizer: Any) -> None:
    batch = DataCollatorWithPadding(tokenizer)(
        [{"input_ids": [1], "label": None}, {"input_ids": [1, 2], "label": None}]
    )
    assert list(batch) == ["input_ids", "attention_mask"]
    with pytest.raises(ValueError, match="Row 1 of this batch of 2 has no column 'label'"):
        DataCollatorWithPadding(tokenizer)([{"input_ids": [1], "label": 1}, {"input_ids": [1, 2]}])
    with pytest.raises(ValueError, match="'tf': it must be 'pt'"):
        DataCollatorWithPadding(tokenizer, return_tensors="tf")([{"input_ids": [1]}])


def test_any_object_with_pad_will_do() -> None:
    class Padder:
        def pad(self, features: list[Any], padding: Any, return_tensors: Any, **options: Any) -> dict[str, Any]:
            longest = max(len(row["input_ids"]) for row in features)
            return {"input_ids": [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in features]}

    batch = DataCollatorWithPadding(Padder())([{"input_ids": [1]}, {"input_ids": [1, 2]}])
    assert batch["input_ids"].tolist() == [[1, 0], [1, 2]]
