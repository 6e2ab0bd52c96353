"""Rows that carry their prompts in a column of its own, beside what the loss is computed of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import torch

from kunren.seq2seq.prompts import PROMPT, PROMPT_MASK

COLUMNS = (PROMPT, PROMPT_MASK)


@final
class PromptColumns:
    """A collator around the user's own: it sets the prompts apart and pads them on the left; without `keeps`, no more.

    Collators of the field pad the columns they know, and would not know these.
    """

    def __init__(self, collator: Callable[[list[Any]], Any], keeps: bool, pad_token: int | None) -> None:
        self.collator, self.keeps, self.pad_token = collator, keeps, pad_token or 0

    def __call__(self, rows: list[Any]) -> Any:
        if not any(isinstance(row, Mapping) and PROMPT in row for row in rows):
            return self.collator(rows)
        missing = next((index for index, row in enumerate(rows) if PROMPT not in row), None)
        if missing is not None:
            raise ValueError(f"Row {missing} of a batch has no {PROMPT!r}, and others have: give it to every row.")
        batch = self.collator([{name: row[name] for name in row if name not in COLUMNS} for row in rows])
        if self.keeps:
            batch[PROMPT], batch[PROMPT_MASK] = self._padded([_prompt_of(row) for row in rows])
        return batch

    def _padded(self, prompts: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.full((len(prompts), width), self.pad_token)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = prompt
            mask[row, width - len(prompt) :] = 1
        return tokens, mask


def _prompt_of(row: Mapping[str, Any]) -> torch.Tensor:
    tokens, mask = torch.as_tensor(row[PROMPT]).long(), row.get(PROMPT_MASK)
    return tokens if mask is None else tokens[torch.as_tensor(mask).bool()]
