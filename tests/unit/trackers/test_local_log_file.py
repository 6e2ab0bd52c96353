"""The file under metrics.jsonl: each line is there at once, and a file that was deleted is begun again."""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.trackers import local_log
from kunren.trackers.local_log import _line, _Lines


def test_each_line_is_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "out" / "lines"
    lines = _Lines(path)
    for number in range(3):
        lines.append(f"line {number} 訓練")
        assert path.read_text(encoding="utf-8").splitlines() == [f"line {past} 訓練" for past in range(number + 1)]
    lines.append("\ud800")
    assert path.read_bytes().endswith(b"\n\\ud800\n")


def test_a_file_that_was_deleted_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "out" / "lines"
    lines = _Lines(path)
    lines.append("one")
    shutil.rmtree(tmp_path / "out")
    lines.append("two")
    assert path.read_text() == "two\n"


def test_a_deletion_is_noticed_within_a_tenth_of_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(local_log.time, "monotonic", lambda: now)
    path = tmp_path / "lines"
    lines = _Lines(path)
    lines.append("one")
    lines.append("two")
    path.unlink()
    lines.append("goes with the file")
    now += 0.11
    lines.append("three")
    assert path.read_text() == "three\n"


def test_it_is_closed_with_its_owner(tmp_path: Path) -> None:
    lines = _Lines(tmp_path / "lines")
    lines.append("one")
    descriptor = lines._descriptor
    assert descriptor is not None
    lines.close()
    lines.append("two")
    descriptor = lines._descriptor
    assert descriptor is not None
    del lines
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_a_copy_has_a_file_of_its_own(tmp_path: Path) -> None:
    lines = _Lines(tmp_path / "lines")
    lines.append("one")
    other = copy.deepcopy(lines)
    other.append("two")
    del other
    lines.append("three")
    assert (tmp_path / "lines").read_text() == "one\ntwo\nthree\n"


def test_a_line_that_is_cut_off_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = _Lines(tmp_path / "lines")

    def cut(descriptor: int, data: Any) -> int:
        return len(data) - 1

    monkeypatch.setattr(os, "write", cut)
    with pytest.raises(OSError, match="the disk is full"):
        lines.append("one")


names = st.text(max_size=5) | st.sampled_from(["loss", 'a"b', "a\\b\n", "正解率", "\ud800"])
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
anything = numbers | st.booleans() | st.none() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)


@given(st.dictionaries(names, numbers, max_size=5) | st.dictionaries(names | st.integers(), anything, max_size=5))
def test_a_line_is_what_json_makes_of_it(entry: dict[Any, Any]) -> None:
    assert _line(entry) == json.dumps(entry, ensure_ascii=False, allow_nan=False)


def test_numbers_that_json_does_not_have_are_null() -> None:
    entry = {"loss": 1.0, "nan": math.nan, "inf": math.inf, "huge": 10**400, "numpy": numpy.float64(0.5)}
    assert _line(entry) == f'{{"loss": 1.0, "nan": null, "inf": null, "huge": {10**400}, "numpy": 0.5}}'
