"""The default policy: when to log, evaluate, save and stop, from the arguments."""

from __future__ import annotations

from typing import Any

from kunren.arguments.choices import IntervalStrategy, SaveStrategy
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback


class DefaultFlowCallback(TrainerCallback):
    """Sets the control flags by the strategies and intervals of the arguments; comes first among the callbacks."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        step = state.global_step
        is_last = step >= state.max_steps

        # At the last step the unfinished window is logged too: else a run shorter than `logging_steps` shows nothing.
        if (args.logging_strategy == IntervalStrategy.STEPS and (is_last or step % state.logging_steps == 0)) or (
            step == 1 and args.logging_first_step
        ):
            control.should_log = True

        if (
            args.eval_strategy == IntervalStrategy.STEPS
            and step >= args.eval_delay
            and (is_last or step % state.eval_steps == 0)
        ):
            control.should_evaluate = True

        if args.save_strategy == SaveStrategy.STEPS and (
            is_last or (state.save_steps > 0 and step % state.save_steps == 0)
        ):
            control.should_save = True

        if is_last:
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.logging_strategy == IntervalStrategy.EPOCH or (
            # Another callback ended the run before its last step: log what the unfinished window holds.
            control.should_training_stop
            and state.global_step < state.max_steps
            and args.logging_strategy == IntervalStrategy.STEPS
            and state.global_step % state.logging_steps != 0
        ):
            control.should_log = True

        if args.eval_strategy == IntervalStrategy.EPOCH and state.epoch >= args.eval_delay:
            control.should_evaluate = True

        if args.save_strategy == SaveStrategy.EPOCH:
            control.should_save = True
