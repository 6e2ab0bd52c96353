"""From arguments and sizes to numbers: every duration of a run, resolved once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from kunren.data.batching.ranks import rows_together


@dataclass(frozen=True)
class Cursor:
    """How far a run has come in its data: passes begun, and micro-batches used up in the current one.

    `epoch_ended` tells a checkpoint taken at the end of an epoch from one taken after its last step: only in the
    second case is what happens at the end of an epoch (an evaluation, say) still due. `broken_off`: a callback has
    asked to end the epoch here, before its data is used up. `rows_before`: rows of this epoch that were used up in
    batches of another size, before the first of `batches_done`.
    """

    epoch: int = 0
    batches_done: int = 0
    epoch_ended: bool = False
    broken_off: bool = False
    rows_before: int = 0

    def start(self) -> Cursor:
        """Where training goes on: at the next epoch if this one has ended."""
        return Cursor(self.epoch + 1) if self.epoch_ended else self


@dataclass(frozen=True)
class Plan:
    """The durations of one run. `batches_per_epoch` is None for a stream whose length nobody knows."""

    max_steps: int
    num_train_epochs: int | None
    batches_per_epoch: int | None
    accumulation_steps: int
    warmup_steps: int
    max_grad_norm: float | None
    train_batch_size: int
    num_examples: int | None
    drop_last: bool = False
    eval_on_start: bool = False
    start: Cursor = field(default_factory=Cursor)

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps in one pass over the data; the last one may hold fewer micro-batches."""
        if self.batches_per_epoch is None:
            return None
        return max(math.ceil(self.batches_per_epoch / self.accumulation_steps), 1)

    @property
    def examples_per_step(self) -> float:
        """On average, where the number of examples is known: batches may be of unequal sizes."""
        if self.num_examples is None or not self.steps_per_epoch or self.drop_last:
            return float(self.train_batch_size * self.accumulation_steps)
        return self.num_examples / self.steps_per_epoch

    def share_done(self, cursor: Cursor) -> float:
        """How much of the cursor's epoch is done, between 0 and 1; needs data of known length."""
        assert self.batches_per_epoch is not None
        if cursor.rows_before == 0 or not self.num_examples:
            return cursor.batches_done / self.batches_per_epoch
        before = cursor.rows_before / self.num_examples
        batches = self.batches_from(cursor.rows_before)
        return before + (1 - before) * cursor.batches_done / batches if batches else 1.0

    def batches_from(self, rows_before: int) -> int:
        """The batches of an epoch that are made of the rows after the first `rows_before`."""
        assert self.batches_per_epoch is not None
        if rows_before == 0 or not self.num_examples:
            return self.batches_per_epoch
        rows = self.num_examples - rows_before
        return rows // self.train_batch_size if self.drop_last else -(-rows // self.train_batch_size)

    def epochs(self, after: int) -> Iterator[int]:
        """The epochs still to go, given the optimizer steps already done; none when the plan is done."""
        start = self.start
        # An epoch that a checkpoint caught between its last step and its end still has to end.
        used_up = start.broken_off or (self.batches_per_epoch is not None and self.share_done(start) >= 1)
        end_is_due = used_up and not start.epoch_ended
        if after >= self.max_steps and not end_is_due:
            return iter(())
        first = self.start.start().epoch
        if self.num_train_epochs is None:
            return itertools.count(first)
        return iter(range(first, self.num_train_epochs))


def make_plan(
    args: Any,
    *,
    batches_per_epoch: int | None,
    num_examples: int | None,
    start: Cursor,
    steps_of_other_size: int | None = None,
) -> Plan:
    """Resolve durations; ValueError where a stream has no `max_steps` or the data set is empty.

    `steps_of_other_size`: the steps that a resumed run made with another batch size or accumulation. They say nothing
    of how many are left: that follows from the data.
    """
    accumulation = args.gradient_accumulation_steps
    epochs: int | None
    if batches_per_epoch is None:
        if args.max_steps <= 0:
            raise ValueError(
                "The training data has no length, so the number of steps cannot be derived from num_train_epochs="
                f"{args.num_train_epochs}: set max_steps to the number of optimizer steps to train for."
            )
        max_steps, epochs = args.max_steps, None
    else:
        if batches_per_epoch == 0:
            raise ValueError(
                "The training data gives no batch: the data set is empty, or dataloader_drop_last=True dropped its "
                f"only batch (per_device_train_batch_size={args.per_device_train_batch_size})."
            )
        steps_per_epoch = max(math.ceil(batches_per_epoch / accumulation), 1)
        if args.max_steps > 0:
            max_steps, epochs = args.max_steps, math.ceil(args.max_steps / steps_per_epoch)
        else:
            max_steps, epochs = math.ceil(args.num_train_epochs * steps_per_epoch), math.ceil(args.num_train_epochs)
    plan = Plan(
        max_steps=max_steps,
        num_train_epochs=epochs,
        batches_per_epoch=batches_per_epoch,
        accumulation_steps=accumulation,
        warmup_steps=args.get_warmup_steps(max_steps),
        max_grad_norm=args.max_grad_norm if args.max_grad_norm else None,
        train_batch_size=rows_together(args),
        num_examples=num_examples,
        drop_last=args.dataloader_drop_last,
        eval_on_start=args.eval_on_start,
        start=start,
    )
    if steps_of_other_size is None or args.max_steps > 0 or plan.steps_per_epoch is None:
        return plan
    at = start.start()
    in_this_epoch = math.ceil((plan.batches_from(at.rows_before) - at.batches_done) / accumulation)
    after_it = (args.num_train_epochs - at.epoch - 1) * plan.steps_per_epoch  # below 0: it ends within this epoch
    total = steps_of_other_size + max(math.ceil(in_this_epoch + after_it), 0)
    return replace(plan, max_steps=total, warmup_steps=args.get_warmup_steps(total))
