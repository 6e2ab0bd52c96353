"""JSON that is JSON: whatever a metric is, it can be written, and any parser reads it."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.arguments.choices import SchedulerType
from kunren.base.strict_json import dumps, read_json, to_jsonable, write_json

Colour = Enum("Colour", {"RED": 1})


class Strange:
    def __repr__(self) -> str:
        return "<strange>"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (float("nan"), None),
        (float("inf"), None),
        (-float("inf"), None),
        (numpy.float32(0.5), 0.5),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.float64("nan"), None),
        (numpy.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (numpy.array(1.5), 1.5),
        (torch.tensor([1.0, float("nan")], requires_grad=True), [1.0, None]),
        (torch.tensor(2, dtype=torch.int8), 2),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        ({1: (1, 2), "a": {3}}, {"1": [1, 2], "a": [3]}),
        (SchedulerType.COSINE, "cosine"),
        (Colour.RED, 1),
        (Path("a/b"), repr(Path("a/b"))),
        (Strange(), "<strange>"),
        ([Strange(), numpy.nan], ["<strange>", None]),
    ],
)
def test_value(value: Any, expected: Any) -> None:
    got = to_jsonable(value)
    assert got == expected
    assert type(got) is type(expected)
    assert json.loads(dumps(value)) == expected


def not_a_number(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values)
def test_everything_written_is_strict_json(value: Any) -> None:
    text = dumps(value)
    back = json.loads(text, parse_constant=not_a_number)
    assert back == to_jsonable(value)
    assert to_jsonable(back) == back


def test_file(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"b": float("nan"), "a": "訓練"})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert text == '{\n  "a": "訓練",\n  "b": null\n}\n'
    assert read_json(tmp_path / "x.json") == {"a": "訓練", "b": None}
