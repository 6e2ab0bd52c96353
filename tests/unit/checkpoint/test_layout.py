"""Names on disk, and which checkpoint a run resumes from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from unit.checkpoint.publishing import publish

from kunren.base.state import TrainerState
from kunren.checkpoint.layout import (
    checkpoint_path,
    get_last_checkpoint,
    is_whole,
    list_checkpoints,
    newest_whole,
    problems,
    resolve,
    rng_state_name,
    step_of,
)
from kunren.checkpoint.parts import save_trainer_state


def fill(folder: Path) -> None:
    save_file({"w": torch.arange(100.0)}, folder / "model.safetensors")
    torch.save({"state": {}, "param_groups": []}, folder / "optimizer.pt")
    save_trainer_state(TrainerState(global_step=step_of(folder) or 0), folder)


def published(output_dir: Path, *steps: int) -> list[Path]:
    paths = [checkpoint_path(output_dir, step) for step in steps]
    for path in paths:
        publish(path, fill)
    return paths


def unlisted(output_dir: Path, step: int) -> Path:
    """A checkpoint as another tool writes it: without a manifest."""
    path = checkpoint_path(output_dir, step)
    path.mkdir(parents=True)
    fill(path)
    return path


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


def test_checkpoints_are_listed_by_step_not_by_name_or_time(tmp_path: Path) -> None:
    for step in (10, 9, 100, 2):
        checkpoint_path(tmp_path, step).mkdir()
    os.utime(tmp_path / "checkpoint-2")
    for name in ("checkpoint-", "checkpoint-3a", "my-checkpoint-4", ".checkpoint-5.saving-0a1b2c3d", "checkpoint-best"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-7").write_text("a file")
    assert [path.name for path in list_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (2, 9, 10, 100)]
    assert list_checkpoints(tmp_path / "missing") == []


def test_names() -> None:
    assert checkpoint_path("out", 12) == Path("out/checkpoint-12")
    assert step_of("out/checkpoint-12") == 12
    assert step_of("out/final") is None
    assert rng_state_name() == "rng_state.pth"
    assert rng_state_name(1, 2) == "rng_state_1.pth"


FILES = ("model.safetensors", "optimizer.pt", "trainer_state.json")


def damage(path: Path, how: str) -> None:
    if how == "truncated":
        os.truncate(path, path.stat().st_size - 10)
    elif how == "empty":
        os.truncate(path, 0)
    elif how == "missing":
        path.unlink()
    else:
        flip_a_byte(path)


@pytest.mark.parametrize(
    ("name", "how", "listed"),
    [(name, how, True) for name in FILES for how in ("truncated", "empty", "missing", "flipped")]
    + [("manifest.json", how, True) for how in ("truncated", "empty")]
    + [(name, how, False) for name in FILES for how in ("truncated", "empty")]
    + [(name, "missing", False) for name in ("model.safetensors", "trainer_state.json")],
)
def test_the_damaged_file_is_named_and_the_one_before_is_taken(
    tmp_path: Path, name: str, how: str, listed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (older,) = published(tmp_path, 2)
    newer = published(tmp_path, 4)[0] if listed else unlisted(tmp_path, 4)
    assert newest_whole(tmp_path) == newer
    damage(newer / name, how)
    assert newest_whole(tmp_path) == older
    assert "checkpoint-4 is damaged and was passed over" in caplog.text
    assert name in caplog.text
    assert resolve(True, tmp_path) == older
    with pytest.raises(ValueError, match="checkpoint-4 cannot be resumed from") as caught:
        resolve(str(newer), tmp_path)
    assert name in str(caught.value)
    assert str(older) in str(caught.value)


def test_a_checkpoint_may_have_no_optimizer_and_no_manifest(tmp_path: Path) -> None:
    path = unlisted(tmp_path, 4)
    (path / "optimizer.pt").unlink()
    assert newest_whole(tmp_path) == path


def test_a_flipped_byte_needs_the_digests(tmp_path: Path) -> None:
    (path,) = published(tmp_path, 2)
    flip_a_byte(path / "model.safetensors")
    assert is_whole(path)
    assert not is_whole(path, digests=True)
    assert newest_whole(tmp_path) is None


def test_walking_back_over_several(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    published(tmp_path, 2, 4, 6)
    (tmp_path / "checkpoint-6" / "optimizer.pt").unlink()
    (tmp_path / "checkpoint-9").mkdir()
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-4")
    assert "checkpoint-9 is damaged" in caplog.text
    assert "checkpoint-6 is damaged and was passed over: optimizer.pt is missing" in caplog.text
    assert "checkpoint-4" not in caplog.text
    assert get_last_checkpoint(tmp_path / "missing") is None


def test_nothing_to_resume(tmp_path: Path) -> None:
    assert resolve(None, tmp_path) is None
    assert resolve(False, tmp_path) is None
    with pytest.raises(ValueError, match="has no checkpoint that is whole: give the path of one") as caught:
        resolve(True, tmp_path)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "checkpoint-3").mkdir()
    with pytest.raises(ValueError, match=r"no checkpoint that is whole \(damaged: .*checkpoint-3\)"):
        resolve(True, tmp_path)


def test_a_path_means_that_one_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older, newer = published(tmp_path / "run", 2, 4)
    assert resolve(str(older), tmp_path / "elsewhere") == older
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/run/checkpoint-2", "out") == older
    for path, reason in (
        (tmp_path / "run" / "checkpoint-5", "it does not exist"),
        (tmp_path / "run", "it has no weights"),
        (newer / "model.safetensors", "it is not a folder"),
    ):
        with pytest.raises(ValueError, match=reason) as caught:
            resolve(path, tmp_path)
        assert str(path) in str(caught.value)
        if path.parent != newer:
            assert f"{older}, {newer}" in str(caught.value)
    with pytest.raises(ValueError, match="There is no whole checkpoint near it"):
        resolve(tmp_path / "nowhere" / "checkpoint-1", tmp_path)


def test_a_checkpoint_without_manifest(tmp_path: Path) -> None:
    path = unlisted(tmp_path, 3)
    assert is_whole(path)
    (path / "checkpoint-is-incomplete.txt").touch()
    assert "cut off" in problems(path)[0]
    (path / "checkpoint-is-incomplete.txt").unlink()
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    index = path / "model.safetensors.index.json"
    shards = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": shards}))
    assert problems(path) == ["model-00002-of-00002.safetensors, listed in model.safetensors.index.json, is missing"]
    shutil.copy(path / shards["w"], path / shards["v"])
    assert is_whole(path)
    (path / "trainer_state.json").write_text('{"epoch": ')
    assert "trainer_state.json cannot be read" in problems(path)[0]


def test_an_adapter_in_a_folder_of_its_name_is_weights(tmp_path: Path) -> None:
    path = unlisted(tmp_path, 3)
    (path / "mine").mkdir()
    (path / "model.safetensors").rename(path / "mine" / "adapter_model.safetensors")
    assert is_whole(path)


def test_published_without_a_state_is_no_checkpoint(tmp_path: Path) -> None:
    publish(tmp_path / "checkpoint-1", lambda folder: save_file({}, folder / "model.safetensors"))
    assert problems(tmp_path / "checkpoint-1") == ["trainer_state.json is missing"]
