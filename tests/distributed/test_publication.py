"""One checkpoint saved by two real processes over gloo: whole with both their parts, or not at all."""

from __future__ import annotations

import datetime
import logging
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import Rows, Tagger, arguments
from kunren import Trainer
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
    if fate == "dies":  # torch may abort a process that ends with a connection that is gone
        answers.close()
        answers.join_thread()
        os._exit(0)
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


def on_two_machines(folder: Path) -> str:
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with pytest.raises(ValueError, match="save_on_each_node=True") as refused:
        Trainer(Tagger(), arguments(folder, save_on_each_node=True), train_dataset=Rows(8))
    return str(refused.value)


def test_a_copy_on_each_machine_is_refused_with_the_reason(tmp_path: Path) -> None:
    for reason in run_ranks(on_two_machines, tmp_path):
        assert "a checkpoint is one folder" in reason


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def save_beside(disks: list[Path]) -> tuple[list[int], list[str]]:
    heard, folder = Heard(), disks[int(os.environ["RANK"])]
    logging.getLogger("kunren").addHandler(heard)
    trainer = Trainer(Tagger(), arguments(folder, save_strategy="steps", save_steps=4), train_dataset=Rows(50))
    trainer.train()
    return trainer._saved_steps, heard.messages


def test_disks_of_their_own_are_told(tmp_path: Path) -> None:
    """As of two machines without a common file system: nothing is saved, the run goes on, and the log says why."""
    for saved, messages in run_ranks(save_beside, [tmp_path / "one", tmp_path / "two"]):
        assert saved == []
        told = [message for message in messages if "could not be saved" in message]
        assert len(told) == 2
        assert all("process 1 does not see the folder that the first one has made" in message for message in told)
