"""Seq2SeqTrainingArguments: what an evaluation that generates is told."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.arguments.checks import at_least, refuse
from kunren.arguments.conversion import convert
from kunren.arguments.group import explained


@dataclass(repr=False)
class Seq2SeqTrainingArguments(TrainingArguments):
    """TrainingArguments, and how to generate. Only `Seq2SeqTrainer` looks at what is added here."""

    sortish_sampler: bool = explained(
        False, "Does nothing, as in transformers; batching='grouped' puts rows of like lengths together."
    )
    predict_with_generate: bool = explained(
        False, "Generate in evaluation and prediction; metrics then see tokens and texts in place of logits."
    )
    generation_max_length: int | None = explained(
        None, "max_length of the generation, where evaluate() and predict() are given none; None: the model's."
    )
    generation_num_beams: int | None = explained(
        None, "num_beams of the generation, where evaluate() and predict() are given none; None: the model's."
    )
    generation_config: str | Path | Any | None = explained(
        None,
        "Settings of the generation in place of the model's: a GenerationConfig, a dict, the folder of a model, its "
        "generation_config.json, or a hub name. The model's own are left as they are.",
    )

    def _settle(self) -> None:
        for name, annotation in _ANNOTATIONS.items():
            setattr(self, name, convert(name, getattr(self, name), annotation))
        super()._settle()

    def check(self) -> None:
        super().check()
        at_least(self, "generation_max_length", 1, "give a number of tokens, or None for the model's own setting.")
        at_least(self, "generation_num_beams", 1, "give a number of beams (1: no beam search), or None.")
        if self.predict_with_generate and self.prediction_loss_only:
            raise refuse(
                "prediction_loss_only",
                True,
                "predict_with_generate=True generates what would be thrown away. Keep one of them.",
            )


_ANNOTATIONS = {
    item.name: str(item.type)
    for item in dataclasses.fields(Seq2SeqTrainingArguments)
    if item.name in Seq2SeqTrainingArguments.__annotations__
}
