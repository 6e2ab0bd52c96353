"""CPU time of a step of two processes: a hand-written DistributedDataParallel loop, kunren, and transformers' Trainer.

    python benchmarks/ddp_overhead.py [--rounds 10] [--write]

Both processes stay for the whole measurement and do the systems in turns, over gloo: the same model on the same rows,
the same fused AdamW, a linear schedule, clipping, and the mean loss of both processes every ten steps. What is measured
is user and system time of both, with all of their threads. The parameters after the last step are compared. Trainers
let DistributedDataParallel look for unused parameters, which the loop does in one row of its own. The loop runs twice a
round: how far its second ratio is from 1.00 is what the machine's other work does to the figures.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from measure import command_line, interleaved, ratio_cells, report, table
from models import Perceptron, gpt2, points, token_rows
from systems import LEARNING_RATE, LOOP, MAX_GRADIENT_NORM, quiet
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

AGAIN, LIKE_TRAINERS = "the same loop again", "the loop, looking for unused parameters"
RANKS, LOGGING_STEPS = 2, 10
HEADERS = ("system", "CPU us/step of both", "ratio to the loop", "ratio in each round", "parameters, max difference")
SAME_WORK = 1e-4
TARGET = "Target: kunren costs at most 1.03 times the hand-written loop with the GPT-2."


class CountedRows(Dataset[dict[str, Tensor]]):
    """Takes a reading when this process has fetched certain numbers of rows, whichever they are."""

    def __init__(self, columns: dict[str, Tensor], readings_at: tuple[int, int]) -> None:
        self.columns, self.readings_at = columns, readings_at
        self.fetched, self.readings = 0, list[float]()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if self.fetched in self.readings_at:
            self.readings.append(time.process_time())  # user + system, of all threads
        self.fetched += 1
        return {name: values[index] for name, values in self.columns.items()}


@dataclass(frozen=True)
class Task:
    """A model, data and a number of steps; some before them and one after them are not measured."""

    title: str
    make_model: Callable[[], nn.Module]
    make_columns: Callable[[int], dict[str, Tensor]]
    batch_size: int  # of each process
    measured_steps: int

    @property
    def first_measured_step(self) -> int:
        return 3 + self.measured_steps // 10

    @property
    def steps(self) -> int:
        return self.first_measured_step + self.measured_steps + 1

    def model_and_rows(self) -> tuple[nn.Module, CountedRows]:
        torch.manual_seed(0)
        model = self.make_model()
        first = self.first_measured_step * self.batch_size
        readings_at = (first, first + self.measured_steps * self.batch_size)
        return model, CountedRows(self.make_columns(self.steps * self.batch_size * RANKS), readings_at)


TASKS = (
    Task(
        "GPT-2, 2 layers x 128, context 128, vocabulary 1,024, batch 4 of each process",
        make_model=lambda: gpt2(2),
        make_columns=token_rows,
        batch_size=4,
        measured_steps=30,
    ),
    Task("Two-layer perceptron, 2,762 parameters, batch 8 of each process", Perceptron, points, 8, 300),
)


@dataclass(frozen=True)
class Outcome:
    per_step: float
    parameters: Tensor


def train_by_hand(**options: Any) -> Callable[[nn.Module, CountedRows, Task, str], None]:
    def train(model: nn.Module, rows: CountedRows, task: Task, folder: str) -> None:
        wrapped = DistributedDataParallel(model.train(), **options)
        optimizer = AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True)
        scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1.0 - step / task.steps))
        total_loss, logs = torch.zeros(()), []
        sampler: DistributedSampler[Any] = DistributedSampler(rows, shuffle=False)
        for number, batch in enumerate(DataLoader(rows, batch_size=task.batch_size, sampler=sampler), start=1):
            loss = wrapped(**batch)["loss"]
            loss.backward()
            total_loss += loss.detach()
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if number % LOGGING_STEPS == 0:
                dist.all_reduce(total_loss)
                logs.append(total_loss.item() / LOGGING_STEPS / RANKS)
                print({"loss": logs[-1], "learning_rate": scheduler.get_last_lr()[0]})
                total_loss.zero_()

    return train


def train_with_trainer(package: str) -> Callable[[nn.Module, CountedRows, Task, str], None]:
    def train(model: nn.Module, rows: CountedRows, task: Task, folder: str) -> None:
        library = importlib.import_module(package)
        arguments = library.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=task.batch_size,
            num_train_epochs=1,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="linear",
            max_grad_norm=MAX_GRADIENT_NORM,
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential",
            logging_steps=LOGGING_STEPS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        library.Trainer(model=model, args=arguments, train_dataset=rows).train()

    return train


SYSTEMS: Mapping[str, Callable[[nn.Module, CountedRows, Task, str], None]] = {
    LOOP: train_by_hand(),
    "kunren": train_with_trainer("kunren"),
    "transformers": train_with_trainer("transformers"),
    LIKE_TRAINERS: train_by_hand(find_unused_parameters=True),
    AGAIN: train_by_hand(),
}


def run(system: str, task: Task) -> Outcome:
    """Train with a system in both processes: what a step cost both together, and the parameters after the last one."""
    model, rows = task.model_and_rows()
    dist.barrier()
    with tempfile.TemporaryDirectory() as folder, quiet():
        folders = [folder]
        dist.broadcast_object_list(folders)  # all processes of a run have one
        SYSTEMS[system](model, rows, task, folders[0])
        first, last = rows.readings
        dist.barrier()
    cost = torch.tensor((last - first) / task.measured_steps, dtype=torch.float64)
    dist.all_reduce(cost)
    return Outcome(float(cost), torch.cat([parameter.detach().flatten() for parameter in model.parameters()]))


def measure(task: Task, systems: list[str], rounds: int) -> str:
    runs: dict[str, Callable[[], Outcome]] = {system: partial(run, system, task) for system in systems}
    outcomes = interleaved(runs, rounds)
    rows = []
    for system in runs:
        cost = [outcome.per_step for outcome in outcomes[system]]
        ratio, each = ratio_cells(cost, [outcome.per_step for outcome in outcomes[LOOP]])
        difference = float((outcomes[system][0].parameters - outcomes[LOOP][0].parameters).abs().max())
        if difference > SAME_WORK:
            raise SystemExit(f"{system} did other work: its parameters differ from the loop's by {difference:.1e}")
        rows.append((system, f"{statistics.median(cost) * 1e6:,.0f}", ratio, each, f"{difference:.0e}"))
    return table(HEADERS, rows)


def be_process(rank: int, port: int, systems: list[str], rounds: int, tell: Any) -> None:
    """One of the two, from its start to its end."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for task in TASKS:
        section = measure(task, systems, rounds)
        if rank == 0:
            tell.put(section)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    options = command_line(__doc__, rounds=10).parse_args()
    systems = [system for system in SYSTEMS if system not in options.without]
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tell = context.Queue()
    told = (port, systems, options.rounds, tell)
    processes = [context.Process(target=be_process, args=(rank, *told), daemon=True) for rank in range(RANKS)]
    for process in processes:
        process.start()
    sections = [TARGET]
    for task in TASKS:
        while tell.empty() and all(process.is_alive() for process in processes):
            time.sleep(0.1)
        if tell.empty():
            raise SystemExit("A process has ended before it was done.")
        sections += [task.title, tell.get()]
    for process in processes:
        process.join()
    report("ddp_overhead", "Cost of a step of two processes", sections, options.write)


if __name__ == "__main__":
    main()
