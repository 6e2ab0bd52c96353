"""How long training lasts and how large its steps are."""

from __future__ import annotations

from dataclasses import dataclass

from kunren.arguments.checks import at_least, refuse
from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Duration(ArgumentGroup):
    per_device_train_batch_size: int = explained(8, "Examples in one micro-batch, on each device.")
    num_train_epochs: float = explained(3.0, "Passes over the training data; 0.5 is half a pass.")
    max_steps: int = explained(
        -1, "Optimizer steps in all; above 0 they take the place of num_train_epochs. -1 or 0: not set."
    )
    gradient_accumulation_steps: int = explained(
        1, "Micro-batches whose gradients make one optimizer step; 1: no accumulation."
    )
    auto_find_batch_size: bool = explained(
        False, "Compute a batch in smaller pieces when memory runs out. kunren always does: this changes nothing."
    )

    def check(self) -> None:
        at_least(self, "per_device_train_batch_size", 1, "a batch needs at least one example.")
        at_least(self, "gradient_accumulation_steps", 1, "1 means one optimizer step per micro-batch.")
        at_least(self, "num_train_epochs", 0, "it must be 0 or more; max_steps counts steps instead.")
        if self.num_train_epochs == float("inf"):
            raise refuse("num_train_epochs", self.num_train_epochs, "give a number, or limit the run with max_steps.")
        # 0 is "not set", as -1 is: command lines and configuration files have always used both.
        at_least(self, "max_steps", -1, "it must be above 0, or -1 for as many steps as num_train_epochs gives.")
