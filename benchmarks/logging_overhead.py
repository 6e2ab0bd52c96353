"""CPU time of watching a run: everything switched on, at ten steps a log, against the same run that nobody watches.

    python benchmarks/logging_overhead.py [--rounds 24] [--write]

The run of `step_cost.py`: two-layer perceptron, 2,762 parameters, batch 8. "Everything" is TensorBoard, metrics.jsonl,
events.jsonl, the account of the steps, progress lines into a pipe and the run report. Readings are of the process, so
that the threads of TensorBoard count. Further rows switch single things on. The run whose logs nobody reads is measured
twice a round: how far its second ratio is from 1.00 is what the machine's other work does to the figures.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from measure import command_line, interleaved, report, table
from models import Perceptron, points
from systems import LEARNING_RATE, Outcome, Task

from kunren import Trainer, TrainingArguments
from kunren.callbacks import DefaultFlowCallback, ProgressCallback
from kunren.trackers import TrackerCallback
from kunren.trackers.local_log import LocalLogCallback
from kunren.trackers.run_events import RunEventsCallback

EVERYTHING, LOGS_ALONE, AGAIN, NOTHING = "everything", "logs that nobody reads", "the same again", "no logs"
HEADERS = ("what is on", "CPU us/step", "lowest", f"ratio to {LOGS_ALONE}", f"ratio to {NOTHING}", "of the lowest")
LIMIT = 1.03


@dataclass(frozen=True)
class Watched:
    """What is on in a run."""

    logs: bool = True
    callbacks: tuple[type, ...] = ()
    account: bool = False
    report_to: str = "none"
    run_report: bool = False


WATCHED = {
    EVERYTHING: Watched(
        callbacks=(LocalLogCallback, RunEventsCallback, TrackerCallback, ProgressCallback),
        account=True,
        report_to="tensorboard",
        run_report=True,
    ),
    LOGS_ALONE: Watched(),
    AGAIN: Watched(),
    NOTHING: Watched(logs=False),
    "TensorBoard": Watched(callbacks=(TrackerCallback,), report_to="tensorboard"),
    "metrics.jsonl": Watched(callbacks=(LocalLogCallback,)),
    "events.jsonl": Watched(callbacks=(RunEventsCallback,)),
    "progress lines": Watched(callbacks=(ProgressCallback,)),
    "the account": Watched(account=True),
}


class NoAccount:
    """Counts nothing, and never looks into a step."""

    is_detailed = is_due = False

    def __init__(self, device: torch.device) -> None: ...

    def begin(self) -> None: ...

    def begin_step(self) -> None: ...

    def mark(self, phase: str) -> None: ...

    def end_step(self, is_done: bool = True) -> None: ...

    def take(self, samples: int, tokens: int, operations: float, peak: float | None) -> None: ...


def train(watched: Watched, task: Task) -> Outcome:
    """The cost of a step between the readings, and the parameters after the last one."""
    model, rows = task.model_and_rows()
    with tempfile.TemporaryDirectory() as folder, into_a_pipe(), accounting(watched.account):
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.batch_size,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential",
            logging_strategy="steps" if watched.logs else "no",
            logging_steps=10,
            save_strategy="no",
            report_to=watched.report_to,
            run_report=watched.run_report,
            disable_tqdm=False,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=rows)
        for callback in list(trainer.callback_handler.callbacks):
            if not isinstance(callback, (DefaultFlowCallback, *watched.callbacks)):
                trainer.remove_callback(callback)
        trainer.train()
        check(watched, Path(folder))
    first, last = rows.readings
    parameters = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return Outcome((last - first) / task.measured_steps, parameters)


def check(watched: Watched, folder: Path) -> None:
    """A thing that is on has left something behind, and what is off has not."""
    logs = [json.loads(line) for line in read(folder / "metrics.jsonl").splitlines()]
    found = {
        "metrics.jsonl": bool(logs),
        "the account": any(line.get("account") for line in logs),
        "events.jsonl": '"end"' in read(folder / "events.jsonl"),
        "TensorBoard": any(path.read_bytes().count(b"train/loss") > 10 for path in folder.rglob("events.out.*")),
        "the report": (folder / "report.html").exists(),
    }
    expected = {
        "metrics.jsonl": LocalLogCallback in watched.callbacks,
        "the account": watched.account and LocalLogCallback in watched.callbacks,
        "events.jsonl": RunEventsCallback in watched.callbacks,
        "TensorBoard": TrackerCallback in watched.callbacks,
        "the report": watched.run_report,
    }
    if found != expected:
        raise SystemExit(f"The run left {found}, and should have left {expected}.")


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


@contextlib.contextmanager
def into_a_pipe() -> Iterator[None]:
    """What is printed goes down a pipe, as under `| tee`, and is thrown away."""
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(contextlib.redirect_stdout(sink))
        stack.enter_context(contextlib.redirect_stderr(sink))
        yield


def accounting(wanted: bool) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if wanted else mock.patch("kunren.seams.reporting.StepAccount", NoAccount)


def measure(task: Task, rounds: int, without: list[str]) -> str:
    runs: dict[str, Callable[[], Outcome]] = {
        name: partial(train, watched, replace(task)) for name, watched in WATCHED.items() if name not in without
    }
    for run in runs.values():
        run()  # once unmeasured: imports, and code that is warm
    outcomes = interleaved(runs, rounds)
    cost = {name: [outcome.per_step for outcome in outcomes[name]] for name in runs}
    rows = []
    for name in runs:
        if not all(torch.equal(outcome.parameters, outcomes[NOTHING][0].parameters) for outcome in outcomes[name]):
            raise SystemExit(f"With {name} on, the training has become another one.")
        median, lowest = (f"{number(cost[name]) * 1e6:.1f}" for number in (statistics.median, min))
        of_lowest = f"{min(cost[name]) / min(cost[LOGS_ALONE]):.3f}"
        rows.append(
            (name, median, lowest, *(ratio(cost[name], cost[other]) for other in (LOGS_ALONE, NOTHING)), of_lowest)
        )
    return table(HEADERS, rows)


def ratio(values: list[float], reference: list[float]) -> str:
    """The median over the rounds, with the quarter of them below and above."""
    each = [value / base for value, base in zip(values, reference, strict=True)]
    low, middle, high = statistics.quantiles(each, n=4) if len(each) > 1 else each * 3
    return f"{middle:.3f} ({low:.2f}-{high:.2f})"


def main() -> None:
    parser = command_line(__doc__, rounds=24)
    parser.add_argument("--steps", type=int, default=1000, help="measured steps of a run (default 1000)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    task = Task(Perceptron, points, batch_size=8, measured_steps=options.steps, read=time.process_time)  # user + system
    section = measure(task, options.rounds, options.without)
    target = f"Target: everything costs at most {LIMIT:.2f} times the run whose logs nobody reads."
    title = "Cost of watching a run: two-layer perceptron, 2,762 parameters, batch 8, a log every 10 steps"
    report("logging_overhead", title, [target, section], options.write)


if __name__ == "__main__":
    main()
