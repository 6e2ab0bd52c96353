"""SIGKILL at random moments, a resume each time, and in the end the run that nobody killed (rows R5, R7, S1)."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crash.fork_server import ForkServer
from crash.outcome import Outcome, assert_all_whole, assert_equal, hidden, read_result

KILLS = int(os.environ.get("KUNREN_KILLS", "20"))
SETTINGS: dict[str, Any] = {"pause": 0.004}
LONGEST_LIFE_SECONDS = 0.4


@dataclass
class Count:
    """What happened so far, over all runs."""

    kills: int = 0
    while_saving: int = 0
    while_removing: int = 0
    resumes: int = 0
    runs: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether to kill once more: `KILLS` times, and a few may all have missed a save or come before the first."""
        return self.kills < KILLS or (0 in (self.while_saving, self.resumes) and self.kills < 10 * KILLS)

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.while_saving} of them while a checkpoint was being written and "
            f"{self.while_removing} while one was being removed; {self.resumes} resumes; {self.runs} runs, "
            "all equal to the undisturbed one bit for bit"
        )


def test_killed_at_random_moments(
    server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(KILLS)
    expected = undisturbed(**SETTINGS)
    count = Count()
    while count.goes_on:
        folder = tmp_path / f"run-{count.runs}"
        _killed_until_done(server, folder, chance, count)
        assert_equal(read_result(folder), expected)
        assert not hidden(folder), "nothing is left of all the saves that were cut off"
        count.runs += 1
    assert count.resumes > 0
    assert count.while_saving > 0
    with capsys.disabled():
        print(f"\n{count}")


def _killed_until_done(server: ForkServer, folder: Path, chance: random.Random, count: Count) -> None:
    """Every other run saves in the background. After the last kill the run is left alone."""
    settings = {**SETTINGS, "async_save": count.runs % 2 == 0}
    newest = 0
    before: set[str] = set()
    while True:
        present = bool(assert_all_whole(folder))
        life = chance.uniform(0.01, LONGEST_LIFE_SECONDS)
        deadly = [(life, int(signal.SIGKILL))] if count.goes_on else []
        ended = server.run("crash.training:main", folder, settings, signals=deadly)
        assert ended.status in (0, -signal.SIGKILL), ended.output
        count.resumes += present
        if ended.status == 0:
            return
        count.kills += 1
        left = {name.split(".")[2].split("-")[0] for name in hidden(folder) - before if name.count(".") == 2}
        before = hidden(folder)
        count.while_saving += "saving" in left
        count.while_removing += bool(left & {"deleted", "replaced"})
        steps = [int(name.split("-")[1]) for name in assert_all_whole(folder)]
        assert max(steps, default=0) >= newest, "a checkpoint that was there is gone"
        newest = max(steps, default=0)
