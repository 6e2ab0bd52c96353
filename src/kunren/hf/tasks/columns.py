"""Columns of rows: found by the names that they usually have, and what is said of those that are missing or empty."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kunren.base.names import did_you_mean
from kunren.hf.tasks.base import Task, TaskError

TEXTS = ("text", "sentence", "content", "review")
LABELS = ("label", "labels")
INPUTS = "input_ids"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_MANY_CLASSES, _MANY_CLASSES_UNSEEN = 10_000, 100


def column_of(task: Task, rows: dict[str, Any], key: str) -> str:
    """The column that `key` names, or one of the usual names; it has to be in each set."""
    train = rows["train_dataset"]
    found = _named(train, getattr(task.request, key), task.columns[key], key)
    require(rows, [found], key)
    return found


def optional_column(task: Task, rows: dict[str, Any], key: str) -> str | None:
    """The same, or None where nothing is said and no usual name is there."""
    there = rows["train_dataset"].column_names
    if getattr(task.request, key) is None and not any(name in there for name in task.columns[key]):
        return None
    return column_of(task, rows, key)


def _named(rows: Any, given: Any, usual: tuple[str, ...], what: str) -> str:
    names = rows.column_names
    found = given if given is not None else next((name for name in usual if name in names), None)
    if found not in names:
        missing = f"{what}={given!r} is no column" if given is not None else f"No column is called {' or '.join(usual)}"
        mark = next((name for mark, name in _SEPARATORS.items() if len(names) == 1 and mark in names[0]), None)
        near = did_you_mean(str(given), names) if given is not None else ""
        remedy = f"Set {what}.{near}" if mark is None else f"It looks as if {mark} stood between columns: use commas."
        raise TaskError(f"{missing}; the columns are: {', '.join(names)}. {remedy}")
    return str(found)


def require(rows: dict[str, Any], names: Iterable[str], what: str) -> None:
    """The columns of the training set, in every other set."""
    for key, one in rows.items():
        for name in names:
            if name in one.column_names:
                continue
            if key == "train_dataset":
                raise TaskError(
                    f"{what}={name!r} is no column; the columns are: {', '.join(one.column_names)}. Set {what}."
                    f"{did_you_mean(str(name), one.column_names)}"
                )
            raise TaskError(
                f"{key} has no column {name!r}, which is the {what} of train_dataset; its columns are: "
                f"{', '.join(one.column_names)}.{did_you_mean(str(name), one.column_names)}"
            )


def place_of(key: str, number: int | None) -> str:
    return key if number is None else f"row {number} of {key}"


def refuse_no_text(key: str, column: str, values: list[Any]) -> None:
    """The tokenizer's own complaint names neither the column nor the value."""
    for value in values:
        if value is None:
            raise TaskError(f"{column!r} is empty in some rows of {key}: leave these out.")
        if not isinstance(value, str):
            raise TaskError(f"{column!r} of {key} is no text but {type(value).__name__}, such as {value!r}.")


def class_names(rows: Any, column: str) -> list[str] | None:
    """The names of a column of class numbers, or of lists of them, where the data has them."""
    feature = rows.features[column]
    feature = getattr(feature, "feature", feature[0] if isinstance(feature, list) and feature else feature)
    names = getattr(feature, "names", None)
    return list(names) if names is not None else None


def same_class_names(rows: dict[str, Any], column: str) -> list[str] | None:
    """`class_names` of the training set; TaskError where another set numbers its classes in another way."""
    names = class_names(rows["train_dataset"], column)
    for key, one in rows.items():
        others = class_names(one, column)
        if names is not None and others is not None and others != names:
            raise TaskError(
                f"{column!r} of {key} numbers its classes {', '.join(others)}, that of train_dataset "
                f"{', '.join(names)}: save both with the same classes."
            )
    return names


def labels_in(rows: dict[str, Any], column: str) -> dict[str, set[Any]]:
    """The labels that there are in each set."""
    found = {}
    for key, one in rows.items():
        feature = one.features[column]
        if type(feature).__name__ == "Json":
            raise TaskError(f"The labels in {column!r} of {key} are no classes: some are text, and others are not.")
        if not isinstance(getattr(feature, "dtype", None), str) or feature.dtype in ("dict", "list"):
            example = str(one[0][column])[:80]
            raise TaskError(f"The labels in {column!r} of {key} are no classes: each is several values, as {example}.")
        found[key] = set(one.unique(column))
    return found


def refuse_one_class(column: str, count: int, found: set[Any]) -> None:
    """With one class, models take the labels for numbers to predict."""
    if count < 2:
        raise TaskError(
            f"{column!r} of train_dataset has one label, {next(iter(found))!r}: there have to be two at least."
        )


def refuse_too_many(column: str, count: int, different: int) -> int:
    """`count`, unless so few of so many numbers are there that they must be something else, and fill the memory."""
    if count > _MANY_CLASSES and count > _MANY_CLASSES_UNSEEN * different:
        raise TaskError(
            f"{column!r} of train_dataset goes up to {count - 1:,}, with {different:,} labels that differ: classes are "
            "numbered from 0 without gaps. Give them as text to have them numbered."
        )
    return count


def classes_of(rows: dict[str, Any], column: str, found: set[Any], config: Any) -> tuple[dict[str, int] | None, int]:
    """The numbers of classes that have names, or None where the data has numbers; and how many classes there are.

    A model that has been trained for these classes has numbers for them. `found`: the labels of the training set.
    """
    names = same_class_names(rows, column)
    if names is not None and None not in found:
        if min(found, default=0) < 0:
            raise TaskError(f"{column!r} of train_dataset has the label {min(found)}: rows without a class.")
        return {name: number for number, name in enumerate(names)}, len(names)
    if None in found:
        raise TaskError(f"{column!r} is empty in some rows of train_dataset: leave these out.")
    if not found:
        raise TaskError(f"{column!r} of train_dataset holds no label at all.")
    if len(kinds := {type(one).__name__ for one in found}) > 1:
        raise TaskError(f"The labels in {column!r} are of several kinds, {' and '.join(sorted(kinds))}: keep to one.")
    if not all(isinstance(label, (int, str)) for label in found):
        example = next((one for one in found if not isinstance(one, (int, str))), next(iter(found), None))
        raise TaskError(f"The labels in {column!r} are no classes but {type(example).__name__}, such as {example!r}.")
    if isinstance(next(iter(found)), int):
        if min(found) < 0:
            raise TaskError(f"{column!r} of train_dataset has the label {min(found)}: classes are numbered from 0.")
        return None, refuse_too_many(column, max(found) + 1, len(found))
    known: dict[str, int] = config.label2id or {}
    numbers = known if known.keys() >= found else {label: number for number, label in enumerate(sorted(found))}
    return dict(numbers), len(numbers)


def named_classes(named: dict[str, int] | None, count: int) -> dict[str, Any]:
    """What the model's configuration gets of them."""
    if named is None:
        return {"num_labels": count}
    return {"label2id": dict(named), "id2label": {number: label for label, number in named.items()}}


def refuse_unknown_classes(rows: dict[str, Any], labels: dict[str, set[Any]], known: Iterable[Any]) -> None:
    """Labels of another set that the training set lacks, told by their names. `labels`: those of each set."""
    there = set(known)
    for key, found in labels.items():
        if key == "train_dataset":
            continue
        if None in found:
            raise TaskError(f"{key} has rows without a label: leave these out.")
        unknown = sorted(str(label) for label in found if label not in there)
        if unknown:
            raise TaskError(f"{key} has labels that train_dataset has not: {', '.join(unknown)}.")
