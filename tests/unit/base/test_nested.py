"""Tensors inside dicts, lists and tuples: moving them, and finding the rows of a batch."""

from __future__ import annotations

from collections import UserDict, namedtuple
from typing import Any

import pytest
import torch

from kunren.base.nested import (
    batch_size_of,
    keep_batched,
    map_tensors,
    size_in_bytes,
    to_device,
    to_host,
)

Pair = namedtuple("Pair", ["left", "right"])


class Refusing(UserDict):
    """A mapping that cannot be built from another one."""

    def __init__(self) -> None:
        super().__init__()


def test_every_container_keeps_its_type() -> None:
    one = torch.ones(2)
    data = {"list": [one, "text", None], "tuple": (one, 3), "pair": Pair(one, one), "user": UserDict(x=one)}
    doubled = map_tensors(lambda tensor: tensor * 2, data)
    assert type(doubled) is dict
    assert doubled["list"][0].tolist() == [2, 2]
    assert doubled["list"][1:] == ["text", None]
    assert isinstance(doubled["tuple"], tuple)
    assert isinstance(doubled["pair"], Pair)
    assert doubled["pair"].right.tolist() == [2, 2]
    assert isinstance(doubled["user"], UserDict)
    assert one.tolist() == [1, 1]


def test_batch_encodings_stay_what_they_are() -> None:
    transformers = pytest.importorskip("transformers")
    batch = transformers.BatchEncoding({"input_ids": torch.ones(2, 3)})
    moved = to_device(batch, torch.device("meta"))
    assert isinstance(moved, transformers.BatchEncoding)
    assert moved["input_ids"].device.type == "meta"


def test_mapping_that_cannot_be_rebuilt_becomes_a_dict() -> None:
    data = Refusing()
    data["x"] = torch.ones(2)
    assert map_tensors(lambda tensor: tensor.sum().item(), data) == {"x": 2.0}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_on_the_host_every_type_has_a_numpy_counterpart(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1, 2]).to(dtype)
    if dtype.is_floating_point:
        tensor.requires_grad_()
    (moved,) = to_host([tensor])
    assert moved.numpy().tolist() == [1, 2]
    assert not moved.requires_grad
    assert moved.dtype == (torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (torch.ones(3, 2), 3),
        (torch.tensor(1.0), None),
        ({"scalar": torch.tensor(1.0), "x": torch.ones(4, 1)}, 4),
        ([None, (torch.ones(5),)], 5),
        ({"text": "abc", "number": 3}, None),
        ({}, None),
        (None, None),
    ],
)
def test_rows_of_a_batch(data: Any, expected: int | None) -> None:
    assert batch_size_of(data) == expected


def test_only_tensors_with_the_batch_dimension_are_kept() -> None:
    logits = torch.ones(3, 2)
    outputs = {
        "logits": logits,
        "none": None,
        "scalar": torch.tensor(1.0),
        "other": torch.ones(2, 3),
        "cache": object(),
        "layers": (torch.ones(3), torch.ones(1), None),
        "empty": {"scalar": torch.tensor(0)},  # people count places
    }
    kept = keep_batched(outputs, 3)
    assert list(kept) == ["logits", "layers", "empty"]
    assert kept["logits"] is logits
    assert len(kept["layers"]) == 1
    assert keep_batched({"scalar": torch.tensor(1.0), "cache": object()}, 3) is None
    assert keep_batched([None, torch.ones(2)], 3) is None
    assert keep_batched(None, 3) is None


def test_small_view_does_not_keep_the_whole() -> None:
    whole = torch.randn(4, 1000)
    (kept,) = to_host([whole[:, :1]])
    assert kept.untyped_storage().nbytes() == 16
    assert to_host(whole[:, :900]).untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_size_in_bytes() -> None:
    assert size_in_bytes({"a": torch.ones(2, 3), "b": [torch.ones(4, dtype=torch.int64), None]}) == 24 + 32
    assert size_in_bytes(None) == 0
