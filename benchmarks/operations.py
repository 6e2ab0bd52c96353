"""Tensor operations and host syncs of one optimizer step: what a GPU would have to launch, and to wait for.

    python benchmarks/operations.py [--write]

Counted, not timed, with torch's dispatch mode on the CPU. A sync is a tensor's value read by Python (`item`, `bool`,
`float`): on a GPU the host would wait there. Logging is off, so these are the syncs between two logs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from measure import command_line, report, table
from models import Perceptron, gpt2, points, token_rows
from systems import SYSTEMS, Task, run
from torch.utils._python_dispatch import TorchDispatchMode

SYNC = torch.ops.aten._local_scalar_dense.default
HEADERS = ("operations / syncs per optimizer step", *SYSTEMS)


class Counter(TorchDispatchMode):
    """Counts the operations that reach the backend, those of the backward pass included."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.syncs = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations += 1
        self.syncs += function is SYNC
        return function(*args, **(kwargs or {}))


def count(system: str, task: Task) -> str:
    """Both numbers of a system, e.g. "61 / 0"."""
    per_step = []
    for counted in ("operations", "syncs"):
        counter = Counter()
        task.read = partial(getattr, counter, counted)
        with counter:
            per_step.append(run(system, task).per_step)
    return " / ".join(f"{number:g}" for number in per_step)


def main() -> None:
    options = command_line(__doc__, rounds=1).parse_args()
    torch.set_num_threads(1)
    tasks = {
        "perceptron": Task(Perceptron, points, batch_size=8, measured_steps=20),
        "perceptron, accumulation 4": Task(Perceptron, points, batch_size=8, measured_steps=20, accumulation=4),
        "GPT-2, 2 layers": Task(partial(gpt2, 2), token_rows, batch_size=2, measured_steps=10),
        "GPT-2, 2 layers, accumulation 4": Task(
            partial(gpt2, 2), token_rows, batch_size=2, measured_steps=10, accumulation=4
        ),
    }
    rows = []
    for name, task in tasks.items():
        cells = ("left out" if system in options.without else count(system, task) for system in SYSTEMS)
        rows.append((name, *cells))
    report("operations", "Tensor operations and host syncs of a step", [table(HEADERS, rows)], options.write)


if __name__ == "__main__":
    main()
