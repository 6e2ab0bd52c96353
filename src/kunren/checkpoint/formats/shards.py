"""Weights in several files, and an index of JSON that tells which name is in which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from kunren.base.strict_json import read_json


def read(index: Path, read_file: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """The tensors of all files that the index lists; FileNotFoundError for one that is not there."""
    state: dict[str, Any] = {}
    for shard in sorted(set(read_json(index)["weight_map"].values())):
        if Path(shard).name != shard:
            raise ValueError(f"{index} lists {shard!r}, which is not the name of a file beside it.")
        path = index.with_name(shard)
        if not path.is_file():
            raise FileNotFoundError(f"{path}, listed in {index.name}, is missing.")
        state.update(read_file(path))
    return state


def missing(index: Path) -> list[str]:
    """What is wrong with the index or the files beside it, a sentence each."""
    try:
        shards = sorted(set(read_json(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{index.name} cannot be read ({error})"]
    return [f"{shard}, listed in {index.name}, is missing" for shard in shards if not (index.parent / shard).is_file()]
