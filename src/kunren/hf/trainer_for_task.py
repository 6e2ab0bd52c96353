"""A Trainer from names alone: a model by its configuration, data by its files, a task by its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.base.names import did_you_mean
from kunren.collators import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from kunren.trainer import Trainer

_CLASSIFY, _GENERATE, _FILL = "text-classification", "text-generation", "fill-mask"
_SEQ2SEQ = "AutoModelForSeq2SeqLM"
TASKS = {
    _CLASSIFY: "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    _GENERATE: "AutoModelForCausalLM",
    _FILL: "AutoModelForMaskedLM",
    "summarization": _SEQ2SEQ,
    "translation": _SEQ2SEQ,
    "text2text-generation": _SEQ2SEQ,
}
_TOKENIZED_HERE = (_CLASSIFY, _GENERATE, _FILL)  # of other tasks the rows have to be tokenized
_READERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".txt": "text"}
_TEXTS, _LABELS = ("text", "sentence", "content", "review"), ("label", "labels")
_MAX_LENGTH = 512


class TaskError(Exception):
    """What was asked for does not go together, or is not there; the message says how to mend it."""


def trainer_for_task(
    args: TrainingArguments,
    model: str,
    task: str | None,
    train_dataset: str,
    cache: str,
    text_column: str | list[str] | None = None,
    label_column: str | None = None,
    max_length: int | None = None,
) -> Trainer:
    """A Trainer whose model has random weights. `cache`: a folder for what `datasets` makes of the files."""
    try:
        import transformers
    except ImportError as error:
        raise TaskError("A model by name needs transformers: pip install 'kunren[hf]'.") from error
    name = _task_of(task, transformers)
    rows = _rows_of(Path(train_dataset), cache)
    config = _config_of(transformers, model)
    is_tokenized = "input_ids" in rows.column_names
    tokenizer = _tokenizer(transformers, model, is_needed=not is_tokenized)
    texts = [] if is_tokenized else _text_columns(rows, name, text_column)
    if name == _CLASSIFY:
        rows = _with_classes(rows, label_column, texts, config)
    if not is_tokenized:
        rows = _tokenized(rows, name, tokenizer, texts, max_length or _MAX_LENGTH)
        args.remove_unused_columns = False  # the columns that there are become others when they are read
    kind = getattr(transformers, TASKS[name])
    made = kind.from_config(config)
    return Trainer(
        model=made,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
        data_collator=_collator(name, tokenizer, made),
        **({"eval_dataset": rows} if args.eval_strategy != "no" else {}),
    )


def _task_of(task: str | None, transformers: Any) -> str:
    if task is None:
        raise TaskError(f"With a model, give its task: {', '.join(TASKS)}.")
    found = next((name for name, kind in TASKS.items() if task in (name, kind)), None)
    if found is None:
        raise TaskError(f"The task {task!r} is not known: {', '.join(TASKS)}.{did_you_mean(task, TASKS)}")
    return found


def _rows_of(path: Path, cache: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise TaskError("Data from files needs the package datasets: pip install 'kunren[hf]'.") from error
    if not path.exists():
        raise TaskError(f"train_dataset: {path} does not exist.")
    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    if (path / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(path))["train"]
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _READERS)
    if path.is_dir() and any(file.stem.startswith("train") for file in files):
        files = [file for file in files if file.stem.startswith("train")]
    kinds = {_READERS.get(file.suffix) for file in files}
    if len(kinds) != 1 or None in kinds:
        raise TaskError(f"train_dataset: {path} has to be, or to hold, files of one kind: {', '.join(_READERS)}.")
    return datasets.load_dataset(kinds.pop(), data_files=list(map(str, files)), split="train", cache_dir=cache)


def _config_of(transformers: Any, model: str) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        if Path(model).is_dir():
            raise TaskError(f"model: the folder {model} has no configuration that can be read: {error}") from error
        raise TaskError(
            f"model: there is no folder {model!r}, and transformers finds no model of this name, neither downloaded "
            "before nor, if it can be reached, on its hub: give a folder with a config.json, or the full name of one."
        ) from error


def _tokenizer(transformers: Any, model: str, is_needed: bool) -> Any:
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        if not is_needed:
            return None
        raise TaskError(f"{model} has no tokenizer, and the rows have no input_ids: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _column(rows: Any, given: str | None, usual: tuple[str, ...], what: str) -> str:
    names = rows.column_names
    found = given if given is not None else next((name for name in usual if name in names), None)
    if found not in names:
        missing = f"{what}={given!r} is no column" if given is not None else f"No column is called {' or '.join(usual)}"
        raise TaskError(f"{missing}; the columns are: {', '.join(names)}. Set {what}.")
    return str(found)


def _with_classes(rows: Any, label_column: str | None, texts: list[str], config: Any) -> Any:
    """Labels as class numbers under `labels`; the configuration is told how many there are."""
    column = _column(rows, label_column, _LABELS, "label_column")
    if column in texts:
        raise TaskError(f"{column!r} is both text and label: the columns are: {', '.join(rows.column_names)}.")
    labels = sorted(rows.unique(column))
    if not labels or not all(isinstance(label, (int, str)) for label in labels):
        raise TaskError(
            f"The labels in {column!r} are no classes but {type(labels[0]).__name__}, such as {labels[0]!r}."
        )
    if isinstance(labels[0], str):
        place = {label: number for number, label in enumerate(labels)}
        numbers = [place[label] for label in rows[column]]
        rows = rows.remove_columns(column).add_column("labels", numbers)
    elif column != "labels":
        rows = rows.rename_column(column, "labels")
    config.num_labels = len(labels) if isinstance(labels[0], str) else max(labels) + 1
    return rows


def _text_columns(rows: Any, task: str, text_column: str | list[str] | None) -> list[str]:
    if task not in _TOKENIZED_HERE:
        raise TaskError(f"For {task} the rows have to be tokenized: the columns are {', '.join(rows.column_names)}.")
    given = text_column if isinstance(text_column, list) else [text_column]
    return [_column(rows, name, _TEXTS, "text_column") for name in given]


def _tokenized(rows: Any, task: str, tokenizer: Any, columns: list[str], max_length: int) -> Any:
    """The rows, tokenized as they are read."""

    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = dict(
            tokenizer(*(batch[column] for column in columns), truncation=True, max_length=max_length)
        )
        return found | ({"labels": batch["labels"]} if task == _CLASSIFY else {})

    if task == _CLASSIFY:
        columns_kept = [*columns, "labels"]
        rows = rows.select_columns(columns_kept)
    return rows.with_transform(tokenize)


def _collator(task: str, tokenizer: Any, model: Any) -> Callable[..., Any] | None:
    if tokenizer is None:
        return None
    if task in (_GENERATE, _FILL):
        return DataCollatorForLanguageModeling(tokenizer, mlm=task == _FILL)
    if task == "token-classification":
        return DataCollatorForTokenClassification(tokenizer)
    if TASKS[task] == _SEQ2SEQ:
        return DataCollatorForSeq2Seq(tokenizer, model=model)
    return DataCollatorWithPadding(tokenizer)
