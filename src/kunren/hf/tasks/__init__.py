"""The tasks that a run can have by name, one in each file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.names import did_you_mean
from kunren.base.registry import resolve

if TYPE_CHECKING:
    from kunren.hf.tasks.base import Task

TASKS = {
    "text-classification": "text_classification:TextClassification",
    "token-classification": "token_classification:TokenClassification",
    "question-answering": "question_answering:QuestionAnswering",
    "text-generation": "text_generation:TextGeneration",
    "fill-mask": "fill_mask:FillMask",
    "summarization": "text_to_text:Summarization",
    "translation": "text_to_text:Translation",
    "text2text-generation": "text_to_text:TextToText",
    "multiple-choice": "multiple_choice:MultipleChoice",
    "image-classification": "image_classification:ImageClassification",
}
_LATER = (
    "audio-classification",
    "automatic-speech-recognition",
    "object-detection",
    "image-segmentation",
)


def task_named(given: str | None) -> type[Task]:
    """The task of a name, or of the class of transformers that stands for it; TaskError for another."""
    from kunren.hf.tasks.base import TaskError

    if given is None:
        raise TaskError(f"With a model, give its task: {', '.join(TASKS)}.")
    if given in _LATER:
        raise TaskError(f"The task {given!r} has no form without code: write a script with kunren's Trainer for it.")
    if given in TASKS:
        return _task(given)
    for name in TASKS:
        if _task(name).auto_class == given:
            return _task(name)
    raise TaskError(f"The task {given!r} is not known: {', '.join(TASKS)}.{did_you_mean(str(given), TASKS)}")


def all_tasks() -> dict[str, type[Task]]:
    return {name: _task(name) for name in TASKS}


def _task(name: str) -> type[Task]:
    found: type[Task] = resolve(f"kunren.hf.tasks.{TASKS[name]}")
    return found
