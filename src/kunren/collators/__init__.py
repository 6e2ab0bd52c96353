"""Collators: from the rows of a batch to tensors. One file for each way of doing it, imported when it is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.registry import on_demand

_HOMES = {
    "DataCollator": "default",
    "DataCollatorForLanguageModeling": "language_modeling",
    "DataCollatorForMultipleChoice": "multiple_choice",
    "DataCollatorForPermutationLanguageModeling": "permutation_language_modeling",
    "DataCollatorForSeq2Seq": "seq2seq",
    "DataCollatorForTokenClassification": "token_classification",
    "DataCollatorMixin": "mixin",
    "DataCollatorWithFlattening": "flattening",
    "DataCollatorWithPadding": "padding",
    "DefaultDataCollator": "default",
    "default_data_collator": "default",
    "numpy_default_data_collator": "default",
    "pad_without_fast_tokenizer_warning": "padding",
    "to_numpy": "ragged",
    "torch_default_data_collator": "default",
}

# transformers' collators, by name -> the function that makes of one what collates the same batches from columns.
EQUALS_OF_TRANSFORMERS = {
    "default_data_collator": "default:columns_for_function",
    "torch_default_data_collator": "default:columns_for_function",
    "DefaultDataCollator": "default:columns_for_object",
    "DataCollatorWithPadding": "padding:columns_for",
    "DataCollatorForTokenClassification": "token_classification:columns_for",
    "DataCollatorForSeq2Seq": "seq2seq:columns_for",
    "DataCollatorForLanguageModeling": "language_modeling:columns_for",
    "DataCollatorWithFlattening": "flattening:columns_for",
}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from kunren.collators.default import DataCollator as DataCollator
    from kunren.collators.default import DefaultDataCollator as DefaultDataCollator
    from kunren.collators.default import default_data_collator as default_data_collator
    from kunren.collators.default import numpy_default_data_collator as numpy_default_data_collator
    from kunren.collators.default import torch_default_data_collator as torch_default_data_collator
    from kunren.collators.flattening import DataCollatorWithFlattening as DataCollatorWithFlattening
    from kunren.collators.language_modeling import DataCollatorForLanguageModeling as DataCollatorForLanguageModeling
    from kunren.collators.mixin import DataCollatorMixin as DataCollatorMixin
    from kunren.collators.multiple_choice import DataCollatorForMultipleChoice as DataCollatorForMultipleChoice
    from kunren.collators.padding import DataCollatorWithPadding as DataCollatorWithPadding
    from kunren.collators.padding import pad_without_fast_tokenizer_warning as pad_without_fast_tokenizer_warning
    from kunren.collators.permutation_language_modeling import (
        DataCollatorForPermutationLanguageModeling as DataCollatorForPermutationLanguageModeling,
    )
    from kunren.collators.ragged import to_numpy as to_numpy
    from kunren.collators.seq2seq import DataCollatorForSeq2Seq as DataCollatorForSeq2Seq
    from kunren.collators.token_classification import (
        DataCollatorForTokenClassification as DataCollatorForTokenClassification,
    )

__getattr__ = on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
