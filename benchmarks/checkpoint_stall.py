"""How long a save of GPT-2's 124M weights with AdamW's moments keeps the training waiting, and when it is on the disk.

    python benchmarks/checkpoint_stall.py [--rounds 5] [--write]

All systems save the same live tensors in turn. The unit is one copy of all of them into memory that is there already:
nothing that hands over a consistent state can be faster. What is in the page cache is written, and the files deleted,
between two saves. Needs 8 GiB of memory and 3 GiB of disk.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from systems import quiet
from torch import Tensor, nn

FLOOR = "one copy into a reused buffer"
HEADERS = (
    "blocked per save",
    "x floor, wall",
    "each round",
    "x floor, CPU",
    "wall ms",
    "CPU ms",
    "first save, wall ms",
)
DURABLE_HEADERS = ("until the disk has it", "seconds", "each round", "per 1.4 GiB", "CPU s, all threads")
MEMORY_HEADERS = ("memory above the state, MiB", "peak of the first save", "held after it", "peak of a later save")
MIB, UNIT_BYTES = 1 << 20, 1.4 * (1 << 30)


@dataclass(frozen=True)
class Saved:
    """One save: seconds that the training waits (wall, CPU of its thread), until it is durable, and MiB of memory."""

    blocked: float
    blocked_cpu: float
    durable: float
    total_cpu: float
    peak: float
    held: float


@dataclass(frozen=True)
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any

    def tensors(self) -> list[Tensor]:
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [parameter.detach() for parameter in self.model.parameters()] + moments


def live_state(layers: int) -> State:
    """GPT-2 after one step of AdamW, as in the middle of a training."""
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return State(model, optimizer, scheduler)


class Copying:
    """The floor."""

    def __init__(self, state: State) -> None:
        self.tensors = state.tensors()
        self.copies = [torch.zeros_like(tensor) for tensor in self.tensors]

    def save(self, folder: Path) -> None:
        for copy, tensor in zip(self.copies, self.tensors, strict=True):
            copy.copy_(tensor)

    def finish(self, folder: Path) -> None:
        """Nothing goes to the disk."""


class Trainers:
    """The method of transformers' Trainer that its loop calls for a save, and that kunren's has under the same name."""

    def __init__(self, package: str, state: State, root: Path, **settings: Any) -> None:
        library: Any = importlib.import_module(package)
        arguments = library.TrainingArguments(
            output_dir=str(root), report_to="none", disable_tqdm=True, use_cpu=True, **settings
        )
        self.trainer: Any = library.Trainer(
            model=state.model, args=arguments, optimizers=(state.optimizer, state.scheduler), train_dataset=[{}]
        )
        self.flushes = package != "kunren"

    def save(self, folder: Path) -> None:
        self.trainer._save_checkpoint(self.trainer.model, None)

    def finish(self, folder: Path) -> None:
        if self.flushes:
            flush(folder)
        else:
            self.trainer._saver.wait()


class TorchSave:
    """`torch.save` of both state dicts."""

    def __init__(self, state: State) -> None:
        self.state = state

    def save(self, folder: Path) -> None:
        (folder / "checkpoint").mkdir(parents=True)
        whole = {"model": self.state.model.state_dict(), "optimizer": self.state.optimizer.state_dict()}
        torch.save(whole, folder / "checkpoint" / "state.pt")

    def finish(self, folder: Path) -> None:
        flush(folder)


def flush(folder: Path) -> None:
    """What a system leaves in the page cache, written to the disk."""
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def measured(system: Any, folder: Path, expected_bytes: int) -> Saved:
    """Save once, wait for the disk, and leave the machine as it was."""
    os.sync()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    wall, cpu, all_cpu = time.perf_counter(), time.thread_time(), time.process_time()
    with quiet():
        system.save(folder)
        blocked, blocked_cpu = time.perf_counter() - wall, time.thread_time() - cpu
        system.finish(folder)
    durable, total_cpu = time.perf_counter() - wall, time.process_time() - all_cpu
    peak, held = memory("VmHWM") - before, memory("VmRSS") - before
    written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if written < expected_bytes:
        raise ValueError(f"{written} bytes in {folder}, and the state has {expected_bytes}")
    for path in folder.glob("*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return Saved(blocked, blocked_cpu, durable, total_cpu, peak, held)


def memory(name: str) -> float:
    """MiB of VmRSS (resident) or VmHWM (its peak)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


def systems(state: State, root: Path) -> dict[str, tuple[Any, Path]]:
    made = {
        FLOOR: Copying(state),
        "kunren": Trainers("kunren", state, root / "kunren"),
        "kunren, async_save=False": Trainers("kunren", state, root / "kunren-now", async_save=False),
        "transformers": Trainers("transformers", state, root / "transformers"),
        "torch.save": TorchSave(state),
    }
    folders = ("nothing", "kunren", "kunren-now", "transformers", "torch-save")
    return {name: (system, root / folder) for (name, system), folder in zip(made.items(), folders, strict=True)}


def sections(first: dict[str, Saved], later: dict[str, list[Saved]], size: int) -> list[str]:
    def column(name: str, read: Callable[[Saved], float]) -> list[float]:
        return [read(saved) for saved in later[name]]

    blocked, durable, memories = [], [], []
    for name in later:
        walls, cpus = column(name, lambda saved: saved.blocked), column(name, lambda saved: saved.blocked_cpu)
        wall_ratio, each = ratio_cells(walls, column(FLOOR, lambda saved: saved.blocked))
        cpu_ratio, _ = ratio_cells(cpus, column(FLOOR, lambda saved: saved.blocked_cpu))
        milliseconds = [f"{value * 1e3:.0f}" for value in (statistics.median(walls), statistics.median(cpus))]
        blocked.append((name, wall_ratio, each, cpu_ratio, *milliseconds, f"{first[name].blocked * 1e3:.0f}"))
        if name != FLOOR:
            seconds = column(name, lambda saved: saved.durable)
            median = statistics.median(seconds)
            total = statistics.median(column(name, lambda saved: saved.total_cpu))
            rounds = " ".join(f"{value:.2f}" for value in seconds)
            durable.append((name, f"{median:.2f}", rounds, f"{median * UNIT_BYTES / size:.2f}", f"{total:.2f}"))
            peak = max(column(name, lambda saved: saved.peak))
            memories.append((name, *(f"{value:.0f}" for value in (first[name].peak, first[name].held, peak))))
    return [
        f"The state has {size / MIB:.0f} MiB. The first save, which allocates memory that later ones use, is left out "
        "of the ratios.",
        table(HEADERS, blocked),
        "transformers and torch.save leave the files in the page cache; here they are flushed after the save, and the "
        "time of that is counted.",
        table(DURABLE_HEADERS, durable),
        table(MEMORY_HEADERS, memories),
    ]


def parser() -> argparse.ArgumentParser:
    options = command_line(__doc__, rounds=5)
    options.add_argument("--layers", type=int, default=12, help="of GPT-2 (default 12, 124M parameters)")
    options.add_argument("--folder", help="where to write (default: beside this file, as /tmp may be memory)")
    return options


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    state = live_state(options.layers)
    size = sum(tensor.numel() * tensor.element_size() for tensor in state.tensors())
    with tempfile.TemporaryDirectory(dir=options.folder or Path(__file__).parent) as root, quiet():
        runs = {}
        for name, (system, folder) in systems(state, Path(root)).items():
            if name not in options.without:
                expected = 0 if name == FLOOR else size
                runs[name] = lambda system=system, folder=folder, expected=expected: measured(system, folder, expected)
        first = {name: saved[0] for name, saved in interleaved(runs, 1).items()}
        later = interleaved(runs, options.rounds)
    report("checkpoint_stall", "What a save costs a training", sections(first, later, size), options.write)


if __name__ == "__main__":
    main()
