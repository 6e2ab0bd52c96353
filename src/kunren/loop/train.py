"""The training loop: forward, backward and step, in order, on one screen."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

from kunren.data.windows import Window
from kunren.loop.guards.out_of_memory import training_step_in_pieces, within_memory
from kunren.loop.guards.requests import EvaluationInterrupted
from kunren.loop.reports import loss_alone
from kunren.loop.run import Run, TrainHooks
from kunren.loop.stage import BETWEEN_STEPS, IN_UPDATE, IN_WINDOW

logger = logging.getLogger(__name__)

MICRO_BATCH_HOOKS = ("on_batch_fetched", "on_before_backward", "on_after_backward")


def training_steps(run: Run, do: TrainHooks) -> Iterator[int]:
    """Train until the plan is done or a callback says stop; yield the step number after every optimizer step."""
    plan, engine, state, control, fire = run.plan, run.engine, run.state, run.control, run.fire
    account = do.account

    account.begin()
    fire("on_train_begin")
    if run.evaluation_due or (plan.eval_on_start and state.global_step == 0):
        account.mark("callbacks")
        evaluate(run, do)

    for epoch in plan.epochs(after=state.global_step):
        fire("on_epoch_begin")
        account.mark("callbacks")
        exhausted = True
        for window in run.windows(epoch):  # the micro-batches of one optimizer step
            account.begin_step()
            run.stage = IN_WINDOW
            fire("on_step_begin")
            if run.guard is not None:
                run.guard.begin(run)
            if not within_memory(run, do, window, accumulate):
                engine.zero_gradients()  # stopped between micro-batches: the unfinished window is dropped
                account.end_step(is_done=False)
                exhausted = False
                break

            run.gradient_norm = engine.clip_gradients(run.optimizer, plan.max_grad_norm)
            fire("on_pre_optimizer_step")
            run.stage = IN_UPDATE
            stepped = run.guard.step(run, do, window) if run.guard is not None else engine.step(run.optimizer)
            try:
                fire("on_optimizer_step")
            finally:  # the weights have moved: whatever a callback raises, the step counts
                run.learning_rate = do._get_learning_rate()  # the rate this step used
                if stepped and run.steps_scheduler:
                    run.scheduler.step()
                engine.zero_gradients()
                run.advance(window)
                run.stage = BETWEEN_STEPS

            if engine.empty_cache_steps is not None and state.global_step % engine.empty_cache_steps == 0:
                engine.empty_cache()
            if account.is_detailed:
                account.mark("optimizer")
            fire("on_step_end")
            obey(run)
            account.end_step()
            settle(run, do)  # log, evaluate, save: what the callbacks asked for, always in this order
            yield state.global_step
            account.mark("callbacks")
            settle(run, do)  # what whoever iterates the steps asked for meanwhile
            if control.should_stop or state.global_step >= plan.max_steps:
                exhausted = False
                break

        end_epoch(run, do, exhausted)
        if control.should_training_stop or state.global_step >= plan.max_steps:
            break


def accumulate(run: Run, do: TrainHooks, window: Window) -> bool:
    """Forward and backward of each micro-batch of a window; False when a callback stopped in between."""
    losses = []
    do.hears_micro_batches = run.handles_any(MICRO_BATCH_HOOKS)
    do.reports.begin_window()
    for batch, is_last in window:
        if do.hears_micro_batches:
            run.fire("on_batch_fetched", batch=batch)
        with run.engine.accumulate(run.model, is_last):
            if run.pieces == 1:
                losses.append(loss_alone(do, do.training_step(run.model, batch, window.num_items)))
            else:
                losses.append(training_step_in_pieces(do, run.model, batch, window.num_items, run.pieces))
        do.reports.end_micro_batch()
        if not is_last:
            run.fire("on_substep_end")
            if run.control.should_stop and run.engine.world_size == 1:  # several stop together, after the step
                return False
    if do.account.is_detailed:
        do.account.mark("other")
    run.meter.hold(losses)
    return True


def end_epoch(run: Run, do: TrainHooks, exhausted: bool) -> None:
    """The end of a pass over the data, or of what was done of it."""
    do.account.mark("data")
    if exhausted and run.cursor.batches_done == run.cursor.rows_before == 0:
        end_of_data(run)
    run.end_epoch(exhausted)
    run.fire("on_epoch_end")
    do.account.mark("callbacks")
    if run.requests is not None and run.requests.stop and not run.cursor.epoch_ended:
        return  # asked to stop in mid-epoch: what belongs to its end happens when the resumed run gets there
    run.agree()
    settle(run, do)


def end_of_data(run: Run) -> None:
    """A pass gave nothing: another would not either. ValueError if there never was anything."""
    state, plan = run.state, run.plan
    if state.global_step == 0:
        raise ValueError("The training data gave no batch: the stream is empty, or its iterator was used up before.")
    logger.warning(
        "The training data gave no batch in pass %d: the run ends at step %d of %d. A stream that is to be passed over "
        "again has to give a new iterator each time.",
        run.cursor.epoch + 1,
        state.global_step,
        plan.max_steps,
    )
    run.control.should_training_stop = run.control.should_log = True
    run.control.should_save = run.saves_at_the_end


def obey(run: Run) -> None:
    """Set the control flags for what signals, a file or the clock have asked for."""
    if run.requests is not None:
        run.requests.obey(run.control)
    run.agree()


def settle(run: Run, do: TrainHooks) -> None:
    """Log, evaluate, save, where the control flags ask for it. Only here does a number reach the host."""
    control, account = run.control, do.account
    has_work = control.should_log or control.should_evaluate or control.should_save
    if control.should_log and run.meter.has_news:
        log(run, do)
        account.mark("callbacks")
    if control.should_evaluate:
        is_new_best = evaluate(run, do)
        if run.save_at_new_best:
            control.should_save = control.should_save or is_new_best
    if control.should_save:
        if do.save_in_training():
            run.fire("on_save")
        account.mark("checkpoint")
        control.should_save = False
    if has_work:
        run.agree()  # callbacks have seen it


def log(run: Run, do: TrainHooks) -> None:
    """Log what has been measured since the last time: the host waits for the device."""
    if run.guard is not None:
        run.guard.read(run)
    logs = run.meter.logs(run.engine, run.gradient_norm, run.learning_rate)
    if run.guard is None and not (math.isfinite(logs["loss"]) and math.isfinite(logs.get("grad_norm", 0.0))):
        run.fire("on_nonfinite", action="warn", logs=logs)
    do.log_in_training(logs, run.start_time)


def evaluate(run: Run, do: TrainHooks) -> bool:
    """Evaluate; whether the result is the best so far. A request to stop ends the evaluation, which stays due."""
    run.evaluation_due = False
    try:
        return do.evaluate_in_training()
    except EvaluationInterrupted:
        run.evaluation_due = True
        run.control.should_evaluate = False
        run.control.should_save = run.control.should_training_stop = True
        if run.requests is not None:
            run.requests.stop = True
        return False
    except BaseException:
        run.evaluation_due = True  # a callback failed: the best metric and a schedule that waits for one lack it
        raise
    finally:
        do.account.mark("evaluation")
