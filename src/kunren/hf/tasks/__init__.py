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
# What they are called elsewhere.
_OTHER_NAMES = {
    "text-classification": "classification sentiment sentiment-analysis sequence-classification intent nli glue "
    "regression zero-shot-classification",
    "token-classification": "ner named-entity-recognition pos pos-tagging tagging chunking",
    "question-answering": "qa squad extractive-qa reading-comprehension",
    "text-generation": "causal-lm clm language-modeling lm sft chat instruction-tuning conversational pretraining",
    "fill-mask": "mlm masked-lm masked-language-modeling",
    "summarization": "summary summarisation summarize",
    "translation": "mt machine-translation translate",
    "text2text-generation": "seq2seq seq2seq-lm seq-to-seq text-to-text sequence-to-sequence t5",
    "multiple-choice": "swag mcq",
    "image-classification": "vision picture-classification",
}
_CALLED = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}
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
    key = str(given).strip().lower().replace("_", "-").replace(" ", "-")
    near = f" Did you mean '{_CALLED[key]}'?" if key in _CALLED else did_you_mean(key, TASKS)
    raise TaskError(f"The task {given!r} is not known.{near} There are: {', '.join(TASKS)}.")


def all_tasks() -> dict[str, type[Task]]:
    return {name: _task(name) for name in TASKS}


def _task(name: str) -> type[Task]:
    found: type[Task] = resolve(f"kunren.hf.tasks.{TASKS[name]}")
    return found
