"""Pad tokenized rows to one length with the tokenizer's own rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from kunren.collators import stacking


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
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch

    def _as_lists(self, features: list[Any]) -> list[Any]:
        """Rows whose token ids are arrays as rows of python numbers, which is what a tokenizer pads."""
        names = getattr(self.tokenizer, "model_input_names", None) or ["input_ids"]
        if not features or not isinstance(features[0], Mapping):
            return features
        if not isinstance(features[0].get(names[0]), (torch.Tensor, numpy.ndarray)):
            return features
        return [{name: _as_list(name, value) for name, value in row.items()} for row in features]


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
