"""What a model card says, gathered from the run: nothing that the run's own records do not bear out."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kunren._version import __version__
from kunren.base.registry import resolve
from kunren.model.signature import base_of, is_pretrained, unwrap

_REPOSITORY = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
_ENDPOINT_OF_DATA = re.compile(r"^hf://datasets/([^@]+)@")
# Builders of `datasets` that stand for a kind of file, not for a data set.
_KINDS_OF_FILES = (
    *("csv", "json", "pandas", "parquet", "arrow", "text", "conll", "webdataset", "xml", "hdf5", "eval", "lance"),
    *("tsfile", "iceberg", "vortex", "mmcif", "pdb", "genbank", "fasta", "fastq", "harbor"),
    *("generator", "sql", "spark", "cache", "default"),
)
_TASKS = {
    "text-generation": ("CAUSAL_LM",),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "image-segmentation": ("IMAGE_SEGMENTATION",),
    "fill-mask": ("MASKED_LM",),
    "object-detection": ("OBJECT_DETECTION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "text2text-generation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "table-question-answering": ("TABLE_QUESTION_ANSWERING",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "multiple-choice": ("MULTIPLE_CHOICE",),
    "audio-classification": ("AUDIO_CLASSIFICATION",),
    "automatic-speech-recognition": ("CTC", "SPEECH_SEQ_2_SEQ"),
    "zero-shot-image-classification": ("ZERO_SHOT_IMAGE_CLASSIFICATION",),
    "image-text-to-text": ("IMAGE_TEXT_TO_TEXT",),
}
_VERSIONS = {
    "kunren": "kunren",
    "peft": "PEFT",
    "transformers": "Transformers",
    "torch": "PyTorch",
    "datasets": "Datasets",
    "tokenizers": "Tokenizers",
}
_NO_METRICS = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "jit_compilation_time")


@dataclass(frozen=True)
class DataSource:
    """A data set by its name on the hub, with what `datasets` knows of the part that was used."""

    tag: str
    name: str
    config: str | None = None
    split: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """The numbers of one step, named without "eval_"; `training_loss`: the last one logged before."""

    step: int
    epoch: float | None
    training_loss: float | None
    metrics: Mapping[str, Any] = field(default_factory=dict)


def library_of(model: Any) -> str | None:
    """The library that loads what was saved; None where it is no library's model."""
    model = unwrap(model)
    if getattr(model, "peft_config", None) and hasattr(model, "get_base_model"):
        return "peft"
    return "transformers" if is_pretrained(model) else None


def base_model_of(model: Any) -> str | None:
    """The hub's name of the model that this one began as; None for a local folder, a path, or weights of its own."""
    adapters = getattr(unwrap(model), "peft_config", None)
    names = [getattr(one, "base_model_name_or_path", None) for one in adapters.values()] if adapters else []
    names.append(getattr(getattr(base_of(model), "config", None), "_name_or_path", None))
    return next((name for name in names if is_repository(name)), None)


def is_repository(name: Any) -> bool:
    """Whether a name is one of the hub's, and not that of something on this machine."""
    return isinstance(name, str) and bool(_REPOSITORY.match(name)) and not Path(name).exists()


def task_of(model: Any) -> str | None:
    """The hub's name of the task that the model's class is for, as transformers' lists have it."""
    if "transformers" not in sys.modules or library_of(model) is None:
        return None
    lists = resolve("kunren.hub.model_classes:names_of")
    kind = type(base_of(model)).__name__
    found = [task for task, keys in _TASKS.items() if any(kind in lists(key) for key in keys)]
    return found[-1] if found else None


def data_source_of(trainer: Any) -> DataSource | None:
    """The hub's data set that the evaluation, or else the training, was on; None where `datasets` does not know."""
    data = trainer.eval_dataset if trainer.eval_dataset is not None else trainer.train_dataset
    info = getattr(data, "info", None)
    if info is None or "datasets" not in sys.modules:
        return None
    places = (_ENDPOINT_OF_DATA.match(str(place)) for place in getattr(info, "download_checksums", None) or ())
    tag = next((place[1] for place in places if place), None) or getattr(data, "builder_name", None)
    if not isinstance(tag, str) or tag in _KINDS_OF_FILES or tag.endswith("folder") or not _REPOSITORY.match(tag):
        return None
    split = getattr(data, "split", None)
    return DataSource(tag, tag, getattr(data, "config_name", None), None if split is None else str(split))


def evaluations(history: list[dict[str, Any]]) -> list[Evaluation]:
    """What was evaluated, in order; the numbers of several sets at one step stand together."""
    found: list[Evaluation] = []
    loss: float | None = None
    new = True
    for entry in history:
        if "loss" in entry:
            loss = entry["loss"]
        metrics = {
            name[len("eval_") :]: value
            for name, value in entry.items()
            if name.startswith("eval_") and not name.endswith(_NO_METRICS)
        }
        if "train_runtime" in entry:
            new = True  # what is evaluated after the training is evaluated anew
        if not metrics:
            continue
        last = found[-1] if found else None
        if last is None or new or last.step != entry.get("step") or set(metrics) & set(last.metrics):
            found.append(Evaluation(int(entry.get("step") or 0), entry.get("epoch"), loss, metrics))
        else:
            found[-1] = Evaluation(last.step, last.epoch, last.training_loss, {**last.metrics, **metrics})
        new = False
    return found


def evaluation_of_the_model(trainer: Any) -> Evaluation | None:
    """The evaluation of the weights that are shared: the one after the training, or of the best step, or the last."""
    history = list(trainer.state.log_history)
    ends = [place for place, entry in enumerate(history) if "train_runtime" in entry]
    after = evaluations(history[ends[-1] + 1 :]) if ends else []
    if after:
        return _joined(after)
    found = evaluations(history[: ends[-1]] if ends else history)
    best = trainer.state.best_global_step
    if ends and trainer.args.load_best_model_at_end and best is not None:
        return next((one for one in reversed(found) if one.step == best), None)
    return found[-1] if found else None


def _joined(several: list[Evaluation]) -> Evaluation:
    """After a training each set may be evaluated on its own; of each number the newest counts."""
    metrics = {name: value for one in several for name, value in one.metrics.items()}
    last = several[-1]
    return Evaluation(last.step, last.epoch, last.training_loss, metrics)


def best_or_last_step(trainer: Any) -> int:
    """The step whose weights are shared."""
    state = trainer.state
    is_best = trainer.args.load_best_model_at_end and any("train_runtime" in entry for entry in state.log_history)
    return int(state.best_global_step if is_best and state.best_global_step is not None else state.global_step)


def versions(library: str | None) -> dict[str, str]:
    """The packages that took part, by what they are called: those that this process has loaded."""
    found = {"kunren": __version__}
    for package, name in _VERSIONS.items():
        if package in sys.modules and package not in ("kunren", "peft" if library != "peft" else ""):
            with suppress(PackageNotFoundError):
                found[name] = str(getattr(sys.modules[package], "__version__", None) or version(package))
    return {name: found[name] for name in _VERSIONS.values() if name in found}


def is_number(value: Any) -> bool:
    """Whether the hub takes it as a result."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
