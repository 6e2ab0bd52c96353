"""Columns: which of them the model takes, and dropping the others before a collator has to batch them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from kunren.model.signature import Signature

logger = logging.getLogger(__name__)

_ALWAYS_KEPT = ("label", "label_ids")


def signature_columns(signature: Signature, label_names: Sequence[str]) -> list[str] | None:
    """The columns worth keeping, or None when any column may be an input."""
    if signature.open_ended:
        return None
    return list(dict.fromkeys([*signature.names, *_ALWAYS_KEPT, *label_names]))


def is_column_dataset(dataset: Any) -> bool:
    """Whether `dataset` is a `datasets.Dataset` or `IterableDataset`, told without importing the package."""
    return any(kind.__module__.startswith("datasets.") for kind in type(dataset).__mro__)


def drop_unused(dataset: Any, kept: Sequence[str] | None, description: str, model_name: str) -> Any:
    """A `datasets.Dataset` without the columns that the model does not take; what is dropped is named in the log.

    ValueError when nothing that the model takes would remain.
    """
    names = getattr(dataset, "column_names", None)
    if kept is None or not names:
        return dataset
    ignored = sorted(set(names) - set(kept))
    if len(ignored) == len(names):
        raise ValueError(
            f"None of the columns of the {description} set ({', '.join(names)}) is an argument of {model_name}.forward "
            f"({', '.join(kept)}): rename the columns, or set remove_unused_columns=False if a collator makes inputs."
        )
    if not ignored:
        return dataset
    logger.info(
        "Columns of the %s set that %s.forward does not take are not used: %s. Set remove_unused_columns=False to keep "
        "them for a data collator.",
        description,
        model_name,
        ", ".join(ignored),
    )
    return dataset.remove_columns(ignored)


@final
class ColumnFilter:
    """A collator that first takes away what the model does not take, for data sets that are lists of dicts."""

    def __init__(self, collator: Callable[[list[Any]], Any], kept: Sequence[str], description: str) -> None:
        self.collator = collator
        self.kept = frozenset(kept)
        self.description = description
        self._reported = False

    def __call__(self, features: list[Any]) -> Any:
        kept = self.kept
        for row in features:  # rows of one list need not have the same keys
            if (type(row) is dict or isinstance(row, Mapping)) and not row.keys() <= kept:
                features = [self._filtered(one) for one in features]
                self._check(row, self._filtered(row))
                break
        return self.collator(features)

    def _filtered(self, row: Any) -> Any:
        if not isinstance(row, Mapping):
            return row
        return {key: value for key, value in row.items() if key in self.kept}

    def _check(self, row: Mapping[str, Any], kept_row: Mapping[str, Any]) -> None:
        if not kept_row:
            raise ValueError(
                f"None of the keys of the {self.description} rows ({', '.join(map(str, row))}) is an argument of the "
                f"model's forward ({', '.join(sorted(self.kept))}): rename them, or set remove_unused_columns=False."
            )
        if not self._reported:
            self._reported = True
            ignored = ", ".join(str(key) for key in row if key not in self.kept)
            logger.info("Keys of the %s rows that the model does not take are not used: %s", self.description, ignored)
