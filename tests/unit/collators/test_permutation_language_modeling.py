"""Spans and orders; parity with torch is in tests/parity/test_collators.py."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from parity.tokenizer import make_tokenizer

from kunren.collators import DataCollatorForPermutationLanguageModeling


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_spans_are_no_longer_than_allowed(tokenizer: Any, kind: str) -> None:
    """transformers' numpy half draws spans of one token more."""
    collate = DataCollatorForPermutationLanguageModeling(tokenizer, max_span_length=2)
    ids = [5] * 40
    for _ in range(40):
        labels = collate([ids], return_tensors=kind)["labels"][0].tolist()
        hidden = "".join("x" if label != -100 else " " for label in labels)
        # Stretches are 6 tokens a span's token, so two spans meet in at most 2 + 2 tokens.
        assert "xxxxx" not in hidden and hidden.count("x") <= 14


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_who_sees_whom(tokenizer: Any, kind: str) -> None:
    rows = [[2, *range(5, 23), 3], [2, *range(5, 10), 3]]
    batch = DataCollatorForPermutationLanguageModeling(tokenizer, plm_probability=0.5)(rows, return_tensors=kind)
    inputs, labels = numpy.array(batch["input_ids"].tolist()), numpy.array(batch["labels"].tolist())
    unseen = numpy.array(batch["perm_mask"].tolist())
    chosen = labels != -100
    assert chosen.any() and (inputs[chosen] == 4).all() and (labels[chosen] > 4).all()
    assert (labels[1, 7:] == -100).all()  # padding
    assert not unseen.transpose(0, 2, 1)[~chosen].any()  # what is given is seen by all
    for row in range(2):
        hidden = numpy.flatnonzero(chosen[row])
        among = unseen[row][hidden][:, hidden]
        assert (among + among.T == 1 + numpy.eye(len(hidden))).all()  # of two one sees the other; none sees itself
    assert numpy.array_equal(numpy.array(batch["target_mapping"].tolist()), numpy.tile(numpy.eye(20), (2, 1, 1)))


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_what_cannot_be_done(tokenizer: Any, kind: str) -> None:
    with pytest.raises(ValueError, match="The rows have 3 tokens, an odd number"):
        DataCollatorForPermutationLanguageModeling(tokenizer)([[5, 6, 7]], return_tensors=kind)
    with pytest.raises(ValueError, match="has no mask token"):
        DataCollatorForPermutationLanguageModeling(make_tokenizer(mask_token=None))([[5, 6]], return_tensors=kind)
    without_padding = DataCollatorForPermutationLanguageModeling(make_tokenizer(pad_token=None))
    assert without_padding([[5, 6]], return_tensors=kind)["input_ids"].shape == (1, 2)
