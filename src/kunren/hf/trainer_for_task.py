"""A Trainer from names alone: a model by its folder or name, data by its files, a task by its name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.base.names import did_you_mean
from kunren.base.random_state import set_seed
from kunren.collators import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
)
from kunren.trainer import Trainer

logger = logging.getLogger(__name__)

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
_SPLITS = {"train_dataset": ("train",), "eval_dataset": ("validation", "valid", "eval", "dev", "test")}
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")


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
    eval_dataset: str | None = None,
    is_to_train: bool = False,
) -> Trainer:
    """A Trainer for a look at the run, or one that `is_to_train`: with the model's weights, and rows tokenized once.

    `cache`: a folder for what `datasets` makes of the files, which has to be there as long as the Trainer is used.
    """
    try:
        import transformers
    except ImportError as error:
        raise TaskError("A model by name needs transformers: pip install 'kunren[hf]'.") from error
    name = _task_of(task, transformers)
    rows = _rows_of("train_dataset", train_dataset, cache)
    others = _rows_of("eval_dataset", eval_dataset, cache) if eval_dataset is not None else None
    config = _config_of(transformers, model)
    is_tokenized = "input_ids" in rows.column_names
    tokenizer = _tokenizer(transformers, model, is_needed=not is_tokenized)
    texts = [] if is_tokenized else _text_columns(rows, name, text_column)
    if name == _CLASSIFY:
        rows, others = _with_classes(rows, others, label_column, texts, config)
    if not is_tokenized:
        sets = {"train_dataset": rows} | ({"eval_dataset": others} if others is not None else {})
        kept, folder = ["labels"] if name == _CLASSIFY else [], cache if is_to_train else None
        for key, one in sets.items():
            tokenize = _tokenization(key, name, tokenizer, texts, max_length or _MAX_LENGTH)
            sets[key] = _tokenized(one, tokenize, texts, kept, folder)
        rows, others = sets["train_dataset"], sets.get("eval_dataset")
        # Columns that become others when they are read are not known to the Trainer.
        args.remove_unused_columns = args.remove_unused_columns and is_to_train
    if others is None and not is_to_train and args.eval_strategy != "no":
        others = rows
    kind = getattr(transformers, TASKS[name])
    set_seed(args.seed)  # a new head, or a new model, is the same in every run
    is_resumed = args.resume_from_checkpoint not in (None, False, "", "false", "False")
    made = _with_weights(kind, model, config, is_resumed) if is_to_train else kind.from_config(config)
    if name == _CLASSIFY and tokenizer is not None and getattr(config, "pad_token_id", None) is None:
        # Where a row ends. Said any earlier, it would keep the gradient from the embedding of that token.
        made.config.pad_token_id = tokenizer.pad_token_id
    return Trainer(
        model=made,
        args=args,
        train_dataset=rows,
        eval_dataset=others,
        processing_class=tokenizer,
        data_collator=_collator(name, tokenizer, made),
    )


def _with_weights(kind: Any, model: str, config: Any, is_resumed: bool) -> Any:
    """The model with its weights; a folder with a configuration alone is trained from the beginning."""
    folder = Path(model)
    if folder.is_dir() and not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        if not is_resumed:  # where the checkpoint has them
            logger.warning("%s has no weights: the model starts with random ones.", model)
        return kind.from_config(config)
    return kind.from_pretrained(model, config=config, ignore_mismatched_sizes=True)  # a head for other classes is new


def _task_of(task: str | None, transformers: Any) -> str:
    if task is None:
        raise TaskError(f"With a model, give its task: {', '.join(TASKS)}.")
    found = next((name for name, kind in TASKS.items() if task in (name, kind)), None)
    if found is None:
        raise TaskError(f"The task {task!r} is not known: {', '.join(TASKS)}.{did_you_mean(task, TASKS)}")
    return found


def _rows_of(key: str, place: str, cache: str) -> Any:
    """The rows of a file or a folder; of a folder with several sets the one that the key is for."""
    try:
        import datasets
    except ImportError as error:
        raise TaskError("Data from files needs the package datasets: pip install 'kunren[hf]'.") from error
    path, splits = Path(place), _SPLITS[key]
    if not path.exists():
        raise TaskError(f"{key}: {path} does not exist.")
    if (path / "dataset_info.json").is_file():
        return datasets.load_from_disk(str(path))
    if (path / "dataset_dict.json").is_file():
        held = datasets.load_from_disk(str(path))
        if found := next((split for split in splits if split in held), None):
            return held[found]
        raise TaskError(f"{key}: {path} holds {', '.join(held)}, and none of {', '.join(splits)}.")
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in _READERS)
    if path.is_dir():
        named = ([file for file in files if file.stem.startswith(split)] for split in splits)
        others = [file for file in files if key == "train_dataset" or not file.stem.startswith("train")]
        files = next(filter(None, named), others)
    kinds = {_READERS.get(file.suffix) for file in files}
    if len(kinds) != 1 or None in kinds:
        raise TaskError(f"{key}: {path} has to be, or to hold, files of one kind: {', '.join(_READERS)}.")
    try:
        return datasets.load_dataset(kinds.pop(), data_files=list(map(str, files)), split="train", cache_dir=cache)
    except (datasets.exceptions.DatasetsError, ValueError) as error:
        raise TaskError(f"{key}: {path} cannot be read: {error.__cause__ or error}") from error


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


def _column_as_in_training(rows: Any, name: str, what: str) -> None:
    if name not in rows.column_names:
        raise TaskError(
            f"eval_dataset has no column {name!r}, which is the {what} of train_dataset; its columns are: "
            f"{', '.join(rows.column_names)}."
        )


def _with_classes(rows: Any, others: Any, label_column: str | None, texts: list[str], config: Any) -> tuple[Any, Any]:
    """Both sets with class numbers under `labels`; the configuration is told how many there are, and their names."""
    column = _column(rows, label_column, _LABELS, "label_column")
    if column in texts:
        raise TaskError(f"{column!r} is both text and label: the columns are: {', '.join(rows.column_names)}.")
    labels = rows.unique(column)
    if None in labels:
        raise TaskError(f"{column!r} is empty in some rows of train_dataset: leave these out.")
    labels = sorted(labels)
    if not labels or not all(isinstance(label, (int, str)) for label in labels):
        raise TaskError(
            f"The labels in {column!r} are no classes but {type(labels[0]).__name__}, such as {labels[0]!r}."
        )
    if not isinstance(labels[0], str):
        config.num_labels = max(labels) + 1
        rows, others = _numbered(rows, column, None), _numbered(others, column, None)
        _refuse_unknown(others, "labels", range(config.num_labels))
        return rows, others
    known = config.label2id or {}  # a model that has been trained for these classes has numbers for them
    place = known if known.keys() >= set(labels) else {label: number for number, label in enumerate(labels)}
    config.num_labels = len(place)
    config.label2id, config.id2label = dict(place), {number: label for label, number in place.items()}
    return _numbered(rows, column, place), _numbered(others, column, place)


def _numbered(rows: Any, column: str, place: dict[str, int] | None) -> Any:
    if rows is None:
        return None
    _column_as_in_training(rows, column, "label_column")
    if place is None:
        return rows if column == "labels" else rows.rename_column(column, "labels")
    _refuse_unknown(rows, column, place)
    numbers = [place[label] for label in rows[column]]
    return rows.remove_columns(column).add_column("labels", numbers)


def _refuse_unknown(rows: Any, column: str, known: Container[Any]) -> None:
    unknown = sorted(str(label) for label in rows.unique(column) if label not in known) if rows is not None else []
    if unknown:
        raise TaskError(f"eval_dataset has labels that train_dataset has not: {', '.join(unknown)}.")


def _text_columns(rows: Any, task: str, text_column: str | list[str] | None) -> list[str]:
    if task not in _TOKENIZED_HERE:
        raise TaskError(f"For {task} the rows have to be tokenized: the columns are {', '.join(rows.column_names)}.")
    given = text_column if isinstance(text_column, list) else [text_column]
    return [_column(rows, name, _TEXTS, "text_column") for name in given]


def _tokenization(
    key: str, task: str, tokenizer: Any, columns: list[str], max_length: int
) -> Callable[[Any], dict[str, Any]]:
    def tokenize(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for column in columns:
            _check_texts(key, column, batch[column])
        found: dict[str, list[Any]] = dict(
            tokenizer(*(batch[column] for column in columns), truncation=True, max_length=max_length)
        )
        return found | ({"labels": batch["labels"]} if task == _CLASSIFY else {})

    return tokenize


def _check_texts(key: str, column: str, values: list[Any]) -> None:
    """The tokenizer's own complaint names neither the column nor the value."""
    for value in values:
        if value is None:
            raise TaskError(f"{column!r} is empty in some rows of {key}: leave these out.")
        if not isinstance(value, str):
            raise TaskError(f"{column!r} of {key} is no text but {type(value).__name__}, such as {value!r}.")


def _tokenized(
    rows: Any, tokenize: Callable[[Any], dict[str, Any]], texts: list[str], kept: list[str], cache: str | None
) -> Any:
    """The rows, tokenized once into files in `cache`, or without one as they are read."""
    for column in texts:
        _column_as_in_training(rows, column, "text_column")
    rows = rows.select_columns([*texts, *kept])
    if cache is None:
        return rows.with_transform(tokenize)
    number = len(list(Path(cache).glob("tokenized-*")))
    return rows.map(
        tokenize,
        batched=True,
        remove_columns=texts,
        cache_file_name=str(Path(cache) / f"tokenized-{number}.arrow"),
        new_fingerprint=f"kunren{number}",  # it is never looked for again, and need not be computed
        desc="Tokenizing",
    )


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
