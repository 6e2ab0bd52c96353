"""An error ends a run: what was trained up to there is saved first. The error stays the one that is raised."""

from __future__ import annotations

import logging
from typing import Any

import torch

from kunren.loop.run import Run
from kunren.loop.stage import BEST_LOADED, BETWEEN_STEPS, IN_UPDATE
from kunren.loop.train import log

logger = logging.getLogger(__name__)


def rescue(run: Run | None, do: Any, error: BaseException) -> None:
    """Save what is not saved yet, where checkpoints are saved at all, then tell the callbacks. Never raises."""
    try:
        # Who stops it, with a second Ctrl-C or by leaving `steps()`, wants nothing of it.
        is_error = isinstance(error, (Exception, SystemExit))
        if run is not None:
            saves = is_error and run.requests is not None and run.state.global_step > run.first_step
            if run.engine.world_size > 1:
                # The others wait for gradients, not for a checkpoint: they learn of it by the end of this process.
                run.engine.abandon()
                if is_error and run.engine.spread_by is None:
                    from kunren.loop.guards.rescue_of_several import rescue_of_several

                    rescue_of_several(run, do, error, saves, _save)
            elif saves:
                _save(run, do)
    except Exception:
        logger.exception("The run ends with an error, and what it has trained could not be saved.")
    try:
        do.fire("on_exception", exception=error)
    except Exception:
        logger.exception("A callback failed in on_exception.")


def _save(run: Run, do: Any) -> None:
    step = run.state.global_step
    run.engine.zero_gradients()  # of the window that was begun
    if run.stage == BEST_LOADED:
        return  # the weights are no longer those of the last step
    if run.stage == IN_UPDATE:
        logger.error("The update of step %d was broken off half-way: its weights are not saved.", step + 1)
        return
    if not all(bool(torch.isfinite(parameter).all()) for parameter in run.model.parameters()):
        logger.error("The weights of step %d are not finite, and are not saved.", step)
        return
    if run.stage == BETWEEN_STEPS:
        run.evaluation_due = run.evaluation_due or run.control.should_evaluate
        if run.control.should_log and run.meter.has_news and run.engine.world_size == 1:
            log(run, do)
    run.reader.forget_stream()  # it may have given the next batches already: the resumed run reads up to there again
    if not do.has_saved(step):
        do.save_in_training()
    if do.has_saved(step):
        logger.error(
            "The run ends with an error at step %d. What it has trained is saved; go on with "
            "train(resume_from_checkpoint=True).",
            step,
        )
