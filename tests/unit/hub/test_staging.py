"""What a push sends stays as it was, whatever becomes of the originals, and takes no room."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kunren.hub.staging import Staging, clean_leftovers


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint-3"
    names = ["model.safetensors", "config.json", "tokenizer.json", "code.py", "adapter/adapter_model.safetensors"]
    names += ["optimizer.pt", "rng_state_1.pth", "manifest.json", "trainer_state.json", "README.md"]
    for name in [*names, "pytorch_model_fsdp_0/.metadata", "global_step3/part.pt", "latest"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("of the checkpoint")
    return folder


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_is_linked_and_outlives_its_deletion(checkpoint: Path, tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    staging.take_model(checkpoint)
    staging.take_checkpoint(checkpoint)
    everything = names_in(checkpoint)
    weights = staging.folder / "model" / "model.safetensors"
    assert os.path.samefile(weights, checkpoint / "model.safetensors")
    shutil.rmtree(checkpoint)
    assert names_in(staging.folder / "checkpoint") == everything
    assert weights.read_text() == "of the checkpoint"
    assert names_in(staging.folder / "model") == {
        "model.safetensors", "config.json", "tokenizer.json", "code.py", "adapter/adapter_model.safetensors",
    }  # fmt: skip
    staging.remove()
    assert not staging.folder.exists()


def test_the_output_folder_is_copied_and_the_checkpoints_model_counts(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("of an earlier save")
    (tmp_path / "metrics.jsonl").write_text("one\n")
    staging = Staging(tmp_path)
    staging.take_output(tmp_path, is_awaited=True)
    staging.take_model(checkpoint)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("two\n")
    taken = staging.folder / "model"
    assert (taken / "metrics.jsonl").read_text() == "one\n"
    assert (taken / "model.safetensors").read_text() == "of the checkpoint"
    assert (tmp_path / "model.safetensors").read_text() == "of an earlier save"
    staging.remove()


def test_where_there_are_no_links_files_are_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr("kunren.hub.staging.os.link", refuse)
    staging = Staging(tmp_path)
    staging.take_checkpoint(checkpoint)
    copy = staging.folder / "checkpoint" / "model.safetensors"
    assert copy.read_text() == "of the checkpoint" and not os.path.samefile(copy, checkpoint / "model.safetensors")
    staging.remove()


def test_only_what_the_dead_left_is_cleaned_away(tmp_path: Path) -> None:
    alive, mine = Staging(tmp_path), tmp_path / ".hub-push-notes"
    dead = tmp_path / ".hub-push-0123abcd"
    dead.mkdir()
    mine.mkdir()
    clean_leftovers(tmp_path)
    assert alive.folder.is_dir() and mine.is_dir() and not dead.exists()
    alive.remove()
    clean_leftovers(tmp_path / "nowhere")
