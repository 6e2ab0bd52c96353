"""A label for every token, padded at the side where the tokens are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunren.collators.columns import CollateColumns, Column, Columns
from kunren.collators.labels import label_column, labels_of, pad_labels, without
from kunren.collators.mixin import DataCollatorMixin
from kunren.collators.padding import DataCollatorWithPadding
from kunren.collators.ragged import as_kind


@dataclass
class DataCollatorForTokenClassification(DataCollatorMixin):
    """Pads rows as the tokenizer does, and their column `label` or `labels` with `label_pad_token_id`."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def torch_call(self, features: Any) -> Any:
        return self._call(features, "pt")

    def numpy_call(self, features: Any) -> Any:
        return self._call(features, "np")

    def collate_columns(self, columns: Columns) -> Any:
        """The same batch from columns, or None where rows are needed."""
        name = label_column(columns)
        batch = self._padding(self.return_tensors).collate_columns(without(columns, [name]))
        return None if batch is None else self._with_labels(batch, name, columns.get(name), self.return_tensors)

    def _call(self, features: Any, kind: str) -> Any:
        name = label_column(features[0])
        batch = self._padding(kind)([without(row, [name]) for row in features])
        return self._with_labels(batch, name, labels_of(features, name), kind)

    def _padding(self, kind: str) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer, self.padding, self.max_length, self.pad_to_multiple_of, kind)

    def _with_labels(self, batch: Any, name: str, labels: Column | None, kind: str) -> Any:
        if labels is not None:
            width = batch["input_ids"].shape[1]
            padded = pad_labels(name, labels, self.label_pad_token_id, self.tokenizer.padding_side, width)
            batch[name] = as_kind(padded, kind)
        return batch


def columns_for(theirs: Any) -> CollateColumns:
    """What makes the batches of transformers' collator from columns."""
    return DataCollatorForTokenClassification(
        theirs.tokenizer,
        theirs.padding,
        theirs.max_length,
        theirs.pad_to_multiple_of,
        theirs.label_pad_token_id,
        theirs.return_tensors,
    ).collate_columns
