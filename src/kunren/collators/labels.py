"""Labels of tokens: taken out of the rows, since a tokenizer pads none, checked, and padded beside the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy

from kunren.collators import ragged, stacking
from kunren.collators.columns import Array, Column


def label_column(columns: Iterable[str]) -> str:
    return "label" if "label" in columns else "labels"


def values_of(features: Sequence[Mapping[str, Any]], name: str) -> list[Any] | None:
    """The column, or None where no row has a value in it; an error where only some rows have one."""
    values = [row.get(name) for row in features]
    missing = [index for index, value in enumerate(values) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        raise ValueError(
            f"Row {missing[0]} of this batch of {len(values)} has no {name!r}, which other rows have. "
            "Give it to every row, or to none."
        )
    return values


def labels_of(features: Sequence[Mapping[str, Any]], name: str) -> Column | None:
    """The labels end to end; one number a row is a column without lengths. None where no row has any."""
    values = values_of(features, name)
    if values is None:
        return None
    try:
        if numpy.ndim(values[0]) == 0:
            return Column(stacking.class_label_array(values))
        return ragged.end_to_end(values)
    except (TypeError, ValueError) as error:
        raise stacking.explain(name, values, error) from error


def without(columns: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """A new row, or new columns, that lacks some; the values are the given ones."""
    return {name: value for name, value in columns.items() if name not in names}


def pad_labels(name: str, labels: Column, fill: int, side: str, width: int) -> Array:
    """(rows, width) of int64."""
    if labels.lengths is None or labels.values.ndim != 1:
        raise ValueError(f"Column {name!r} must hold a list of integers in every row, one label for each token.")
    if (labels.lengths > width).any():
        row = int((labels.lengths > width).argmax())
        raise ValueError(
            f"Row {row} of this batch has {labels.lengths[row]} {name!r}, but the inputs of the batch have {width} "
            "tokens. Give every token one label; -100 is for tokens that the loss leaves out."
        )
    return ragged.pad(labels, fill, side, width)


def refuse_other_lengths(labels: Column, tokens: Array) -> None:
    """Raise where a row has not as many labels as tokens: padded, they would stand beside other tokens."""
    lengths = ragged.lengths_of(labels)
    if (lengths != tokens).any():
        row = int((lengths != tokens).argmax())
        raise ValueError(
            f"Row {row} of this batch has {tokens[row]} tokens and {lengths[row]} labels. Give every token one label; "
            "-100 is for tokens that the loss leaves out."
        )
