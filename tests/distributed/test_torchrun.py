"""The same script, byte for byte, in one process and under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kunren
from kunren.checkpoint.store import verify

pytestmark = pytest.mark.distributed

SCRIPT = str(Path(__file__).with_name("script.py"))


def run(folder: Path, fate: str = "lives", ranks: int = 2) -> tuple[subprocess.CompletedProcess[str], float]:
    folder.mkdir()
    # Without the second variable one launch in three fails, when the port of the meeting place is taken meanwhile.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    environment["PYTHONPATH"] = str(Path(kunren.__file__).parents[1])
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    start = time.monotonic()
    command = [sys.executable, *torchrun, SCRIPT, str(folder), fate]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - start


def test_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    found = {}
    for ranks in (1, 2):
        done, _ = run(tmp_path / str(ranks), ranks=ranks)
        assert done.returncode == 0, done.stderr
        found[ranks] = json.loads((tmp_path / str(ranks) / "found.json").read_text())
        for word in ("destroy_process_group", "Traceback", "terminate called"):
            assert word not in done.stderr
        assert (tmp_path / str(ranks) / "report.html").is_file()
    assert found[2]["weight"] == pytest.approx(found[1]["weight"], rel=1e-6)
    assert [loss for loss in found[2]["losses"] if loss] == pytest.approx(
        [loss for loss in found[1]["losses"] if loss], rel=1e-6
    )
    lines = (tmp_path / "2" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len((tmp_path / "1" / "metrics.jsonl").read_text().splitlines())  # one process writes
    events = [json.loads(line)["event"] for line in (tmp_path / "2" / "events.jsonl").read_text().splitlines()]
    assert (events[0], events[-1], events.count("begin")) == ("begin", "end", 1)


def test_sigterm_to_one_ends_both_well(tmp_path: Path) -> None:
    done, _ = run(tmp_path / "run", "is asked to stop")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "run").glob("*checkpoint-*")] == ["checkpoint-5"]
    assert verify(tmp_path / "run" / "checkpoint-5", digests=True) == []


def test_one_that_raises_ends_all_with_its_traceback(tmp_path: Path) -> None:
    done, seconds = run(tmp_path / "run", "raises")
    assert done.returncode == 1
    assert "ArithmeticError: of the second process" in done.stderr
    assert seconds < 30
