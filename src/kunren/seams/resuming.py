"""Going on from a checkpoint: where its data stood, which arguments have changed, and what becomes of them."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from kunren.base.state import TrainerState
from kunren.checkpoint import parts
from kunren.checkpoint.formats.plain_values import plain
from kunren.checkpoint.layout import OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCHEDULER_NAME, TRAINING_ARGS_NAME
from kunren.data.batching.ranks import rows_together
from kunren.plan import Cursor

logger = logging.getLogger(__name__)

_SAVED_WITH_AN_OPTIMIZER = (OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, SCHEDULER_NAME)


def read_cursor(
    folder: Path, state: TrainerState, batches_per_epoch: int | None, num_examples: int | None, args: Any
) -> tuple[Cursor, bool]:
    """The cursor of a checkpoint, and whether its steps were of another size than this run's.

    A checkpoint of transformers has no cursor: there it follows from the step and from the sizes of this run.
    """
    accumulation, batch_size = args.gradient_accumulation_steps, rows_together(args)
    saved = parts.load_cursor(folder)
    if saved is None:
        return _cursor_by_steps(state.global_step, batches_per_epoch, accumulation), False
    epoch, done, rows = saved["epoch"], saved["batches_done"], saved["rows_before"]
    if saved["batch_size"] != batch_size:  # the same rows in the same order: counted, not batched
        done, rows = 0, rows + done * saved["batch_size"]
        rows = rows if num_examples is None else min(rows, num_examples)  # an epoch's last batch may be smaller
    changed = (saved["batch_size"], saved["accumulation_steps"]) != (batch_size, accumulation)
    return Cursor(epoch, done, saved["epoch_ended"], saved["broken_off"], rows), changed


def _cursor_by_steps(steps_done: int, batches_per_epoch: int | None, accumulation: int) -> Cursor:
    if batches_per_epoch is None:
        return Cursor(0, steps_done * accumulation)
    steps_per_epoch = max(-(-batches_per_epoch // accumulation), 1)
    epoch, steps = divmod(steps_done, steps_per_epoch)
    if steps == 0 and epoch > 0:
        return Cursor(epoch - 1, batches_per_epoch, epoch_ended=True)
    return Cursor(epoch, steps * accumulation)


def check_arguments(trainer: Any, checkpoint: Path, cursor: Cursor) -> None:
    """Report the arguments that differ from the checkpoint's; ValueError for those it cannot go on with."""
    from kunren.arguments import changes

    found = changes.compare(
        parts.load_training_args(checkpoint),
        plain(trainer.args.to_dict(), TRAINING_ARGS_NAME, unknown=repr),
        mid_epoch=cursor.batches_done + cursor.rows_before > 0 and not cursor.epoch_ended,
        has_optimizer=any((checkpoint / name).is_file() for name in _SAVED_WITH_AN_OPTIMIZER),
        own_optimizer=not trainer._made_optimizer,
        own_schedule=not trainer._made_scheduler,
    )
    changes.check(found, checkpoint)
    if found:
        logger.warning("The run goes on from %s with other arguments:\n%s", checkpoint, changes.table(found))


@final
class OptionsOfNow:
    """The options of this run's optimizer and schedule, to be put back over those that a checkpoint brings.

    Its state counts: moments, steps. Its options are those of the arguments it was made with, which may have changed.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Any) -> None:
        self.optimizer, self.scheduler = optimizer, scheduler
        # Some optimizers keep their state in the groups too: an option is what the constructor takes.
        known = {*inspect.signature(type(optimizer)).parameters, "weight_decay"} - {"params", "lr"}
        self.options = [{key: group[key] for key in group.keys() & known} for group in optimizer.param_groups]
        self.base_rates = list(scheduler.base_lrs) if isinstance(scheduler, LambdaLR) else None

    def apply(self) -> None:
        """Put them back; the rate becomes that of the step the schedule stands at."""
        for group, options in zip(self.optimizer.param_groups, self.options, strict=True):
            group.update(options)
        if self.base_rates is None:
            return
        schedule = self.scheduler
        schedule.base_lrs = self.base_rates
        step = schedule.last_epoch
        rates = [rate * factor(step) for rate, factor in zip(self.base_rates, schedule.lr_lambdas, strict=True)]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        schedule._last_lr = rates
