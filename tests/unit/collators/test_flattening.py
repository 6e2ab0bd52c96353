"""Class labels and positions; parity is in tests/parity/test_collators.py."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from kunren.collators import DataCollatorWithFlattening


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize(
    ("labels", "wanted", "dtype"),
    [
        ([1, 0], [1, 0], "int64"),
        ([1, 0.5], [1.0, 0.5], "float32"),
        ([torch.tensor(2), torch.tensor(1)], [2, 1], "int64"),
    ],
)
def test_class_labels(kind: str, labels: Any, wanted: Any, dtype: str) -> None:
    """C7: one label a row, which transformers cannot add to a list."""
    rows = [{"input_ids": ids, "labels": label} for ids, label in zip(([5, 6], [7]), labels, strict=True)]
    batch = DataCollatorWithFlattening()([*rows, {"input_ids": [], "labels": labels[0]}], return_tensors=kind)
    assert batch["labels"].tolist() == wanted
    assert str(batch["labels"].dtype).endswith(dtype)
    assert batch["input_ids"].tolist() == [[5, 6, 7]]


def test_positions_may_begin_later() -> None:
    """C7: a RoBERTa counts from 2."""
    rows = [{"input_ids": [5, 6]}, {"input_ids": [7]}]
    assert DataCollatorWithFlattening(position_ids_start=2)(rows)["position_ids"].tolist() == [[2, 3, 2]]

    class Embeddings(torch.nn.Module):
        def __init__(self, padding: int | None) -> None:
            super().__init__()
            self.position_embeddings = torch.nn.Embedding(8, 2, padding_idx=padding)

    for padding, positions in ((1, [2, 3, 2]), (None, [0, 1, 0])):
        collate = DataCollatorWithFlattening(model=torch.nn.Sequential(Embeddings(padding)))
        assert collate(rows)["position_ids"].tolist() == [positions]
        assert collate.model is None


def test_rows_stay_as_they_are() -> None:
    ids = numpy.array([5, 6, 7])
    batch = DataCollatorWithFlattening()([{"input_ids": ids}])
    batch["input_ids"][:] = 0
    assert ids.tolist() == [5, 6, 7]
    assert batch["labels"].tolist() == [[-100, 6, 7]]


def test_refusals() -> None:
    with pytest.raises(ValueError, match="no token in any row"):
        DataCollatorWithFlattening()([{"input_ids": []}])
    with pytest.raises(ValueError, match="Row 1 of this batch has 2 tokens and 1 labels"):
        DataCollatorWithFlattening()([{"input_ids": [5], "labels": [5]}, {"input_ids": [5, 6], "labels": [5]}])
    with pytest.raises(ValueError, match="return_tensors is 'tf'"):
        DataCollatorWithFlattening()([{"input_ids": [5]}], return_tensors="tf")
