"""When checkpoints are written, how many stay, and how a run goes on from one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import at_least, enum_member, interval, refuse, whole_steps
from kunren.arguments.choices import SaveStrategy
from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Saving(ArgumentGroup):
    save_only_model: bool = explained(False, "Save weights only: smaller, but such a checkpoint cannot be resumed.")
    save_strategy: SaveStrategy | str = explained("steps", "When to save: 'no', 'steps', 'epoch' or 'best'.")
    save_steps: float = explained(500, "Save every that many steps; below 1 a share of the run.")
    save_on_each_node: bool = explained(False, "Save on every machine, not only on the first.")
    async_save: bool = explained(True, "Write checkpoints in the background, from a copy in host memory (kunren only).")
    save_minutes: float | None = explained(
        None, "Also save when so many minutes have passed since the last save; None: never (kunren only)."
    )
    max_minutes: float | None = explained(
        None, "Save and stop before so many minutes are over; None: no limit (kunren only)."
    )
    save_total_limit: int | None = explained(None, "Keep that many checkpoints, the best one among them; None: all.")
    save_best_limit: int | None = explained(
        None,
        "Keep so many of the best, beside the last save_total_limit or, without that, the newest. None: "
        "save_total_limit alone counts (kunren only).",
    )
    enable_jit_checkpoint: bool = explained(
        False, "Save when the scheduler announces the end (SIGTERM). kunren does so anyway where checkpoints are saved."
    )
    ignore_data_skip: bool = explained(False, "After a resume, start the data over instead of going on in it.")
    restore_callback_states_from_checkpoint: bool = explained(
        True, "After a resume, give callbacks the state they were saved with. transformers does so only when asked."
    )
    resume_from_checkpoint: str | None = explained(
        None,
        "The checkpoint that train() resumes when it is given none: a path, True for the newest, or 'auto' for the "
        "newest if there is one (kunren only). None: start anew.",
    )

    def normalise(self) -> None:
        self.save_strategy = enum_member(SaveStrategy, "save_strategy", self.save_strategy)
        self.save_steps = whole_steps(self.save_steps)
        checkpoint: Any = self.resume_from_checkpoint
        if isinstance(checkpoint, os.PathLike):
            self.resume_from_checkpoint = os.fspath(checkpoint)

    def check(self) -> None:
        if self.save_strategy == SaveStrategy.STEPS:
            interval(self, "save_steps", "save_strategy")
        at_least(self, "save_total_limit", 1, "give the number of checkpoints to keep, or None to keep all.")
        at_least(self, "save_best_limit", 1, "give the number of best checkpoints to keep, or None.")
        for name in ("save_minutes", "max_minutes"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise refuse(name, getattr(self, name), "give a number of minutes above 0, or None.")
