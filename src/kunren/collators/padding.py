"""Pad tokenized rows to one length with the tokenizer's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from kunren.collators import stacking
from kunren.collators.columns import (
    CollateColumns,
    Column,
    Columns,
    as_python_type,
    as_tensor,
    token_column,
)
from kunren.collators.token_padding import fills_of, pad_at_once, pads_by_the_usual_rules


def pad_without_fast_tokenizer_warning(tokenizer: Any, *pad_args: Any, **pad_kwargs: Any) -> Any:
    """`tokenizer.pad`, which advises fast tokenizers to pad while tokenizing: not possible for a batch of a loader."""
    notices = getattr(tokenizer, "deprecation_warnings", None)
    if notices is None:
        return tokenizer.pad(*pad_args, **pad_kwargs)
    name = "Asking-to-pad-a-fast-tokenizer"
    before = notices.get(name, False)
    notices[name] = True
    try:
        return tokenizer.pad(*pad_args, **pad_kwargs)
    finally:
        notices[name] = before


@dataclass
class DataCollatorWithPadding:
    """Pads each batch to its longest row (or to `max_length`), adds the mask, and makes tensors of every column.

    Columns other than the tokenizer's must have one length; `label` and `label_ids` become `labels`.
    """

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[Any]) -> Any:
        """A batch of the type that `tokenizer.pad` returns."""
        if self.return_tensors not in ("pt", "np"):
            raise ValueError(f"return_tensors is {self.return_tensors!r}: it must be 'pt' (torch) or 'np' (numpy).")
        stack = _tensor if self.return_tensors == "pt" else _array
        batch = self._padded_at_once(features)
        if batch is None:
            # Lists are asked for, and made into tensors here: the tokenizer's way to do it takes ten times as long.
            try:
                batch = pad_without_fast_tokenizer_warning(
                    self.tokenizer,
                    self._as_lists(features),
                    padding=self.padding,
                    max_length=self.max_length,
                    pad_to_multiple_of=self.pad_to_multiple_of,
                    return_tensors=None,
                )
            except KeyError as error:
                raise _missing_column(features, error) from error
        for name in list(batch):
            values = batch[name]
            if isinstance(values, (list, tuple)) and values and all(value is None for value in values):
                del batch[name]
                continue
            try:
                batch[name] = stack(values)
            except (TypeError, ValueError, RuntimeError) as error:
                raise stacking.explain(name, values, error) from error
        return _with_labels(batch)

    def collate_columns(self, columns: Columns) -> Any:
        """The same batch from columns, or None where rows are needed."""
        if self.return_tensors not in ("pt", "np"):
            return None
        batch = pad_at_once(self.tokenizer, columns, self.padding, self.max_length, self.pad_to_multiple_of)
        if batch is None:
            return None
        for name, value in batch.items():
            array = value.stacked() if isinstance(value, Column) else value
            if array is None:
                return None
            batch[name] = as_tensor(array) if self.return_tensors == "pt" else as_python_type(array)
        return _with_labels(batch)

    def _padded_at_once(self, features: Any) -> Any:
        """What the tokenizer would return, or None where only it can say."""
        if not isinstance(features, (list, tuple)) or not features or not isinstance(features[0], Mapping):
            return None
        if not pads_by_the_usual_rules(self.tokenizer):
            return None
        padded = fills_of(self.tokenizer)
        is_list = isinstance(features[0].get(self.tokenizer.model_input_names[0]), list)
        columns: dict[str, Any] = {}
        try:
            for name in features[0]:
                values = [row[name] for row in features]
                if name not in padded:
                    columns[name] = values if is_list else [_as_list(name, value) for value in values]
                elif isinstance(values[0], list) is is_list:
                    columns[name] = token_column(values)
        except KeyError:
            return None
        return pad_at_once(self.tokenizer, columns, self.padding, self.max_length, self.pad_to_multiple_of)

    def _as_lists(self, features: list[Any]) -> list[Any]:
        """Rows whose token ids are arrays as rows of python numbers, which is what a tokenizer pads."""
        names = getattr(self.tokenizer, "model_input_names", None) or ["input_ids"]
        if not features or not isinstance(features[0], Mapping):
            return features
        if not isinstance(features[0].get(names[0]), (torch.Tensor, numpy.ndarray)):
            return features
        return [{name: _as_list(name, value) for name, value in row.items()} for row in features]


def columns_for(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return DataCollatorWithPadding(
        theirs.tokenizer, theirs.padding, theirs.max_length, theirs.pad_to_multiple_of, theirs.return_tensors
    ).collate_columns


def _with_labels(batch: Any) -> Any:
    for name in ("label", "label_ids"):
        if name in batch:
            batch["labels"] = batch.pop(name)
    return batch


def _as_list(name: str, value: Any) -> Any:
    if isinstance(value, float) or not isinstance(value, (torch.Tensor, numpy.ndarray, numpy.generic)):
        return value  # numpy's double is a float, and stays a double
    if name == "attention_mask" and value.ndim > 1:  # one that the tokenizer leaves as it is, and large
        return value
    return value.tolist()


def _tensor(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values
    if _is_empty(values):
        return torch.tensor(values, dtype=torch.int64)
    return torch.from_numpy(values) if isinstance(values, numpy.ndarray) else stacking.to_tensor(values)


def _array(values: Any) -> numpy.ndarray[Any, Any]:
    if isinstance(values, torch.Tensor):
        return values.numpy()
    if _is_empty(values):
        return numpy.array(values, dtype=numpy.int64)
    return values if isinstance(values, numpy.ndarray) else stacking.to_array(values)


def _is_empty(values: Any) -> bool:
    """Whether there is no token in any row: such rows are still rows of token ids, which are integers."""
    return isinstance(values, list) and all(isinstance(row, list) and not row for row in values)


def _missing_column(features: list[Any], error: KeyError) -> Exception:
    for row, feature in enumerate(features):
        for name in features[0]:
            if isinstance(feature, Mapping) and name not in feature:
                return ValueError(
                    f"Row {row} of this batch of {len(features)} has no column {name!r}, which row 0 has. "
                    "Give every row the same columns."
                )
    return error
