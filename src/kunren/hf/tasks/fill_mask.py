"""Words that are masked, and found again."""

from __future__ import annotations

from typing import Any

from kunren.collators import DataCollatorForLanguageModeling
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import INPUTS, TEXTS, column_of, refuse_no_text
from kunren.hf.tasks.fitting_metrics import OF_TOKENS
from kunren.hf.tasks.language_rows import encode_blocks, encode_pieces


class FillMask(Task):
    name = "fill-mask"
    auto_class = "AutoModelForMaskedLM"
    columns = {"text_column": TEXTS}
    keys = ("block_size",)
    metrics = OF_TOKENS
    default_metrics = ("perplexity",)
    changes_rows = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        if processor is not None and processor.mask_token is None:
            raise TaskError(f"fill-mask needs a token for masks, which the tokenizer of {self.request.model} has not.")
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        self._length = self.longest(config, processor)
        if not self.is_tokenized:
            self._text = column_of(self, rows, "text_column")

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        if self.request.block_size is not None:
            return Call(encode_blocks, {"text": self._text, "block_size": self.request.block_size})
        return Call(encode_pieces, {"text": self._text, "max_length": self._length})

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        refuse_no_text(key, self._text, batch[self._text])

    def collator(self) -> Call | None:
        return Call(DataCollatorForLanguageModeling, {"mlm": True})
