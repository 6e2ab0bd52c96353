"""Seeds, determinism, and looking for faults."""

from __future__ import annotations

from dataclasses import dataclass

from kunren.arguments.checks import enum_member
from kunren.arguments.choices import DebugOption
from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Reproducibility(ArgumentGroup):
    full_determinism: bool = explained(
        False, "Use deterministic kernels only, and raise an error where there is none; slower."
    )
    seed: int = explained(
        42,
        "Seed of dropout, of the weights that model_init makes, and of the order of the data if data_seed"
        " is not given.",
    )
    data_seed: int | None = explained(None, "Seed of the order of the data; `seed` if not given.")
    debug: str | list[DebugOption] = explained(
        "", "Switch on, separated by blanks: underflow_overflow (stop at the first overflow), tpu_metrics_debug."
    )
    skip_memory_metrics: bool = explained(True, "Do not report memory use, which costs time.")

    def normalise(self) -> None:
        options = self.debug.replace(",", " ").split() if isinstance(self.debug, str) else self.debug
        self.debug = [enum_member(DebugOption, "debug", option) for option in options or []]
