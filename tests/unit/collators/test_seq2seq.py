"""Targets padded as asked; what transformers refuses or gets wrong. Parity is in tests/parity/test_collators.py."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import transformers

from kunren.collators import DataCollatorForSeq2Seq


class Shifting:
    """What T5 does with labels."""

    def prepare_decoder_input_ids_from_labels(self, labels: Any) -> Any:
        shifted = labels.new_zeros(labels.shape)
        shifted[:, 1:] = labels[:, :-1]
        return shifted.masked_fill(shifted == -100, 0)


ROWS = [{"input_ids": [5, 6, 3], "labels": [7, 3]}, {"input_ids": [8, 3], "labels": [9, 10, 11, 3]}]


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_decoder_inputs_of_both_kinds(tokenizer: Any, kind: str) -> None:
    """transformers hands numpy labels to a model that wants tensors."""
    batch = DataCollatorForSeq2Seq(tokenizer, Shifting())(ROWS, return_tensors=kind)
    assert batch["labels"].tolist() == [[7, 3, -100, -100], [9, 10, 11, 3]]
    assert batch["decoder_input_ids"].tolist() == [[0, 7, 3, 0], [0, 9, 10, 11]]
    assert type(batch["decoder_input_ids"]) is type(batch["labels"]) is type(batch["input_ids"])


@pytest.mark.parametrize(
    ("options", "width"),
    [
        ({}, 4),
        ({"pad_to_multiple_of": 8}, 8),
        ({"padding": "max_length", "max_length": 10}, 10),
        ({"padding": "max_length", "max_length": 10, "pad_to_multiple_of": 8}, 16),
        ({"padding": "max_length", "max_length": 3}, 4),  # inputs fit, a target does not: it stays whole
    ],
)
def test_targets_are_padded_as_asked(tokenizer: Any, options: dict[str, Any], width: int) -> None:
    """C5."""
    batch = DataCollatorForSeq2Seq(tokenizer, **options)(ROWS)
    assert batch["labels"].shape == (2, width)
    assert (batch["labels"] != -100).sum() == 6


def test_targets_of_one_length_need_no_padding(tokenizer: Any) -> None:
    collate = DataCollatorForSeq2Seq(tokenizer, padding=False)
    assert collate([ROWS[0], ROWS[0]])["labels"].tolist() == [[7, 3]] * 2
    with pytest.raises(ValueError, match="'labels' has rows of 2 to 4 tokens and padding is False"):
        collate([{**ROWS[0], "labels": [7, 3]}, {**ROWS[0], "labels": [9, 10, 11, 3]}])


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ([7], None, "Row 1 of this batch of 2 has no 'labels'"),
        (1, 2, "'labels' must hold a list of integers"),
        ([[7, 8]], [[7, 8]], "'labels' must hold a list of integers"),
        (["a"], ["b"], "Column 'labels' cannot become one array"),
    ],
)
def test_labels_that_are_no_targets(tokenizer: Any, first: Any, second: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataCollatorForSeq2Seq(tokenizer)([{"input_ids": [5], "labels": label} for label in (first, second)])
    with pytest.raises(ValueError, match="return_tensors is 'tf'"):
        DataCollatorForSeq2Seq(tokenizer, return_tensors="tf")(ROWS)


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_sound_to_text(kind: str) -> None:
    """A feature extractor pads too: frames of sound, with tokens as targets."""
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    rows = [
        {"input_values": numpy.ones(count, dtype=numpy.float32), "labels": [5] * targets}
        for count, targets in ((3, 4), (5, 1))
    ]
    got = DataCollatorForSeq2Seq(extractor)(rows, return_tensors=kind)
    wanted = transformers.DataCollatorForSeq2Seq(extractor)(rows, return_tensors=kind)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert (got[name].dtype, got[name].tolist()) == (value.dtype, value.tolist()), name
