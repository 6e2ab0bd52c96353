"""Every system call by which a checkpoint is written, published and rotated: it fails, or the process ends there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crash.faults import DEAD, KINDS, Fault
from crash.fork_server import Ended, ForkServer
from crash.outcome import Outcome, assert_all_whole, assert_equal, hidden, read_result

SETTINGS: dict[str, Any] = {"max_steps": 12, "save_total_limit": 1}
STEP = 6
# A save under a new name, and one that replaces the checkpoint of a run that had come further.
BEFORE = {"new": ("checkpoint-3",), "again": ("checkpoint-3", "checkpoint-6")}


class Place:
    """Folders in which a run stands at step 3 and is about to save step 6."""

    def __init__(self, server: ForkServer, root: Path, present: tuple[str, ...], asynchronous: bool) -> None:
        self.server, self.root, self.present = server, root, present
        self.settings = {**SETTINGS, "async_save": asynchronous}
        self.base = root / "base"
        ended = server.run("crash.training:main", self.base, {**SETTINGS, "save_total_limit": None})
        assert ended.status == 0, ended.output

    def run(self, fault: Fault) -> tuple[Path, Ended]:
        folder = self.root / f"{fault.kind}-{fault.at}"
        for name in self.present:
            shutil.copytree(self.base / name, folder / name)
        return folder, self.server.run("crash.faults:train", folder, "checkpoint-3", vars(fault), self.settings)

    def resume(self, folder: Path) -> Ended:
        return self.server.run("crash.training:main", folder, self.settings)

    def number_of_calls(self) -> int:
        _, ended = self.run(Fault(STEP))
        calls = seen(ended)["calls"]
        print(self.root.name, len(calls), calls)
        return len(calls)


def seen(ended: Ended) -> dict[str, Any]:
    """What the child saw after the save."""
    found: dict[str, Any] = json.loads(next(line for line in ended.output.splitlines() if line.startswith('{"calls"')))
    return found


def check(place: Place, fault: Fault, expected: Outcome) -> None:
    folder, ended = place.run(fault)
    assert_all_whole(folder)
    if fault.kind == "die":
        assert ended.status == DEAD, ended.output
    else:
        assert ended.status == 0, ended.output
        after = seen(ended)
        assert not any(after["checkpoints"].values()), "a checkpoint was damaged while the training went on"
        assert after["checkpoints"], "the checkpoint that there was is gone"
        if "checkpoint-6" not in after["checkpoints"]:
            assert "could not be saved" in ended.output
            assert "checkpoint-3" in after["checkpoints"], "the older checkpoint went before there was a newer one"
        assert_equal(read_result(folder), expected)
    again = place.resume(folder)
    assert again.status == 0, again.output
    found = read_result(folder)
    if fault.kind != "die":  # the finished run is resumed: no step is done, and no random number restored
        found["random"] = expected["random"]
    assert_equal(found, expected)
    assert not hidden(folder)
    shutil.rmtree(folder)


def test_one_fault_at_each_call(server: ForkServer, undisturbed: Callable[..., Outcome], tmp_path: Path) -> None:
    """Kinds of faults and of saves take turns, so that all of them occur at calls of all kinds."""
    expected = undisturbed(**SETTINGS)
    places = [
        Place(server, tmp_path / f"{before}-{asynchronous}", present, asynchronous)
        for before, present in BEFORE.items()
        for asynchronous in (True, False)
    ]
    numbers = [place.number_of_calls() for place in places]
    assert min(numbers) > 40, "the shim does not see the writer's calls"
    for at in range(1, max(numbers) + 1):
        turn = at % len(places)
        if at <= numbers[turn]:
            check(places[turn], Fault(STEP, at, KINDS[at % len(KINDS)]), expected)


@pytest.mark.crash
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("asynchronous", [True, False], ids=["async", "sync"])
def test_every_fault_at_each_call(
    asynchronous: bool,
    before: str,
    kind: str,
    server: ForkServer,
    undisturbed: Callable[..., Outcome],
    tmp_path: Path,
) -> None:
    place, expected = Place(server, tmp_path, BEFORE[before], asynchronous), undisturbed(**SETTINGS)
    for at in range(1, place.number_of_calls() + 1):
        check(place, Fault(STEP, at, kind), expected)
