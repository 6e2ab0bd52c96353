"""Whether an evaluation measures what has been learned by heart: rows of the evaluation set that the training has."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kunren.cli.check_findings import Findings
from kunren.cli.check_rows import READ_SECONDS, spread
from kunren.data.columns import is_column_dataset
from kunren.data.loaders import has_length

if TYPE_CHECKING:
    from kunren.hf.tasks.preparation import PreparedRun
    from kunren.trainer import Trainer

_LOOKED_AT = 2000  # rows of each evaluation set
_FEW = 0.2  # a share that short texts may have in common by chance
_AT_ONCE = 1000


def check_shared_rows(trainer: Trainer, run: PreparedRun | None, findings: Findings) -> None:
    """A warning for each evaluation set that has many rows of the training set; of data without columns nothing."""
    given: dict[str, Any] = dict(run.rows) if run is not None else {}
    train = given.get("train_dataset", trainer.train_dataset)
    evaluated = given.get("eval_dataset", trainer.eval_dataset)
    if not _is_table(train):
        return
    sets = {f"eval_dataset {name!r}": one for name, one in evaluated.items()} if isinstance(evaluated, Mapping) else {}
    for key, one in (sets or {"eval_dataset": evaluated}).items():
        if _is_table(one):
            _tell_shared(key, train, one, findings)


def _is_table(rows: Any) -> bool:
    return is_column_dataset(rows) and has_length(rows)


def _tell_shared(key: str, train: Any, evaluated: Any, findings: Findings) -> None:
    columns = [name for name in train.column_names if name in evaluated.column_names]
    if len(columns) < min(len(train.column_names), len(evaluated.column_names)) or not len(evaluated):
        return  # what they have in common may be the label alone
    some = evaluated.select(spread(len(evaluated), _LOOKED_AT))
    wanted, begun = list(_digests(some, columns)), time.monotonic()
    missing = set(wanted)
    for digest in _digests(train, columns):
        missing.discard(digest)
        if not missing or time.monotonic() - begun > READ_SECONDS:
            break
    count = sum(digest not in missing for digest in wanted)
    if count > _FEW * len(wanted):
        findings.warn("shared rows", "shared rows", key=key, count=count, seen=len(wanted))


def _digests(rows: Any, columns: list[str]) -> Iterator[int]:
    """A number for each row, by the values of its columns as they are stored: no picture is decoded."""
    for table in rows.with_format("arrow").select_columns(columns).iter(batch_size=_AT_ONCE):
        for row in table.to_pylist():
            yield hash(repr([row[name] for name in columns]))
