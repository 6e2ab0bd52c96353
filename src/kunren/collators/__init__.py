"""Collators: from the rows of a batch to tensors. One file for each way of doing it."""

from kunren.collators.default import (
    DataCollator,
    DefaultDataCollator,
    default_data_collator,
    numpy_default_data_collator,
    torch_default_data_collator,
)
from kunren.collators.padding import DataCollatorWithPadding, pad_without_fast_tokenizer_warning

__all__ = [
    "DataCollator",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "default_data_collator",
    "numpy_default_data_collator",
    "pad_without_fast_tokenizer_warning",
    "torch_default_data_collator",
]
