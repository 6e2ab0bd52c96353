"""Memory and time of a loss over a large vocabulary: all logits at once, kunren's chunks, and torch's own.

    python benchmarks/chunked_loss.py [--rounds 5] [--vocabulary 128000] [--width 512] [--tokens 2048] [--write]

A linear head and the cross-entropy, in float32, forward and backward, then forward only as in evaluation. Each
measurement is a process of its own, which reads its peak of resident memory over what it held before: hidden states,
weights and labels. The gradient of the weights is part of every peak in training. Needs 4 GiB of memory, and Linux.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from measure import command_line, interleaved, ratio_cells, report, table
from torch import Tensor

PLAIN = "all logits"
HEADERS = ("", "peak MiB", "part of all logits'", "CPU s", "x all logits, CPU", "each round", "loss")


class Measured(NamedTuple):
    peak: float
    seconds: float
    loss: float
    gradients: float  # the norm of both, to see that all systems compute the same


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), labels)


def chunked(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    from kunren.losses.functions.chunked_cross_entropy import chunked_cross_entropy

    return chunked_cross_entropy(hidden, weight, labels)


def torchs_own(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    library: Any = torch
    options = library.nn.LinearCrossEntropyOptions()
    loss: Tensor = library.nn.functional.linear_cross_entropy(hidden, weight, labels, options=options)
    return loss


SYSTEMS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {PLAIN: plain, "kunren": chunked}
if hasattr(F, "linear_cross_entropy") and hasattr(torch.nn, "LinearCrossEntropyOptions"):
    SYSTEMS["torch's linear_cross_entropy"] = torchs_own


def here(system: str, tokens: int, width: int, vocabulary: int, trains: bool) -> Measured:
    """One loss, in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden, weight = torch.empty(tokens, width).normal_(), torch.empty(vocabulary, width).normal_(std=0.04)
    labels = torch.randint(0, vocabulary, (tokens,))
    compute = SYSTEMS[system]
    few = labels[:2] % 8
    compute(
        hidden[:2, :8].clone().requires_grad_(), weight[:8, :8].clone(), few
    ).backward()  # loads what torch loads late
    hidden.requires_grad_(trains)
    weight.requires_grad_(trains)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak of resident memory starts again
    held, start = peak_mib(), cpu_seconds()
    loss = compute(hidden, weight, labels)
    norm = 0.0
    if trains:
        loss.backward()
        spent, peak = cpu_seconds() - start, peak_mib() - held
        norm = float(hidden.grad.norm() + weight.grad.norm())  # type: ignore[union-attr]
    else:
        spent, peak = cpu_seconds() - start, peak_mib() - held
    return Measured(peak, spent, loss.item(), norm)


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def in_a_process(options: argparse.Namespace, system: str, trains: bool) -> Measured:
    sizes = [f"--{name}={getattr(options, name)}" for name in ("tokens", "width", "vocabulary")]
    command = [sys.executable, __file__, "--one", system, *sizes, *(["--trains"] if trains else [])]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return Measured(**json.loads(output))


def section(options: argparse.Namespace, trains: bool) -> str:
    runs = {name: partial(in_a_process, options, name, trains) for name in SYSTEMS if name not in options.without}
    measured = interleaved(runs, options.rounds)
    losses = [(one.loss, one.gradients) for several in measured.values() for one in several]
    assert all(abs(a - b) <= 1e-5 * abs(b) for one in losses for a, b in zip(one, losses[0], strict=True)), losses
    rows = []
    for name, several in measured.items():
        peak = statistics.median(one.peak for one in several)
        of_plain = statistics.median(one.peak for one in measured[PLAIN])
        seconds = [one.seconds for one in several]
        ratios = ratio_cells(seconds, [one.seconds for one in measured[PLAIN]])
        part = f"1/{of_plain / peak:.1f}"
        rows.append((name, f"{peak:.0f}", part, f"{statistics.median(seconds):.1f}", *ratios, f"{several[0].loss:.6f}"))
    heading = "## Training: forward and backward" if trains else "## Evaluation: forward only"
    return f"{heading}\n\n{table(HEADERS, rows)}"


def main() -> None:
    parser = command_line(__doc__, rounds=5)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--trains", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.tokens, options.width, options.vocabulary
    if options.one is not None:
        print(json.dumps(here(options.one, *sizes, options.trains)._asdict()))
        return
    title = "Linear head and cross-entropy, {} tokens, width {}, vocabulary {}, float32".format(*sizes)
    report("chunked_loss", title, [section(options, True), section(options, False)], options.write)


if __name__ == "__main__":
    main()
