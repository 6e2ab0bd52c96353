"""CodeCarbon's table, read back."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("codecarbon")
pytestmark = [pytest.mark.trackers, pytest.mark.filterwarnings("ignore")]


def test_what_is_written(trained: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODECARBON_COUNTRY_ISO_CODE", "JPN")
    trained("codecarbon")
    with open(tmp_path / "out" / "emissions.csv", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    assert (row["project_name"], row["country_iso_code"]) == ("first", "JPN") and float(row["duration"]) > 0
