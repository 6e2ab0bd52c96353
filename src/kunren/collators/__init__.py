"""Collators: from the rows of a batch to tensors. One file for each way of doing it."""

from kunren.collators.default import (
    DataCollator,
    DefaultDataCollator,
    default_data_collator,
    numpy_default_data_collator,
    torch_default_data_collator,
)
from kunren.collators.flattening import DataCollatorWithFlattening
from kunren.collators.language_modeling import DataCollatorForLanguageModeling
from kunren.collators.mixin import DataCollatorMixin
from kunren.collators.multiple_choice import DataCollatorForMultipleChoice
from kunren.collators.padding import DataCollatorWithPadding, pad_without_fast_tokenizer_warning
from kunren.collators.permutation_language_modeling import DataCollatorForPermutationLanguageModeling
from kunren.collators.ragged import to_numpy
from kunren.collators.seq2seq import DataCollatorForSeq2Seq
from kunren.collators.token_classification import DataCollatorForTokenClassification

__all__ = [
    "DataCollator",
    "DataCollatorForLanguageModeling",
    "DataCollatorForMultipleChoice",
    "DataCollatorForPermutationLanguageModeling",
    "DataCollatorForSeq2Seq",
    "DataCollatorForTokenClassification",
    "DataCollatorMixin",
    "DataCollatorWithFlattening",
    "DataCollatorWithPadding",
    "DefaultDataCollator",
    "default_data_collator",
    "numpy_default_data_collator",
    "pad_without_fast_tokenizer_warning",
    "to_numpy",
    "torch_default_data_collator",
]
