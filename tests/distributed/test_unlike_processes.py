"""Processes with unlike arguments or data: told with the values, and not trained as if they were one."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Rows, Stream, Tagger, arguments, trained
from distributed.test_launch import environment
from kunren import Trainer

pytestmark = pytest.mark.distributed


def rank() -> int:
    return int(os.environ["RANK"])


def with_options(folder: Path, options: dict[str, tuple[Any, Any]]) -> Any:
    return trained(folder, **{name: values[rank()] for name, values in options.items()})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seed": (1, 2)}, "seed is 1 in process 0 and 2 in process 1. Give all of them the same. Dropout draws other"),
        (
            {"learning_rate": (0.1, 0.2), "gradient_accumulation_steps": (1, 2)},
            "gradient_accumulation_steps is 1 in process 0 and 2 in process 1; learning_rate is 0.1 in process 0 and",
        ),
        (
            {"accelerator_config": ({}, {"split_batches": True}), "per_device_eval_batch_size": (4, 4)},
            "accelerator_config['split_batches'] is false in process 0 and true in process 1.",
        ),
        ({"optim_args": (None, "momentum=0.9")}, "optim_args is null in process 0 and"),
    ],
)
def test_arguments_that_differ(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    for answer in ask_ranks(with_options, tmp_path, options, timeout=30):
        assert answer.error is not None and said in answer.error, answer.error


def test_arguments_that_may_differ(tmp_path: Path) -> None:
    options = {
        "dataloader_num_workers": (0, 1),
        "ddp_timeout": (900, 1800),
        "run_name": ("a", "b"),
        "max_steps": (2, 2),
    }
    first, second = run_ranks(with_options, tmp_path, options)
    assert len(first["losses"]) == 2
    assert all((one == other).all() for one, other in zip(first["weights"], second["weights"], strict=True))


def unlike_sets(folder: Path, which: str) -> None:
    sets = {"training": 40, "evaluation": 10}
    sets[which] -= 6 * rank()
    trainer = Trainer(
        Tagger(),
        arguments(folder, max_steps=2),
        train_dataset=Rows(sets["training"]),
        eval_dataset=Rows(sets["evaluation"]),
    )
    trainer.train()
    trainer.evaluate()


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ("training", "The training set has 40 rows in process 0 and 34 in process 1: give all processes the whole set"),
        ("evaluation", "The evaluation set has 10 rows in process 0 and 4 in process 1: give all processes the whole"),
    ],
)
def test_sets_of_unlike_length(which: str, said: str, tmp_path: Path) -> None:
    for answer in ask_ranks(unlike_sets, tmp_path, which, timeout=30):
        assert answer.error is not None and said in answer.error, answer.error


class OwnPart(IterableDataset[Any]):
    """Divides its rows among the processes by itself."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(rank(), len(self.rows), 2))


def streamed(folder: Path, kind: type[Any]) -> list[str]:
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("kunren").addHandler(handler)
    stream = kind(Rows(16))
    trainer = Trainer(Tagger(), arguments(folder, max_steps=3), train_dataset=stream, eval_dataset=stream)
    trainer.train()
    trainer.evaluate()
    return [line for line in told if "first row" in line]


def test_a_stream_that_divides_itself_is_told(tmp_path: Path) -> None:
    first, second = run_ranks(streamed, tmp_path, OwnPart)
    assert {line.split(" is not the same")[0] for line in first} == {
        "The first row of the training stream",
        "The first row of the evaluation stream",
    }
    assert second == []  # what all see, one says
    assert run_ranks(streamed, tmp_path, Stream) == [[], []]


def split_by_node(folder: Path) -> None:
    import datasets
    from datasets.distributed import split_dataset_by_node

    rows = datasets.Dataset.from_list(
        [{name: row.tolist() for name, row in one.items()} for one in map(Rows(16).__getitem__, range(16))]
    )
    stream = split_dataset_by_node(rows.to_iterable_dataset(), rank(), 2)
    Trainer(Tagger(), arguments(folder), train_dataset=stream).train()


def test_a_stream_that_is_divided_already(tmp_path: Path) -> None:
    for number, answer in enumerate(ask_ranks(split_by_node, tmp_path, timeout=30)):
        assert answer.error is not None
        assert f"The stream is part {number} of 2 already (split_dataset_by_node)" in answer.error, answer.error


def with_variables(folder: Path, variables: dict[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value
    Trainer(Tagger(), arguments(folder), train_dataset=Rows(8))


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"RANK": "5"}, "RANK=5 is none of WORLD_SIZE=2 processes, which are numbered from 0: start the script with"),
        ({"RANK": None, "MASTER_PORT": None}, "the environment lacks RANK, MASTER_PORT, to say which process"),
    ],
)
def test_variables_that_say_no_process(variables: dict[str, Any], said: str, tmp_path: Path) -> None:
    for answer in ask_ranks(with_variables, tmp_path, variables, timeout=30):
        assert answer.error is not None and said in answer.error, answer.error


@pytest.mark.slow
def test_one_that_ends_early_is_told_by_the_launcher(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '0': time.sleep(2)\n")
    code = "import sys, kunren.cli.elastic_agent as agent, kunren.cli.main as command; agent._APART_SECONDS = 0.4\n"
    words = ["launch", "--processes", "2", str(script)]
    done = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit(command.main({words!r}))"],
        env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("kunren: process 1 of 2 has ended, with exit status 0, and others go on.") == 1
