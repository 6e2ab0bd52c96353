"""TRL on two processes: what it gathers itself, and what it multiplies by their number itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from downstream.runner import assert_same_outcome, entries

pytestmark = pytest.mark.slow


def on_two(library: str, task: str, folder: Path, **options: Any) -> list[Any]:
    """What `task` returned in each of two processes."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "downstream.ranks"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    ended = subprocess.run(
        [sys.executable, *command, library, task, json.dumps(options), str(folder)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=180,
    )
    answers = [folder / library / f"rank-{rank}" / "answer.json" for rank in range(2)]
    assert all(answer.exists() for answer in answers), ended.stderr[-6000:]
    return [json.loads(answer.read_text()) for answer in answers]


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("downstream.sft_runs:train", {"kind": "completion", "gradient_accumulation_steps": 2}),
        ("downstream.dpo_runs:train", {"gradient_accumulation_steps": 2}),
    ],
    ids=["sft", "dpo"],
)
def test_the_same_training(tmp_path: Path, task: str, options: dict[str, Any]) -> None:
    """Each process has labels of other numbers; TRL's numbers in the log are those of both."""
    theirs = on_two("transformers", task, tmp_path, max_steps=3, **options)
    ours = on_two("kunren", task, tmp_path, max_steps=3, **options)
    assert_same_outcome(theirs[0], ours[0])
    assert ours[0]["weights"] == ours[1]["weights"]
    alone = entries(ours[0]["log"])[1]
    assert alone["num_tokens"] > 0
