"""What transformers' collator for multiple choice cannot do; parity is in tests/parity/test_collators.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kunren.collators import DataCollatorForMultipleChoice


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_all_choices_have_one_length(tokenizer: Any, kind: str) -> None:
    rows = [
        {"input_ids": [[5], [6, 7]], "label": 1, "note": None},
        {"input_ids": [[8, 9, 3], [5]], "label": 0, "note": None},
    ]
    before = copy.deepcopy(rows)
    batch = DataCollatorForMultipleChoice(tokenizer)(rows, return_tensors=kind)
    assert rows == before
    assert batch["input_ids"].tolist() == [[[5, 0, 0], [6, 7, 0]], [[8, 9, 3], [5, 0, 0]]]
    assert batch["attention_mask"].tolist() == [[[1, 0, 0], [1, 1, 0]], [[1, 1, 1], [1, 0, 0]]]
    assert batch["labels"].tolist() == [1, 0]


def test_rows_for_prediction_have_no_labels(tokenizer: Any) -> None:
    assert set(DataCollatorForMultipleChoice(tokenizer)([{"input_ids": [[5], [6]]}])) == {"input_ids", "attention_mask"}


def test_rows_with_other_numbers_of_choices_are_told(tokenizer: Any) -> None:
    """transformers drops the surplus choices, perhaps the right one."""
    with pytest.raises(ValueError, match="Row 0 of this batch has 2 choices, row 1 has 3"):
        DataCollatorForMultipleChoice(tokenizer)([{"input_ids": [[5]] * 2}, {"input_ids": [[5]] * 3}])
