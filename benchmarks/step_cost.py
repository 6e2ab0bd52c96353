"""CPU time of one optimizer step: a hand-written loop, kunren, transformers' Trainer and Lightning's.

    python benchmarks/step_cost.py [--gpt2] [--rounds 6] [--write]

Every system trains the same model on the same rows in the same order with the same fused AdamW, a linear schedule and
clipping; progress bars, logging and saving are off. The parameters after the last step are compared. The loop runs
twice a round: how far its second ratio is from 1.00 is what the machine's other work does to the figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from models import Perceptron, gpt2, points, token_rows
from systems import LOOP, SYSTEMS, Outcome, Task, run

AGAIN = "the same loop again"
HEADERS = ("system", "CPU us/step", "ratio to the loop", "ratio in each round", "parameters, max difference")
SAME_WORK = 1e-4  # far below what the steps move a parameter in total, far above rounding


def measure(task: Task, systems: list[str], rounds: int) -> str:
    runs: dict[str, Callable[[], Outcome]] = {system: partial(run, system, task) for system in systems}
    runs[AGAIN] = partial(run, LOOP, task)
    outcomes = interleaved(runs, rounds)
    rows = []
    for system in runs:
        cost = [outcome.per_step for outcome in outcomes[system]]
        ratio, each = ratio_cells(cost, [outcome.per_step for outcome in outcomes[LOOP]])
        difference = largest_difference(outcomes[system][0], outcomes[LOOP][0])
        if difference > SAME_WORK:
            raise SystemExit(f"{system} did other work: its parameters differ from the loop's by {difference:.1e}")
        microseconds = f"{statistics.median(cost) * 1e6:,.0f}"
        rows.append((system, microseconds, ratio, each, f"{difference:.0e}" if difference else "0"))
    return table(HEADERS, rows)


def largest_difference(one: Outcome, other: Outcome) -> float:
    return (one.parameters - other.parameters).abs().max().item()


def main() -> None:
    parser = command_line(__doc__, rounds=6)
    parser.add_argument("--gpt2", action="store_true", help="a GPT-2 of 4 layers x 128 instead of the perceptron")
    options = parser.parse_args()
    torch.set_num_threads(1)
    systems = [system for system in SYSTEMS if system not in options.without]
    clock = time.process_time  # user + system

    if not options.gpt2:
        task = Task(Perceptron, points, batch_size=8, measured_steps=2000, read=clock)
        section = measure(task, systems, options.rounds)
        report("step_cost", "Cost of a step: two-layer perceptron, 2,762 parameters, batch 8", [section], options.write)
        return

    sections = []
    for accumulation, steps in ((1, 40), (4, 12)):
        task = Task(gpt2, token_rows, batch_size=2, measured_steps=steps, accumulation=accumulation, read=clock)
        sections += [f"Accumulation {accumulation}, {steps} steps a round", measure(task, systems, options.rounds)]
    title = "Cost of a step: GPT-2, 4 layers x 128, context 128, vocabulary 1,024, batch 2"
    report("step_cost_gpt2", title, sections, options.write)


if __name__ == "__main__":
    main()
