"""Sources and targets, each padded to a length of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kunren.collators.columns import CollateColumns, Column, Columns
from kunren.collators.labels import label_column, labels_of, pad_labels, without
from kunren.collators.padding import DataCollatorWithPadding
from kunren.collators.ragged import as_kind, to_numpy, up_to_multiple


@dataclass
class DataCollatorForSeq2Seq:
    """Pads rows as the tokenizer does, and their column `label` or `labels` by the same rules to `labels`.

    Targets are as long as the longest of the batch, or `max_length` for `padding="max_length"`; a target that is longer
    stays whole. A `model` that has `prepare_decoder_input_ids_from_labels` makes `decoder_input_ids` of them.
    """

    tokenizer: Any
    model: Any | None = None
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        """A batch of the type that `tokenizer.pad` returns; without any targets its `labels` are None."""
        kind = self.return_tensors if return_tensors is None else return_tensors
        name = label_column(features[0])
        batch = self._padding(kind)([without(row, [name]) for row in features])
        return self._with_labels(batch, name, labels_of(features, name), kind)

    def collate_columns(self, columns: Columns) -> Any:
        """The same batch from columns, or None where rows are needed."""
        name = label_column(columns)
        batch = self._padding(self.return_tensors).collate_columns(without(columns, [name]))
        return None if batch is None else self._with_labels(batch, name, columns.get(name), self.return_tensors)

    def _padding(self, kind: str) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer, self.padding, self.max_length, self.pad_to_multiple_of, kind)

    def _with_labels(self, batch: Any, name: str, labels: Column | None, kind: str) -> Any:
        if labels is None:
            batch["labels"] = None
            return batch
        width = self._label_width(name, labels)
        padded = pad_labels(name, labels, self.label_pad_token_id, self.tokenizer.padding_side, width)
        batch["labels"] = as_kind(padded, kind)
        prepare = getattr(self.model, "prepare_decoder_input_ids_from_labels", None)
        if prepare is not None:
            inputs = prepare(labels=torch.from_numpy(padded))
            batch["decoder_input_ids"] = inputs if kind == "pt" else to_numpy(inputs)
        return batch

    def _label_width(self, name: str, labels: Column) -> int:
        if labels.lengths is None:
            return 1  # which `pad_labels` refuses
        longest, shortest = int(labels.lengths.max()), int(labels.lengths.min())
        if self.padding is False or self.padding == "do_not_pad":
            if shortest != longest:
                raise ValueError(
                    f"Column {name!r} has rows of {shortest} to {longest} tokens and padding is {self.padding!r}: they "
                    "cannot become one array. Set padding=True."
                )
            return longest
        if self.padding == "max_length" and self.max_length is not None:
            longest = max(longest, self.max_length)
        return up_to_multiple(longest, self.pad_to_multiple_of)


def columns_for(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return DataCollatorForSeq2Seq(
        theirs.tokenizer,
        theirs.model,
        theirs.padding,
        theirs.max_length,
        theirs.pad_to_multiple_of,
        theirs.label_pad_token_id,
        theirs.return_tensors,
    ).collate_columns
