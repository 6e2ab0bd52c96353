"""The training loop: forward, backward and step, in order, on one screen."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from kunren.loop.run import Run, TrainHooks

logger = logging.getLogger(__name__)


def training_steps(run: Run, do: TrainHooks) -> Iterator[int]:
    """Train until the plan is done or a callback says stop; yield the step number after every optimizer step."""
    plan, engine, state, control, fire = run.plan, run.engine, run.state, run.control, run.fire

    fire("on_train_begin")
    if plan.eval_on_start and state.global_step == 0:
        do.evaluate_in_training()

    for epoch in plan.epochs(after=state.global_step):
        fire("on_epoch_begin")
        exhausted = True
        for window in run.windows(epoch):  # the micro-batches of one optimizer step
            fire("on_step_begin")
            for batch, is_last in window:
                with engine.accumulate(run.model, is_last):
                    loss = do.training_step(run.model, batch, window.num_items)  # forward + backward
                run.meter.add(loss)
                if not is_last:
                    fire("on_substep_end")
                    if control.should_stop:
                        break
            if not is_last:
                engine.zero_gradients()  # stopped between micro-batches: the unfinished window is dropped
                exhausted = False
                break

            run.gradient_norm = engine.clip_gradients(run.optimizer, plan.max_grad_norm)
            fire("on_pre_optimizer_step")
            stepped = engine.step(run.optimizer)
            fire("on_optimizer_step")
            run.learning_rate = do._get_learning_rate()  # the rate this step used
            if stepped and run.steps_scheduler:
                run.scheduler.step()
            engine.zero_gradients()

            run.advance(window)
            run.meter.end_step(window.is_empty)
            fire("on_step_end")
            settle(run, do)  # log, evaluate, save: what the callbacks asked for, always in this order
            yield state.global_step
            if control.should_stop or state.global_step >= plan.max_steps:
                exhausted = False
                break

        if run.cursor.batches_done == 0:
            logger.warning("Epoch %d gave no batch: training ends at step %d.", epoch, state.global_step)
            control.should_training_stop = True
        run.end_epoch(exhausted)
        fire("on_epoch_end")
        settle(run, do)
        if control.should_training_stop or state.global_step >= plan.max_steps:
            break


def settle(run: Run, do: TrainHooks) -> None:
    """Log, evaluate, save, where the control flags ask for it. Only here does a number reach the host."""
    control = run.control
    if control.should_log and run.meter.has_news:
        do.log(run.meter.logs(run.engine, run.gradient_norm, run.learning_rate), run.start_time)
    if control.should_evaluate:
        is_new_best = do.evaluate_in_training()
        if run.save_at_new_best:
            control.should_save = is_new_best
    if control.should_save:
        do.save_in_training()
        run.fire("on_save")
