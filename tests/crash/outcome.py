"""What a run has left: its result, its checkpoints, and whether two results are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from crash.training import RESULT_NAME
from kunren.checkpoint.layout import list_checkpoints, problems

Outcome = dict[str, Any]


def read_result(folder: Path) -> Outcome:
    outcome: Outcome = torch.load(result_path(folder), weights_only=True)
    return outcome


def result_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{RESULT_NAME}")


def assert_equal(found: Outcome, expected: Outcome) -> None:
    """Bit for bit: weights, moments, schedule, random numbers, every logged number."""
    assert found.keys() == expected.keys()
    for name in expected:
        assert_same(found[name], expected[name], name)


def assert_same(found: Any, expected: Any, where: str) -> None:
    assert type(found) is type(expected), where
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected), where
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for name in expected:
            assert_same(found[name], expected[name], f"{where}: {name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}: {number}")
    else:
        assert found == expected, where


def assert_all_whole(folder: Path) -> list[str]:
    """Every folder with the name of a checkpoint is one, to the last byte; returns the names, oldest first."""
    checkpoints = list_checkpoints(folder)
    damage = {checkpoint.name: found for checkpoint in checkpoints if (found := problems(checkpoint, digests=True))}
    assert not damage
    return [checkpoint.name for checkpoint in checkpoints]


def hidden(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")} if folder.is_dir() else set()
