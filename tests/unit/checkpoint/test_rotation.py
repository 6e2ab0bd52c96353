"""The newest and the best always stay; otherwise never more than the limit, and the oldest go first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.checkpoint import rotation
from kunren.checkpoint.layout import checkpoint_path, list_checkpoints, step_of
from kunren.checkpoint.rotation import rotate, to_delete


def make(output_dir: Path, *steps: int) -> None:
    for step in steps:
        checkpoint_path(output_dir, step).mkdir(parents=True)
        (checkpoint_path(output_dir, step) / "file").write_text("x")


def steps_in(output_dir: Path) -> list[int | None]:
    return [step_of(path) for path in list_checkpoints(output_dir)]


@given(
    steps=st.sets(st.integers(1, 60), min_size=1, max_size=8),
    limit=st.one_of(st.none(), st.integers(0, 9)),
    protected=st.sets(st.integers(1, 60), max_size=4),
)
def test_the_rule(steps: set[int], limit: int | None, protected: set[int]) -> None:
    checkpoints = [checkpoint_path("out", step) for step in sorted(steps)]
    gone = to_delete(checkpoints, limit, [checkpoint_path("out", step) for step in protected], protected_count=True)
    left = [path for path in checkpoints if path not in gone]
    must_stay = {checkpoints[-1], *(checkpoint_path("out", step) for step in protected & steps)}
    assert must_stay <= set(left)
    if not limit:
        assert gone == []
    else:
        assert len(left) == min(len(checkpoints), max(limit, len(must_stay)))
        oldest_free_left = min((step_of(path) or 0 for path in left if path not in must_stay), default=10**9)
        assert all((step_of(path) or 0) < oldest_free_left for path in gone)


@given(
    steps=st.sets(st.integers(1, 60), min_size=1, max_size=8),
    limit=st.integers(1, 9),
    protected=st.sets(st.integers(1, 60), max_size=4),
)
def test_the_rule_where_the_protected_come_on_top(steps: set[int], limit: int, protected: set[int]) -> None:
    checkpoints = [checkpoint_path("out", step) for step in sorted(steps)]
    kept = [checkpoint_path("out", step) for step in protected]
    gone = to_delete(checkpoints, limit, kept, protected_count=False)
    assert gone == [path for path in checkpoints[:-limit] if path not in kept]


def test_files_times_do_not_matter(tmp_path: Path) -> None:
    make(tmp_path, 9, 10, 100)
    os.utime(tmp_path / "checkpoint-100", (0, 0))
    assert [path.name for path in rotate(tmp_path, 2)] == ["checkpoint-9"]
    assert steps_in(tmp_path) == [10, 100]
    assert len(os.listdir(tmp_path)) == 2


def test_limit_one_keeps_the_best_and_the_newest(tmp_path: Path) -> None:
    make(tmp_path, 2, 4, 6, 8)
    rotate(tmp_path, 1, [tmp_path / "checkpoint-4"])
    assert steps_in(tmp_path) == [4, 8]


def test_a_relative_and_a_moved_path_protect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "run", 2, 4, 6)
    monkeypatch.chdir(tmp_path)
    rotate(tmp_path / "run", 1, ["run/checkpoint-2", "/before/the/move/checkpoint-4"])
    assert steps_in(tmp_path / "run") == [2, 4, 6]
    make(tmp_path / "other", 2)
    rotate(tmp_path / "run", 1, ["other/checkpoint-2"])
    assert steps_in(tmp_path / "run") == [6]


def test_another_runs_later_checkpoints_are_left_alone(tmp_path: Path) -> None:
    make(tmp_path, 1, 2, 3, 500, 1000)
    rotate(tmp_path, 1, up_to_step=3)
    assert steps_in(tmp_path) == [3, 500, 1000]


def test_other_folders_are_not_touched(tmp_path: Path) -> None:
    make(tmp_path, 1, 2)
    for name in ("checkpoint-best", "final", "checkpoint-1-copy"):
        (tmp_path / name).mkdir()
    rotate(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-1-copy", "checkpoint-2", "checkpoint-best", "final"]


def test_what_cannot_be_deleted_is_reported_and_the_rest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make(tmp_path, 1, 2, 3)
    discard = rotation.discard

    def refuse_one(path: Path) -> None:
        if path.name == "checkpoint-1":
            raise PermissionError(13, "Permission denied")
        discard(path)

    monkeypatch.setattr(rotation, "discard", refuse_one)
    assert rotate(tmp_path, 1) == [tmp_path / "checkpoint-2"]
    assert steps_in(tmp_path) == [1, 3]
    assert "checkpoint-1 cannot be deleted" in caplog.text
    assert "Permission denied" in caplog.text
