"""Training with generation: evaluation and prediction by what the model writes, not by its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.registry import on_demand

_HOMES = {"Seq2SeqTrainer": "trainer", "Seq2SeqTrainingArguments": "arguments"}

__all__ = [*_HOMES]

if TYPE_CHECKING:
    from kunren.seq2seq.arguments import Seq2SeqTrainingArguments as Seq2SeqTrainingArguments
    from kunren.seq2seq.trainer import Seq2SeqTrainer as Seq2SeqTrainer

__getattr__ = on_demand(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
