"""Several processes save while they train on: what is on disk is of the moment of the save, whole, or not there."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Noting, Rows, Tagger, arguments
from kunren import Trainer, TrainerCallback
from kunren.checkpoint.formats.direct_file import DirectFile
from kunren.checkpoint.layout import list_checkpoints, newest_whole, problems, step_of
from kunren.checkpoint.store import clean_leftovers

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

ENGINES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp2": {"fsdp": True, "fsdp_config": {"version": 2, "min_num_params": 90}},
    "fsdp1": {"fsdp": True, "fsdp_config": {"version": 1, "min_num_params": 90}},
}
SAVING = {"save_strategy": "steps", "save_steps": 4, "max_steps": 10, "optim": "adamw_torch"}


class Pacing(TrainerCallback):
    """Steps that take their time, and what was in the folder at the end of each."""

    def __init__(self, seconds: float = 0.01) -> None:
        self.seconds = seconds
        self.seen: list[tuple[int, list[str]]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(self.seconds)
        names = sorted(path.name.split(".saving")[0] for path in Path(args.output_dir).glob("*checkpoint-*"))
        self.seen.append((state.global_step, names))


def train(folder: Path, engine: str, callbacks: Any = (), **options: Any) -> dict[str, Any]:
    resume, noting = options.pop("resume", None), Noting()
    options = SAVING | ENGINES[engine] | options
    trainer = Trainer(Tagger(), arguments(folder, **options), train_dataset=Rows(90), callbacks=[noting, *callbacks])
    trainer.train(resume_from_checkpoint=resume)
    return {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "step": trainer.state.global_step,
        "saved": list(trainer._saved_steps),
    }


def slow_disk(seconds: float) -> None:
    """Let each write of a large file take a while."""
    write = DirectFile._write

    def slowly(file: DirectFile, view: memoryview) -> None:
        time.sleep(seconds)
        write(file, view)

    DirectFile._write = slowly  # type: ignore[method-assign]  # in a process that ends with the test


def while_saving(folder: Path, engine: str) -> Any:
    slow_disk(0.25)
    pacing = Pacing(0.04)
    found = train(folder, engine, [pacing])
    return found, pacing.seen


def resumed(folder: Path, engine: str, checkpoint: Path) -> Any:
    return train(folder, engine, resume=str(checkpoint))


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_go_on_while_a_save_is_written(tmp_path: Path, engine: str) -> None:
    """The resumed run is the undisturbed one to the bit: no step after the save is in what was saved."""
    answers = run_ranks(while_saving, tmp_path / "run", engine)
    for _, seen in answers:
        during = [step for step, names in seen if ".checkpoint-4" in names]
        assert len(during) >= 2 and min(during) == 5, seen
    assert [path.name for path in list_checkpoints(tmp_path / "run")] == [
        "checkpoint-4",
        "checkpoint-8",
        "checkpoint-10",
    ]
    assert all(problems(path, digests=True) == [] for path in list_checkpoints(tmp_path / "run"))
    again = run_ranks(resumed, tmp_path / "again", engine, tmp_path / "run" / "checkpoint-4")
    for found, (undisturbed, _) in zip(again, answers, strict=True):
        assert found["losses"] == undisturbed["losses"][-len(found["losses"]) :]


def failing(folder: Path, engine: str, of_rank: int) -> Any:
    write, rank = DirectFile._write, torch.distributed.get_rank if torch.distributed.is_initialized() else None
    assert rank is None

    def full(file: DirectFile, view: memoryview) -> None:
        if ".checkpoint-4." in str(file.path) and torch.distributed.get_rank() == of_rank:
            raise OSError(28, "No space left on device")
        write(file, view)

    DirectFile._write = full  # type: ignore[method-assign]
    return train(folder, engine)


@pytest.mark.parametrize(("engine", "of_rank"), [("ddp", 0), ("fsdp2", 0), ("fsdp2", 1)])
def test_a_process_that_cannot_write_leaves_no_checkpoint_and_the_run_goes_on(
    tmp_path: Path, engine: str, of_rank: int
) -> None:
    for found in run_ranks(failing, tmp_path, engine, of_rank):
        assert found["step"] == 10
        assert found["saved"] == [8, 10]
    assert sorted(path.name for path in tmp_path.glob("*checkpoint-*")) == ["checkpoint-10", "checkpoint-8"]


class SignalInSave(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 5 and torch.distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def stopped(folder: Path, engine: str) -> Any:
    slow_disk(0.2)
    return train(folder, engine, [SignalInSave()])


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_sigterm_to_one_while_a_save_is_written(tmp_path: Path, engine: str) -> None:
    first, second = run_ranks(stopped, tmp_path, engine)
    assert first["step"] == second["step"] < 10
    saved = [path.name for path in list_checkpoints(tmp_path)]
    assert saved == ["checkpoint-4", f"checkpoint-{first['step']}"]
    assert all(problems(path, digests=True) == [] for path in list_checkpoints(tmp_path))
    assert not list(tmp_path.glob(".checkpoint-*"))


def killed(folder: Path, engine: str, of_rank: int, after: float) -> Any:
    """Kill -9 of one process, a moment after the save of step 8 has begun."""

    def kill() -> None:
        while not list(folder.glob(".checkpoint-8.saving-*")):
            time.sleep(0.001)
        time.sleep(after)
        os.kill(os.getpid(), signal.SIGKILL)

    if int(os.environ["RANK"]) == of_rank:
        threading.Thread(target=kill, daemon=True).start()
    slow_disk(0.03)
    return train(folder, engine, [Pacing(0.05)])


def moments(longest: float, number: int) -> list[float]:
    return [random.SystemRandom().uniform(0, longest) for _ in range(number)]


@pytest.mark.parametrize("of_rank", [0, 1])
@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_a_killed_process_leaves_whole_checkpoints_only(tmp_path: Path, engine: str, of_rank: int) -> None:
    for number, after in enumerate(moments(0.15, 2)):
        folder = tmp_path / str(number)
        answers = ask_ranks(killed, folder, engine, of_rank, after, timeout=30)
        assert answers[of_rank].code == -signal.SIGKILL
        other = answers[1 - of_rank]
        assert other.error is not None and "hangs" not in other.error
        assert all(problems(path, digests=True) == [] for path in list_checkpoints(folder))
        clean_leftovers(folder)
        assert not list(folder.glob(".checkpoint-*"))
        newest = newest_whole(folder)
        # The first process of copies saves what it has when another one is gone.
        assert newest is not None and (step_of(newest) or 0) >= 4
        assert [found["step"] for found in run_ranks(resumed, folder, engine, newest)] == [10, 10]
