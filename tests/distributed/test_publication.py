"""One checkpoint saved by two real processes over gloo: whole with both their parts, or not at all."""

from __future__ import annotations

import datetime
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from kunren.checkpoint.saver import CheckpointSaver
from kunren.checkpoint.store import verify

pytestmark = pytest.mark.distributed


class Pair:
    """What a checkpoint needs of a backend, by torch's own collectives."""

    def __init__(self, rank: int) -> None:
        self.process_index, self.world_size = rank, 2

    def sum(self, value: torch.Tensor, /) -> torch.Tensor:
        torch.distributed.all_reduce(value)
        return value

    def gather_objects(self, value: Any, /) -> list[Any]:
        found = [None, None]
        torch.distributed.all_gather_object(found, value)
        return found

    def beside(self) -> Pair:
        return self


def save(rank: int, meeting: Path, folder: Path, fate: str, answers: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", f"file://{meeting}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=20)
    )

    def write(into: Path) -> None:
        if rank == 1 and fate == "fails":
            raise OSError(28, "No space left on device")
        (into / f"part-{rank}").write_text(f"of {rank}")
        if rank == 1 and fate == "dies":
            os._exit(9)

    told: list[str] = []
    try:
        saver = CheckpointSaver(True, Pair(rank))
        saver.save(folder / "checkpoint-3", write, lambda: told.append("published"), lambda: told.append("failed"))
        saver.wait()
    except Exception as error:
        told.append(type(error).__name__)
    answers.put((rank, told))
    if fate != "dies":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def run(tmp_path: Path, fate: str) -> tuple[dict[int, list[str]], list[int | None]]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    arguments = (tmp_path / "meeting", tmp_path / "run", fate, answers)
    ranks = [context.Process(target=save, args=(rank, *arguments)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert not process.is_alive(), "a process hangs"
    told = {}
    while not answers.empty():
        rank, said = answers.get()
        told[rank] = said
    return told, [process.exitcode for process in ranks]


def test_both_parts_are_in_it(tmp_path: Path) -> None:
    told, codes = run(tmp_path, "lives")
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert codes == [0, 0]
    assert told == {0: ["published"], 1: ["published"]}
    assert {path.name for path in checkpoint.iterdir()} == {"part-0", "part-1", "manifest.json"}
    assert verify(checkpoint, digests=True) == []


def test_one_that_fails_fails_for_both(tmp_path: Path) -> None:
    told, codes = run(tmp_path, "fails")
    assert codes == [0, 0]
    assert told == {0: ["failed", "OSError"], 1: ["failed", "OSError"]}
    assert list((tmp_path / "run").iterdir()) == []


def test_one_that_dies_leaves_no_checkpoint(tmp_path: Path) -> None:
    told, codes = run(tmp_path, "dies")
    assert codes == [0, 9]
    assert told[0][0] == "failed"
    assert not (tmp_path / "run" / "checkpoint-3").exists()
