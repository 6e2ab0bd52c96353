"""Bytes that change after a checkpoint was published: every file of one, flipped, cut off and removed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from crash.training import build
from kunren.checkpoint.layout import newest_whole

SETTINGS = {"max_steps": 6, "save_steps": 3, "eval_strategy": "no", "metric_for_best_model": None}
FILES = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "training_args.bin",
    "cursor.json",
    "manifest.json",
)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])  # the last byte of a JSON file may be spared


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES: dict[str, Callable[[Path], None]] = {"flip": flip, "cut off": cut_off, "empty": empty, "remove": Path.unlink}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    build(folder, **SETTINGS).train()
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_every_file_is_damaged_below(run: Path) -> None:
    assert {path.name for path in (run / "checkpoint-6").iterdir()} == set(FILES)


CASES = [(name, damage) for name in FILES for damage in DAMAGES]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_damaged_file_is_found(name: str, damage: str, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    DAMAGES[damage](run / "checkpoint-6" / name)
    with caplog.at_level(logging.WARNING):
        assert newest_whole(run) == run / "checkpoint-3"
    names = (
        FILES if name == "manifest.json" and damage == "flip" else (name,)
    )  # a digest that is wrong accuses its file
    told = [record.getMessage() for record in caplog.records]
    assert any("checkpoint-6" in line and named(names, line) for line in told), told
    with pytest.raises(ValueError, match=r"cannot be resumed from") as refused:
        build(run, **SETTINGS).train(resume_from_checkpoint=str(run / "checkpoint-6"))
    assert named(names, str(refused.value))
    assert "checkpoint-3" in str(refused.value), "the whole one beside it is named"


def named(names: Iterable[str], text: str) -> bool:
    return any(name in text for name in names)


def test_every_checkpoint_is_damaged(run: Path) -> None:
    for number in (3, 6):
        flip(run / f"checkpoint-{number}" / "optimizer.pt")
    with pytest.raises(ValueError, match=r"no checkpoint that is whole.*checkpoint-3.*checkpoint-6"):
        build(run, **SETTINGS).train(resume_from_checkpoint=True)


def test_walks_back_and_ends_as_undisturbed(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    undisturbed = build(run.parent / "undisturbed", **SETTINGS)
    undisturbed.train()
    flip(run / "checkpoint-6" / "model.safetensors")
    trainer = build(run, **SETTINGS)
    with caplog.at_level(logging.WARNING):
        trainer.train(resume_from_checkpoint=True)
    assert "checkpoint-6 is damaged and was passed over" in caplog.text
    mine, expected = trainer.model.state_dict(), undisturbed.model.state_dict()
    assert all(mine[name].equal(expected[name]) for name in expected)
    assert newest_whole(run) == run / "checkpoint-6", "the damaged one was replaced by a whole one"
