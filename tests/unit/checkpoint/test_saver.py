"""A save in the background: the process waits for it, and what goes wrong in it is told once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent import futures
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from unit.checkpoint.publishing import Alone

from kunren.checkpoint import sink
from kunren.checkpoint.saver import CheckpointSaver
from kunren.checkpoint.store import verify

SAVE_AND_END = """
import sys, time
from pathlib import Path
import torch
from kunren.checkpoint import sink
from kunren.checkpoint.formats.direct_file import DirectFile
from kunren.checkpoint.saver import CheckpointSaver
from unit.checkpoint.publishing import Alone

write = DirectFile._write
DirectFile._write = lambda file, view: (time.sleep(0.3), write(file, view))

def fill(folder):
    sink.current().put_tensors({"w": torch.ones(3)}, folder / "model.safetensors", None)

CheckpointSaver(True, Alone()).save(Path(sys.argv[1]), fill, lambda: print("published", flush=True), lambda: None)
print("at the end", flush=True)
"""


def put(folder: Path) -> None:
    sink.current().put_tensors({"w": torch.ones(3)}, folder / "model.safetensors", None)


def test_a_script_that_ends_waits_for_its_last_checkpoint(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", SAVE_AND_END, str(tmp_path / "checkpoint-1")]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout.split("\n")[:2] == ["at the end", "published"]
    assert verify(tmp_path / "checkpoint-1", digests=True) == []


@pytest.mark.parametrize("asynchronous", [True, False])
def test_the_copy_is_of_the_moment_of_the_save(tmp_path: Path, asynchronous: bool) -> None:
    saver, told, weight = CheckpointSaver(asynchronous, Alone()), list[str](), torch.ones(1000)
    for step in (1, 2):
        weight.fill_(step)
        saver.save(
            tmp_path / f"checkpoint-{step}",
            lambda folder: sink.current().put_tensors({"w": weight}, folder / "model.safetensors", None),
            lambda: told.append("published"),
            lambda: told.append("failed"),
        )
        weight.fill_(-1)
    saver.wait()
    assert told == ["published"] * 2
    for step in (1, 2):
        assert (load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")["w"] == step).all()


def test_an_error_that_is_not_the_disks_is_raised_by_the_next_wait_once(tmp_path: Path) -> None:
    saver, told = CheckpointSaver(True, Alone()), list[str]()

    def write(folder: Path) -> None:
        sink.current().put_tensors({"w": torch.zeros(2, dtype=torch.complex128)}, folder / "w.safetensors", None)

    saver.save(tmp_path / "checkpoint-1", write, lambda: told.append("published"), lambda: told.append("failed"))
    with pytest.raises(ValueError, match=r"w has type torch.complex128, which a safetensors file cannot hold"):
        saver.wait()
    saver.wait()
    assert told == ["failed"]
    assert os.listdir(tmp_path) == []


def test_a_save_whose_wait_was_interrupted_is_waited_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next save would else copy into the memory that is still being written."""
    saver, told, go_on = CheckpointSaver(True, Alone()), list[str](), threading.Event()

    def published() -> None:
        go_on.wait(10)
        told.append("published")

    def interrupted(thread: object) -> None:
        raise KeyboardInterrupt

    saver.save(tmp_path / "checkpoint-1", put, published, lambda: told.append("failed"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(futures.ThreadPoolExecutor, "shutdown", interrupted)
        saver.wait()
    go_on.set()
    saver.wait()
    assert told == ["published"]


def test_what_is_gathered_into_the_memory_of_the_save_is_not_copied_again(tmp_path: Path) -> None:
    saver, filled = CheckpointSaver(True, Alone()), list[torch.Tensor]()

    def write(folder: Path) -> None:
        tensor = sink.current().memory_for(torch.Size([3, 2]), torch.bfloat16)
        filled.append(tensor.copy_(torch.arange(6).reshape(3, 2)))
        sink.current().put_value(
            {"w": tensor, "number": sink.current().memory_for(torch.Size([]), torch.int64).fill_(5)}, folder / "w.pt"
        )
        tensor[0, 0] = 9  # it is the one that is written

    saver.save(tmp_path / "checkpoint-1", write, lambda: None, lambda: None)
    saver.wait()
    found = torch.load(tmp_path / "checkpoint-1" / "w.pt", weights_only=True)
    assert found["number"] == 5
    assert found["w"].tolist() == [[9, 1], [2, 3], [4, 5]]
