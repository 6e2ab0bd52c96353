"""Rows end to end in one sequence without padding; positions and boundaries tell them apart."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy
from torch import nn

from kunren.collators import stacking
from kunren.collators.columns import Array, CollateColumns, Column, Columns
from kunren.collators.default import DefaultDataCollator
from kunren.collators.labels import labels_of, refuse_other_lengths
from kunren.collators.ragged import as_kind, end_to_end, lengths_of


@dataclass
class DataCollatorWithFlattening(DefaultDataCollator):
    """One sequence of (1, all tokens): `input_ids`, `labels`, `position_ids` that begin anew with each row.

    `labels` are the rows' own or their tokens, with `separator_id` at the first token of each row, which the row before
    must not predict. Labels that are one number a row are class labels: (rows,). `return_flash_attn_kwargs` adds the
    boundaries that flash attention takes, `return_seq_idx` the row that each token belongs to. Models like RoBERTa
    count positions from their padding index on: give `position_ids_start`, or the `model`, which is asked for it.
    Rows without tokens are left out.
    """

    _: KW_ONLY
    return_position_ids: bool = True
    separator_id: int = -100
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = False
    position_ids_start: int = 0
    model: Any = None

    def __post_init__(self) -> None:
        if self.model is not None and self.position_ids_start == 0:
            self.position_ids_start = first_position_id(self.model)
        self.model = None  # only asked, not kept: a collator is sent to worker processes

    def __call__(
        self, features: Any, return_tensors: str | None = None, separator_id: int | None = None
    ) -> dict[str, Any]:
        kind = self.return_tensors if return_tensors is None else return_tensors
        if kind not in ("pt", "np"):
            raise ValueError(f"return_tensors is {kind!r}: it must be 'pt' (torch) or 'np' (numpy).")
        features = [row for row in features if len(row["input_ids"])]
        if not features:
            raise ValueError("There is no token in any row of this batch. Remove rows without tokens from the dataset.")
        tokens = end_to_end([row["input_ids"] for row in features])
        return self._flattened(tokens, labels_of(features, "labels"), kind, separator_id)

    def collate_columns(self, columns: Columns) -> dict[str, Any] | None:
        """The same batch from columns, or None where rows are needed."""
        tokens, labels = columns.get("input_ids"), columns.get("labels")
        if tokens is None or tokens.lengths is None or not tokens.lengths.all():
            return None
        if tokens.values.dtype.kind not in "iu" or self.return_tensors not in ("pt", "np"):
            return None
        return self._flattened(tokens, labels, self.return_tensors, None)

    def _flattened(self, tokens: Column, labels: Column | None, kind: str, separator_id: int | None) -> dict[str, Any]:
        lengths = lengths_of(tokens)
        boundaries = numpy.zeros(len(lengths) + 1, dtype=numpy.int64)
        numpy.cumsum(lengths, out=boundaries[1:])
        starts = boundaries[:-1]
        arrays: dict[str, Array] = {"input_ids": tokens.values.astype(numpy.int64, copy=False)[None]}
        if labels is not None and labels.lengths is None:
            arrays["labels"] = stacking.with_label_type(labels.values, 1)
        else:
            if labels is not None:
                refuse_other_lengths(labels, lengths)
            targets = (tokens if labels is None else labels).values.astype(numpy.int64)  # a copy, always
            targets[starts] = self.separator_id if separator_id is None else separator_id
            arrays["labels"] = targets[None]
        if self.return_position_ids:
            first = numpy.repeat(starts - self.position_ids_start, lengths)
            arrays["position_ids"] = (numpy.arange(boundaries[-1]) - first)[None]
        if self.return_seq_idx:
            arrays["seq_idx"] = numpy.repeat(numpy.arange(len(lengths), dtype=numpy.int32), lengths)[None]
        if self.return_flash_attn_kwargs:
            for side in ("q", "k"):
                arrays[f"cu_seq_lens_{side}"] = boundaries.astype(numpy.int32)
        batch: dict[str, Any] = {name: as_kind(array, kind) for name, array in arrays.items()}
        if self.return_flash_attn_kwargs:
            batch["max_length_q"] = batch["max_length_k"] = int(lengths.max())
        return batch


def columns_for(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return DataCollatorWithFlattening(
        theirs.return_tensors,
        return_position_ids=theirs.return_position_ids,
        separator_id=theirs.separator_id,
        return_flash_attn_kwargs=theirs.return_flash_attn_kwargs,
        return_seq_idx=theirs.return_seq_idx,
        position_ids_start=getattr(theirs, "position_ids_start", 0),
    ).collate_columns


def first_position_id(model: Any) -> int:
    """The position that a model gives to the first token: 0, or one past the padding index of its positions.

    RoBERTa and its kin keep a row of their table of positions for padding; `padding_idx` of that table tells.
    """
    for name, module in model.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(module, nn.Embedding):
            return 0 if module.padding_idx is None else module.padding_idx + 1
    return 0
