"""The beginning and the end of a run: what `train()` builds before the loop, and what it leaves behind."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kunren.arguments.logging_and_tracking import profiled_steps
from kunren.base.state import TrainerState
from kunren.base.types import TrainOutput
from kunren.checkpoint import layout, parts
from kunren.checkpoint.lock import RunLock
from kunren.checkpoint.store import clean_leftovers
from kunren.data.loaders import batches_in, examples_in
from kunren.data.reader import reader_for
from kunren.data.wrappers.mixture import follow_sources
from kunren.engine.backends.description import announce
from kunren.loop.guards import guard_for, start_watchdog
from kunren.loop.guards.decide_once import decided_once
from kunren.loop.guards.requests import Requests
from kunren.loop.guards.together import batches_of_all, may_disagree, meter_of_process
from kunren.loop.meter import LossMeter, speed_metrics
from kunren.loop.run import Run
from kunren.loop.stage import BEST_LOADED
from kunren.model import features
from kunren.optim.schedule import waits_for_metric
from kunren.plan import Cursor, Plan, make_plan
from kunren.seams.resuming import check_arguments, read_cursor
from kunren.seams.validation import check_training, check_writable

if TYPE_CHECKING:
    from kunren.trainer import Trainer

logger = logging.getLogger(__name__)

STOPPED = "Stopped at step %d of %d, as asked. Go on with train(resume_from_checkpoint=True)."


def prepare_run(trainer: Trainer, resume_from_checkpoint: str | bool | None) -> Run:
    """Resume or not, data, plan, optimizer: everything the loop works with, in this order."""
    args = trainer.args
    check_training(trainer)
    resume = resume_from_checkpoint if resume_from_checkpoint is not None else args.resume_from_checkpoint
    trainer.prepare_loss_scale()
    _note_who_makes_the_optimizer(trainer)
    saves = args.save_strategy != "no" or args.save_minutes is not None or args.max_minutes is not None
    checkpoint = _checkpoint_to_resume(trainer, resume, saves)
    if trainer.model_init is not None:
        trainer._seed_everything()
        trainer.adopt_model(trainer.call_model_init(trainer._trial))
        trainer.optimizer = trainer.lr_scheduler = None
    trainer.check_metric_name()
    trainer._train_batch_size = args.train_batch_size  # the script may have set another since
    loader = trainer.get_train_dataloader()
    plan = _plan_for(trainer, loader, checkpoint)
    start_state(trainer, plan)
    switch_features_on(trainer)
    trainer.create_optimizer_and_scheduler(num_training_steps=plan.max_steps)
    assert trainer.optimizer is not None
    trainer.model_wrapped = trainer.engine.prepare(features.compiled(trainer.model, args), trainer.optimizer)

    run = Run(
        plan=plan,
        engine=trainer.engine,
        model=trainer.model_wrapped,
        optimizer=trainer.optimizer,
        scheduler=trainer.lr_scheduler,
        state=trainer.state,
        control=trainer.control,
        meter=LossMeter(trainer.engine.device, args.logging_nan_inf_filter),
        reader=reader_for(loader, args, trainer.data_seed, trainer.engine),
        get_batches=trainer._get_batches,
        fire=trainer.fire,
        handles_any=trainer.callback_handler.handles_any,
        save_at_new_best=args.save_strategy == "best",
        saves_at_the_end=args.save_strategy not in ("no", "best"),
        steps_scheduler=not waits_for_metric(trainer.lr_scheduler),
        cursor=plan.start,
        guard=guard_for(args, trainer.state.logging_steps),
    )
    run.may_disagree = trainer.engine.world_size > 1 and may_disagree(trainer)
    trainer.reports = run.meter.reports
    run.meter.leaves_out_non_finite = args.nonfinite in ("skip", "rollback")
    follow_sources(run, trainer.counted, trainer.loss_scale)
    if checkpoint is not None:
        _resume(trainer, run, checkpoint)
    if saves:
        run.requests = Requests(trainer.run_folder(), args.save_minutes, args.max_minutes)
        trainer._undo.append(run.requests.listen())
    run.first_step, run.first_tokens = run.state.global_step, run.state.num_input_tokens_seen
    trainer.start_account()
    _show_to_callbacks(trainer, loader)
    if checkpoint is not None:
        trainer.fire("on_checkpoint_loaded", checkpoint=checkpoint)
    trainer.engine.zero_gradients()  # what a broken-off run, or anybody else, has left behind
    trainer.model.train()
    trainer.switch_optimizer("train")
    return run


def _checkpoint_to_resume(trainer: Trainer, resume: Any, saves: bool) -> Path | None:
    """Where the run goes on from, if anywhere; the folder is put in order first, and claimed by a run that saves."""
    folder = trainer.run_folder()

    def found() -> Path | None:
        if saves:
            check_writable(folder)
            if trainer.args.should_save:
                lock = RunLock(folder)
                lock.acquire()
                trainer._undo.append(lock.release)
        if trainer.engine.process_index > 0:
            return None  # another host may see another list of files
        clean_leftovers(folder)  # also puts back a checkpoint whose replacement was cut off
        return layout.resolve(_resume_request(resume), folder)

    checkpoint = decided_once(trainer.engine, found)
    if checkpoint is None and trainer.args.save_strategy != "no":
        _warn_of_other_run(folder)
    return checkpoint


def _show_to_callbacks(trainer: Trainer, loader: Any) -> None:
    handler = trainer.callback_handler
    handler.model, handler.train_dataloader = trainer.model, loader
    handler.optimizer, handler.lr_scheduler = trainer.optimizer, trainer.lr_scheduler
    start_watchdog(trainer)
    announce(trainer.engine, trainer.args)
    if trainer.args.profile_steps is not None:
        from kunren.callbacks.profiler import ProfilerCallback

        profiler = ProfilerCallback(*profiled_steps(trainer.args.profile_steps), trainer.run_folder())
        trainer._undo.append(profiler.attach(handler, trainer.account.set_apart))


def _warn_of_other_run(folder: Path) -> None:
    present = [path.name for path in layout.list_checkpoints(folder)]
    if present:
        logger.warning(
            "%s holds checkpoints of another run (%s), and this one starts from the beginning: the next "
            "resume_from_checkpoint=True would take the highest step. Choose a new output_dir, or resume.",
            folder,
            ", ".join(present),
        )


def _resume_request(resume: Any) -> str | os.PathLike[str] | bool | None:
    """Command lines and YAML files give these words as strings."""
    words = {"true": True, "false": False, "": False, "none": None, "auto": layout.AUTO}
    if resume is not None and not isinstance(resume, (bool, str, os.PathLike)):
        raise TypeError(f"resume_from_checkpoint is {resume!r}: give a path, True or 'auto'.")
    return words.get(resume.lower(), resume) if isinstance(resume, str) else resume


def _plan_for(trainer: Trainer, loader: object, checkpoint: Path | None) -> Plan:
    args, batches, examples = trainer.args, batches_in(loader), examples_in(loader)
    start, steps_of_other_size = Cursor(), None
    if trainer.engine.world_size > 1:
        batches = batches_of_all(trainer.engine, loader, batches)
    if checkpoint is not None:
        state = parts.load_trainer_state(checkpoint)
        start, changed = read_cursor(checkpoint, state, batches, examples, args)
        steps_of_other_size = state.global_step if changed else None
        check_arguments(trainer, checkpoint, start)
        if args.ignore_data_skip:
            start = Cursor(start.start().epoch)
    return make_plan(
        args,
        batches_per_epoch=batches,
        num_examples=examples,
        start=start,
        steps_of_other_size=steps_of_other_size,
    )


def start_state(trainer: Trainer, plan: Plan) -> None:
    """Give the trainer the state of a run that begins."""
    trainer.state = TrainerState(
        is_local_process_zero=trainer.is_local_process_zero(), is_world_process_zero=trainer.is_world_process_zero()
    )
    trainer._saved_steps = []
    trainer.current_flos = 0.0
    trainer.prepare_counting()
    _set_durations(trainer, plan)


def _set_durations(trainer: Trainer, plan: Plan) -> None:
    state = trainer.state
    state.max_steps = plan.max_steps
    state.num_train_epochs = plan.num_train_epochs if plan.num_train_epochs is not None else sys.maxsize
    state.train_batch_size = trainer._train_batch_size
    state.compute_steps(trainer.args, plan.max_steps)


def switch_features_on(trainer: Trainer) -> None:
    """What the arguments change about the model while it trains; `trainer._undo` gets what puts it back."""
    args, model = trainer.args, trainer.model
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "use_cache"):
        config.use_cache = args.use_cache  # keys and values of past tokens are of no use in training
    features.switch_on(model, args, trainer.engine.device, trainer.label_names, trainer._undo)
    trainer._undo.append(features.compute_in_half(trainer))


def _note_who_makes_the_optimizer(trainer: Trainer) -> None:
    """A second `train()` goes on with the optimizer there is, moments included, under a new schedule of kunren's."""
    if trainer._made_scheduler:
        trainer.lr_scheduler = None
    trainer._made_optimizer = trainer._made_optimizer or trainer.optimizer is None
    trainer._made_scheduler = trainer._made_scheduler or trainer.lr_scheduler is None


def _resume(trainer: Trainer, run: Run, checkpoint: Path) -> None:
    logger.info("Resuming from %s.", checkpoint)
    parts.load_parts(trainer.checkpoint_parts(), checkpoint)
    _set_durations(trainer, run.plan)
    run.state = trainer.state
    if not trainer.args.ignore_data_skip:
        run.reader.load_state_dict(parts.load_data_state(checkpoint))
    cursor = parts.load_cursor(checkpoint)
    if cursor is not None:
        run.meter.load_state_dict(meter_of_process(cursor, run.engine.world_size, run.engine.process_index))
        run.known_batches_per_epoch = cursor["known_batches_per_epoch"]
        run.learning_rate = cursor["learning_rate"]
        run.evaluation_due = cursor["evaluation_due"]
        if cursor["gradient_norm"] is not None:
            run.gradient_norm = torch.tensor(cursor["gradient_norm"])
    if (checkpoint / layout.SCHEDULER_NAME).is_file():  # not one of weights alone, however its optimizer was saved
        run.before_first_batch = lambda: trainer._load_rng_state(str(checkpoint))


def finish_run(trainer: Trainer, run: Run) -> TrainOutput:
    """Numbers, the best model, and the last event."""
    state, plan = run.state, run.plan
    steps = state.global_step - run.first_step
    trainer.switch_optimizer("eval")
    samples = _planned_samples(trainer, plan) * steps / max(plan.max_steps, 1)
    metrics = speed_metrics("train", run.start_time, num_samples=samples, num_steps=steps)
    trainer.store_flos()
    metrics["total_flos"] = state.total_flos
    metrics["train_loss"] = loss = run.meter.mean_of_all(run.engine)
    trainer.take_account()
    trainer.log(metrics)
    run.reader.bad_samples.report()
    trainer._saver.wait()
    trainer.note_best_checkpoint()
    if trainer.args.load_best_model_at_end:
        run.stage = BEST_LOADED
        trainer._load_best_model()
    trainer.was_interrupted = run.requests is not None and run.requests.stop and state.global_step < plan.max_steps
    if trainer.was_interrupted:
        logger.warning(STOPPED, state.global_step, plan.max_steps)
    trainer.fire("on_train_end")
    if trainer.args.push_to_hub:
        trainer._finish_current_push()
    trainer.callback_handler.train_dataloader = None
    return TrainOutput(state.global_step, loss, metrics)  # a callback may have taken it out of the metrics


def leave_report(trainer: Trainer) -> None:
    """Write the run report, which shows how the run ended. Never raises."""
    if not (trainer.args.run_report and trainer.is_world_process_zero()):
        return
    try:
        from kunren.report.write import write_report  # nobody needs it before

        write_report(trainer.run_folder())
    except FileNotFoundError:
        logger.debug("There is no log, and so no run report.", exc_info=True)
    except Exception as error:
        logger.warning("The run report could not be written: %s: %s", type(error).__name__, str(error))


def _planned_samples(trainer: Trainer, plan: Plan) -> float:
    if plan.num_examples is not None:
        if trainer.args.max_steps <= 0:
            return float(plan.num_examples * trainer.args.num_train_epochs)
        if trainer.args.batching == "token_budget" and plan.steps_per_epoch:  # batches of unequal numbers of rows
            return plan.num_examples * plan.max_steps / plan.steps_per_epoch
    return plan.max_steps * plan.train_batch_size * plan.accumulation_steps
