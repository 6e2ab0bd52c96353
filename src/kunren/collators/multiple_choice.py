"""Several candidate sequences a row, of which one is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy

from kunren.collators.labels import label_column, values_of
from kunren.collators.mixin import DataCollatorMixin
from kunren.collators.padding import DataCollatorWithPadding
from kunren.collators.ragged import as_kind


@dataclass
class DataCollatorForMultipleChoice(DataCollatorMixin):
    """Pads all choices of all rows to one length: every column is (rows, choices, tokens), `labels` are (rows,)."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def torch_call(self, examples: Any) -> dict[str, Any]:
        return self._call(examples, "pt")

    def numpy_call(self, examples: Any) -> dict[str, Any]:
        return self._call(examples, "np")

    def _call(self, examples: Any, kind: str) -> dict[str, Any]:
        name = label_column(examples[0])
        labels = values_of(examples, name)
        rows, choices = len(examples), len(examples[0]["input_ids"])
        for index, example in enumerate(examples):
            if len(example["input_ids"]) != choices:
                raise ValueError(
                    f"Row 0 of this batch has {choices} choices, row {index} has {len(example['input_ids'])}. Give all "
                    "rows the same number of choices."
                )
        sequences = [
            {column: values[choice] for column, values in example.items() if column != name and values is not None}
            for example in examples
            for choice in range(choices)
        ]
        pad = DataCollatorWithPadding(self.tokenizer, self.padding, self.max_length, self.pad_to_multiple_of, kind)
        batch = {column: values.reshape(rows, choices, -1) for column, values in pad(sequences).items()}
        if labels is not None:
            batch["labels"] = as_kind(numpy.array([int(label) for label in labels], dtype=numpy.int64), kind)
        return batch
