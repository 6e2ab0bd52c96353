"""`resume_from_checkpoint="auto"`, and a run whose processes are started again by the launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import kunren
from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import trained
from kunren.checkpoint import layout
from kunren.loop.guards.decide_once import decided_once

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = str(Path(__file__).with_name("launched.py"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2")
LAUNCH = ("-m", "kunren", "launch", "--processes", "2", "--max-restarts", "2")


def run(launcher: tuple[str, ...], folder: Path, fate: str) -> subprocess.CompletedProcess[str]:
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment["PYTHONPATH"] = str(Path(kunren.__file__).parents[1])
    command = [sys.executable, *launcher, SCRIPT, str(folder), fate]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def ended(folder: Path) -> tuple[int, list[torch.Tensor]]:
    step, weights = torch.load(folder / "end.pt")
    return step, list(weights.values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, list[torch.Tensor]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(LAUNCH, folder, "lives")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.glob("began-*")} == {"began-0-0-at-0", "began-1-0-at-0"}
    return ended(folder)


@pytest.mark.parametrize("launcher", [TORCHRUN, LAUNCH], ids=["torchrun", "kunren launch"])
def test_a_killed_process_is_started_again_and_the_run_goes_on(
    launcher: tuple[str, ...], tmp_path: Path, undisturbed: tuple[int, list[torch.Tensor]]
) -> None:
    done = run(launcher, tmp_path / "run", "is killed")
    assert done.returncode == 0, done.stderr
    begun = {path.name for path in (tmp_path / "run").glob("began-*")}
    # What was saved last: at a step of save_steps, or by the process that was left behind.
    step = next(name.split("-")[-1] for name in begun if name.startswith("began-0-1-"))
    assert step in ("5", "7")
    assert begun == {"began-0-0-at-0", "began-1-0-at-0", f"began-0-1-at-{step}", f"began-1-1-at-{step}"}
    last, weights = ended(tmp_path / "run")
    assert last == undisturbed[0] == 12
    for found, expected in zip(weights, undisturbed[1], strict=True):
        assert torch.equal(found, expected)
    assert not (tmp_path / "run" / ".kunren-run.lock").exists()
    if launcher is LAUNCH:
        assert "process 1 of 2 was the first to end, killed by SIGKILL" in done.stderr
        assert "started again (1 of 2)" in done.stderr


def from_its_own_list(folder: Path, steps: int) -> int:
    """Each process sees another newest checkpoint; the step it began at."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else int(os.environ["RANK"])
    whole = layout.newest_whole

    def seen(output_dir: Any) -> Path | None:
        return whole(output_dir) if rank == 0 else None

    layout.newest_whole = seen
    try:
        found = trained(folder, resume="auto", save_strategy="steps", save_steps=4, max_steps=steps)
    finally:
        layout.newest_whole = whole
    return len(found["losses"])


def test_the_first_process_decides_for_all(tmp_path: Path) -> None:
    for steps, expected in ((8, 8), (11, 3)):  # nothing is there at first
        assert run_ranks(from_its_own_list, tmp_path, steps) == [expected, expected]


def without_a_checkpoint(folder: Path) -> Any:
    return trained(folder, resume=True, save_strategy="steps", save_steps=4)


def test_what_the_first_process_does_not_find_is_an_error_of_all(tmp_path: Path) -> None:
    answers = ask_ranks(without_a_checkpoint, tmp_path, timeout=30)
    for answer in answers:
        assert answer.error is not None and "has no checkpoint that is whole" in answer.error
        assert answer.seconds < 15


class Strange(Exception):
    def __init__(self, one: int, another: int) -> None:
        super().__init__(f"{one} and {another}")


def one_raises(rank_at_fault: int) -> str:
    from distributed.tasks_of_ranks import arguments
    from kunren.engine.choose import choose

    engine = choose(arguments(Path("unused")))

    def act() -> int:
        if engine.process_index == rank_at_fault:
            raise Strange(1, 2)
        return engine.process_index

    try:
        return str(decided_once(engine, act))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_an_error_of_one_is_an_error_of_all() -> None:
    assert run_ranks(one_raises, 1) == ["RuntimeError: Strange in another process: 1 and 2", "Strange: 1 and 2"]
    assert run_ranks(one_raises, 9) == ["0", "0"]


def test_a_folder_in_use_is_told_by_all_at_once(tmp_path: Path) -> None:
    from kunren.checkpoint.lock import RunLock

    lock = RunLock(tmp_path)
    lock.acquire()
    try:
        answers = ask_ranks(without_a_checkpoint, tmp_path, timeout=30)
    finally:
        lock.release()
    for answer in answers:
        assert answer.error is not None and "is in use by process" in answer.error
        assert answer.seconds < 15
