"""Where the run writes, and which parts of a script run at all."""

from __future__ import annotations

import os
from dataclasses import dataclass

from kunren.arguments.checks import refuse
from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Output(ArgumentGroup):
    output_dir: str | None = explained(
        None, "Folder for checkpoints, logs and the final state; 'trainer_output' if not given. `~` is expanded."
    )

    def normalise(self) -> None:
        self.output_dir = os.path.expanduser(
            os.fspath("trainer_output" if self.output_dir is None else self.output_dir)
        )

    def check(self) -> None:
        if not self.output_dir:
            raise refuse("output_dir", self.output_dir, "give the path of a folder.")


@dataclass(init=False, repr=False, eq=False)
class ScriptFlags(ArgumentGroup):
    """For scripts only: the Trainer does not read them."""

    do_train: bool = explained(False, "For your script: whether to train. The Trainer does not read it.")
    do_eval: bool = explained(False, "For your script: whether to evaluate. On when eval_strategy is not 'no'.")
    do_predict: bool = explained(
        False, "For your script: whether to predict on the test set. The Trainer does not read it."
    )
