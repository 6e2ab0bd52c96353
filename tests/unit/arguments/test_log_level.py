"""What `log_level` and `log_level_replica` make kunren's loggers say, and where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kunren

SAYING = """
import logging
from kunren.arguments import TrainingArguments
from kunren.arguments.logging_and_tracking import obey_log_level

obey_log_level(TrainingArguments(output_dir="x", use_cpu=True, **{given}))
logging.getLogger("kunren.engine").info("chosen")
logging.getLogger("kunren.seams.resuming").warning("changed")
logging.getLogger("kunren.data.reader").warning("of one process")
"""


@pytest.mark.parametrize(
    ("rank", "given", "said"),
    [
        (0, {}, ["changed", "of one process"]),
        (0, {"log_level": "info"}, ["chosen", "changed", "of one process"]),
        (0, {"log_level": "error"}, []),
        (1, {}, ["of one process"]),
        (1, {"log_level_replica": "info"}, ["chosen", "changed", "of one process"]),
        (1, {"log_level_replica": "passive"}, ["changed", "of one process"]),
    ],
)
def test_levels(rank: int, given: dict[str, str], said: list[str]) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(kunren.__file__).parents[1]),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", SAYING.format(given=given)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.splitlines() == said
