"""CPU time of clipping the gradients and stepping AdamW: torch's three forms of it, and what kunren does.

    python benchmarks/optimizer_step.py [--rounds 9] [--write]

Every system starts from the same weights and gets the same gradients. torch's systems call `clip_grad_norm_` and
`step`, as a hand-written loop does; kunren's are its backend's two verbs, with the optimizer that `optim` names. The
weights after the last step are compared with those of torch's fused form, of which the default promises every bit, and
with AdamW computed in float64, which tells how far rounding takes each of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from torch import Tensor, nn
from torch.optim import AdamW

from kunren import Trainer, TrainingArguments
from kunren.engine import choose

MAX_NORM, LEARNING_RATE, DECAY = 1.0, 1e-3, 0.0
CHECKED_STEPS, ROUNDING = 100, 1e-5
BASE, DEFAULT = "torch, fused", "kunren, adamw_torch_fused (the default)"
HEADERS = ("system", "CPU us/step", "ratio to torch's fused", "in each round", "to fused", "to float64")
Shapes = Sequence[tuple[int, ...]]


def gpt2_shapes(layers: int, width: int, vocabulary: int, context: int) -> Shapes:
    """GPT-2's weights in their order: 12 to a layer, and four."""
    block = [(width,), (width,), (width, 3 * width), (3 * width,), (width, width), (width,), (width,), (width,)]
    block += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return [(vocabulary, width), (context, width), *(block * layers), (width,), (width,)]


MODELS: dict[str, tuple[Shapes, int]] = {  # with the number of steps in a round
    "Two-layer perceptron: 4 tensors, 2,762 weights": ([(64, 32), (64,), (10, 64), (10,)], 2000),
    "Adapters, rank 8, on 24 layers: 96 tensors, 1.2 million weights": ([(8, 768), (768, 8)] * 48, 60),
    "GPT-2, 12 layers x 128: 148 tensors, 2.5 million weights": (gpt2_shapes(12, 128, 1024, 128), 40),
    "One matrix: 16.8 million weights": ([(4096, 4096)], 4),
}


@dataclass
class System:
    """Weights with gradients, and what one step with them is."""

    weights: list[nn.Parameter]
    step: Callable[[], None]


def weights_of(shapes: Shapes, dtype: torch.dtype = torch.float32) -> nn.ParameterList:
    generator = torch.Generator().manual_seed(0)
    return nn.ParameterList([torch.randn(shape, generator=generator).mul_(0.02).to(dtype) for shape in shapes])


def set_gradients(weights: Sequence[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator).mul_(0.01).to(weight.dtype)


def by_torch(shapes: Shapes, dtype: torch.dtype = torch.float32, **form: bool) -> System:
    weights = list(weights_of(shapes, dtype).parameters())
    optimizer = AdamW(weights, lr=LEARNING_RATE, weight_decay=DECAY, **form)

    def step() -> None:
        nn.utils.clip_grad_norm_(weights, MAX_NORM)
        optimizer.step()

    return System(weights, step)


def by_kunren(shapes: Shapes, optim: str) -> System:
    model = weights_of(shapes)
    arguments = TrainingArguments(
        "unused", optim=optim, learning_rate=LEARNING_RATE, weight_decay=DECAY, max_grad_norm=MAX_NORM, use_cpu=True
    )
    kind, options = Trainer.get_optimizer_cls_and_kwargs(arguments, model)
    optimizer = kind(model.parameters(), weight_decay=DECAY, **options)
    backend = choose(arguments)
    backend.prepare(model, optimizer)

    def step() -> None:
        backend.clip_gradients(optimizer, MAX_NORM)
        backend.step(optimizer)

    return System(list(model.parameters()), step)


SYSTEMS: dict[str, Callable[[Shapes], System]] = {
    BASE: partial(by_torch, fused=True),
    "torch, foreach": partial(by_torch, foreach=True),
    "torch, one by one": partial(by_torch, foreach=False),
    DEFAULT: partial(by_kunren, optim="adamw_torch_fused"),
    "kunren, adamw_torch": partial(by_kunren, optim="adamw_torch"),
}
AGAIN = "torch, fused again"


def timed(system: System, steps: int) -> float:
    """CPU seconds of a step. The gradients stay: each step scales them again, to the same norm."""
    before = time.process_time()
    for _ in range(steps):
        system.step()
    return (time.process_time() - before) / steps


def trained(system: System) -> list[Tensor]:
    """The weights after steps with new gradients each."""
    for seed in range(CHECKED_STEPS):
        set_gradients(system.weights, seed)
        system.step()
    return [weight.detach().double() for weight in system.weights]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max((left - right).abs().max().item() for left, right in zip(one, other, strict=True))


def measure(shapes: Shapes, steps: int, names: Sequence[str], rounds: int) -> str:
    few = [shape if len(shape) == 1 else tuple(min(size, 256) for size in shape) for shape in shapes]
    exact = trained(by_torch(few, torch.float64, foreach=False))
    fused = trained(SYSTEMS[BASE](few))
    rows, systems = [], {name: SYSTEMS[name](shapes) for name in names} | {AGAIN: SYSTEMS[BASE](shapes)}
    for system in systems.values():
        set_gradients(system.weights, 0)
        timed(system, 2)  # makes the moments
    cost = interleaved({name: partial(timed, system, steps) for name, system in systems.items()}, rounds)
    for name in systems:
        ratio, each = ratio_cells(cost[name], cost[BASE])
        weights = fused if name == AGAIN else trained(SYSTEMS[name](few))
        to_fused, to_exact = largest_difference(weights, fused), largest_difference(weights, exact)
        if to_exact > ROUNDING or (name == DEFAULT and to_fused > 0):
            raise SystemExit(
                f"{name} did other work: {to_fused:.1e} off torch's fused form, {to_exact:.1e} off float64"
            )
        microseconds = f"{statistics.median(cost[name]) * 1e6:,.1f}"
        rows.append((name, microseconds, ratio, each, f"{to_fused:.0e}" if to_fused else "0", f"{to_exact:.0e}"))
    return table(HEADERS, rows)


def main() -> None:
    options = command_line(__doc__, rounds=9).parse_args()
    torch.set_num_threads(1)
    names = [name for name in SYSTEMS if name == BASE or name not in options.without]
    sections = [
        "The last two columns: how far the weights are from those of torch's fused form, and of float64, after "
        f"{CHECKED_STEPS} steps, at most (matrices cut to 256 x 256). The benchmark fails where the second is above "
        f"{ROUNDING:.0e}, or the first of the default not 0."
    ]
    for title, (shapes, steps) in MODELS.items():
        sections += [f"{title}, {steps} steps a round", measure(shapes, steps, names, options.rounds)]
    report("optimizer_step", "A step of AdamW with clipping", sections, options.write)


if __name__ == "__main__":
    main()
