"""Labels of tokens that do not fit; parity is in tests/parity/test_collators.py."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from kunren.collators import DataCollatorForTokenClassification


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("source", [list, tuple, numpy.array])
def test_labels_stand_at_the_side_of_the_tokens(tokenizer: Any, kind: str, source: Any) -> None:
    """S243."""
    rows = [{"input_ids": [2, 5, 3], "labels": source([-100, 1, -100])}, {"input_ids": [5], "labels": source([2])}]
    collate = DataCollatorForTokenClassification(tokenizer)
    assert collate(rows, return_tensors=kind)["labels"].tolist() == [[-100, 1, -100], [2, -100, -100]]
    tokenizer.padding_side = "left"
    assert collate(rows, return_tensors=kind)["labels"].tolist() == [[-100, 1, -100], [-100, -100, 2]]


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([[1, 2, 3], [1]], "Row 0 of this batch has 3 'labels', but the inputs of the batch have 2 tokens"),
        ([[1, 2], None], "Row 1 of this batch of 2 has no 'labels'"),
        ([1, 2], "'labels' must hold a list of integers"),
        ([[[1, 2], [3, 4]], [[1, 2], [3, 4]]], "'labels' must hold a list of integers"),
    ],
)
def test_labels_that_do_not_fit(tokenizer: Any, labels: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataCollatorForTokenClassification(tokenizer)([{"input_ids": [5, 6], "labels": label} for label in labels])


def test_rows_for_prediction_have_no_labels(tokenizer: Any) -> None:
    rows = [{"input_ids": [5, 6], "labels": None}, {"input_ids": [5], "labels": None}]
    assert list(DataCollatorForTokenClassification(tokenizer)(rows)) == ["input_ids", "attention_mask"]
