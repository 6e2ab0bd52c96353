"""Saving seams: what a checkpoint is made of, how it is published, found again and loaded."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from kunren.base.registry import resolve
from kunren.callbacks.states import collect_states, restore_states
from kunren.checkpoint import parts
from kunren.checkpoint.best import evaluations, ranked
from kunren.checkpoint.disk import check_room
from kunren.checkpoint.layout import checkpoint_path, list_checkpoints, step_of
from kunren.checkpoint.parts import Part
from kunren.checkpoint.rotation import rotate
from kunren.checkpoint.saver import CheckpointSaver
from kunren.checkpoint.storage import Storage
from kunren.checkpoint.weights import save_weights
from kunren.optim.schedule import waits_for_metric
from kunren.seams.base import Seams

if TYPE_CHECKING:
    from kunren.loop.run import Run

logger = logging.getLogger(__name__)

_OF_WEIGHTS_ALONE = ("model", "state", "cursor")


class SavingSeams(Seams):
    """Override one `_save_*` / `_load_*` pair to replace exactly that part of a checkpoint."""

    _saved_steps: list[int]
    _saver: CheckpointSaver
    storage: Storage
    _meters: Sequence[Any] = ()  # of the processes, for the checkpoint that is being saved

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model so that `from_pretrained` reads it, with its processing class and the arguments."""
        folder = output_dir if output_dir is not None else self._output_dir
        with self.at_rest():
            weights = self.storage.weights_to_save(self.model, Path(folder), in_checkpoint=_internal_call)
            if self.args.should_save:
                self._save(folder, state_dict=weights)
        if self.args.push_to_hub and not _internal_call:
            resolve("kunren.hub.upload:push_saved_model")(self)

    def _save(self, output_dir: str | None = None, state_dict: Mapping[str, Any] | None = None) -> None:
        folder = Path(output_dir if output_dir is not None else self._output_dir).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        processing_class = self.processing_class
        if processing_class is None:
            processing_class = getattr(self.data_collator, "tokenizer", None)
        save_weights(self.model, folder, state_dict=state_dict, processing_class=processing_class)
        parts.save_training_args(self.args.to_dict(), folder)

    def _get_output_dir(self, trial: Any) -> str:
        if trial is None or self.hp_search_backend is None:
            return self._output_dir
        return str(resolve("kunren.search.trial:output_dir")(self, trial))

    # ---- a checkpoint: saved in parts, published whole

    def checkpoint_parts(self) -> list[Part]:
        """What a checkpoint holds, in order. Override to add what else has to survive a restart."""
        return [
            Part("model", lambda folder: self.save_model(str(folder), True), _by_name(self._load_from_checkpoint)),
            Part("state", self._save_trainer_state, self._load_trainer_state),
            Part(
                "optimizer",
                _by_name(self._save_optimizer_and_scheduler),
                _by_name(self._load_optimizer_and_scheduler),
            ),
            Part("scaler", _by_name(self._save_scaler), _by_name(self._load_scaler)),
            Part("random numbers", _by_name(self._save_rng_state), self._load_later),
            Part("cursor", self._save_cursor, self._load_later),
        ]

    def _save_parts(self, folder: Path) -> None:
        wanted = self.checkpoint_parts()
        if self.args.save_only_model:
            wanted = [part for part in wanted if part.name in _OF_WEIGHTS_ALONE]
        if self.engine.process_index > 0:
            wanted = [part for part in wanted if part.name in self.storage.parts_of_each_process]
        with self.at_rest(keeps_weights=False):  # as the resumed run, which only has what is saved
            parts.save_parts(wanted, folder)

    def _load_later(self, folder: Path) -> None:
        """Nothing: the cursor is read before the parts, to plan the run; random numbers before the first batch."""

    def save_in_training(self) -> bool:
        """Save a checkpoint; a disk that fails is reported, leaves the older ones, and does not end the run.

        Where a callback wants to hear of saves, the answer is whether there is one; otherwise nobody waits to know.
        """
        try:
            self._save_checkpoint(self.model, self._trial)
            if not self.callback_handler.handles("on_save"):
                return True
            self._saver.wait()  # who listens finds the checkpoint whole
        except OSError as problem:
            logger.error("The checkpoint of step %d could not be saved: %s", self.state.global_step, problem)
        return self.state.global_step in self._saved_steps

    def has_saved(self, step: int) -> bool:
        """Whether this run has a whole checkpoint of that step."""
        self._saver.wait()
        return step in self._saved_steps

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = checkpoint_path(self._get_output_dir(trial), self.state.global_step)
        self.store_flos()
        self._saver.wait()  # which checkpoint is the best depends on whether the last one came to be
        if not self.engine.gather_objects(self._has_room(folder.parent))[0]:
            return
        self._meters = self.engine.gather_objects(self._run.meter.state_dict() if self._run is not None else None)
        state, step, best_before = self.state, self.state.global_step, self.state.best_model_checkpoint
        best = self._from_the_best(folder)
        if best:
            state.best_model_checkpoint = str(best[0])
        protected = best[: self.args.save_best_limit or 1]

        def published() -> None:
            if step not in self._saved_steps:
                self._saved_steps.append(step)
            if self.engine.process_index > 0:
                return
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(folder))
            try:
                on_top = self.args.save_best_limit is not None
                limit = self.args.save_total_limit or (1 if on_top else None)
                rotate(folder.parent, limit, protected, up_to_step=step, protected_count=not on_top)
            except OSError as problem:
                logger.warning("Old checkpoints in %s could not be removed: %s", folder.parent, problem)

        def failed() -> None:
            state.best_model_checkpoint = best_before

        self._saver.save(folder, self._save_parts, published, failed)

    def _has_room(self, folder: Path) -> bool:
        """Whether the disk can take another checkpoint; if not, this save is left out, and the next one tries again."""
        last = checkpoint_path(folder, self._saved_steps[-1]) if self._saved_steps else None
        optimizer = None if self.args.save_only_model else self.optimizer
        problem = check_room(folder, self.storage.estimate_bytes(self.model, optimizer, last))
        if problem is not None:
            logger.error("The checkpoint of step %d is not saved: %s", self.state.global_step, problem)
        return problem is None

    def note_best_checkpoint(self) -> None:
        """Decide once more: the last evaluation may have come after the save of its step."""
        best = self._from_the_best()
        if best:
            self.state.best_model_checkpoint = str(best[0])

    def _from_the_best(self, new: Path | None = None) -> list[Path]:
        """The saved checkpoints from the best down, the one being saved included."""
        name = self.args.metric_for_best_model
        if name is None:
            return []
        folder = self.run_folder()
        saved = {step: path for step in self._saved_steps if (path := checkpoint_path(folder, step)).is_dir()}
        before = self.state.best_model_checkpoint
        if before is not None and Path(before).is_dir() and (step := step_of(before)) is not None:
            saved[step] = Path(before)  # perhaps in the folder of the run that this one was resumed from
        if new is not None:
            saved[self.state.global_step] = new
        scores = evaluations(self.state.log_history, name)
        return [saved[step] for step in ranked(scores, saved, bool(self.args.greater_is_better))]

    def _save_trainer_state(self, folder: Path) -> None:
        self.state.stateful_callbacks = collect_states(self.callback_handler.callbacks, self.control)
        parts.save_trainer_state(self.state, folder)

    def _load_trainer_state(self, folder: Path) -> None:
        here, self.state = self.state, parts.load_trainer_state(folder)
        self.state.is_local_process_zero = here.is_local_process_zero
        self.state.is_world_process_zero = here.is_world_process_zero
        present = map(step_of, list_checkpoints(folder.parent))
        self._saved_steps = [step for step in present if step is not None and step <= self.state.global_step]
        if self.args.restore_callback_states_from_checkpoint:
            self._load_callback_state()

    def _load_callback_state(self) -> None:
        restore_states(self.callback_handler.callbacks, self.control, self.state.stateful_callbacks or {})

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        merged = self._merged_decay_parameters  # the file has the two groups of transformers'
        if self.optimizer is not None:
            self.storage.save_optimizer(self.optimizer, Path(output_dir), merged)
        if self.lr_scheduler is not None and self.engine.process_index == 0:
            parts.save_scheduler(self.lr_scheduler, Path(output_dir), None if merged is None else 2)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self.optimizer is None:
            return

        from kunren.seams.resuming import OptionsOfNow

        folder, merged = Path(checkpoint), self._merged_decay_parameters
        options = OptionsOfNow(self.optimizer, self.lr_scheduler)
        found = self.storage.load_optimizer(self.optimizer, folder, merged)
        is_placed = parts.load_scheduler(self.lr_scheduler, folder)
        if self._made_optimizer and self._made_scheduler:
            options.apply()
        if not (found and is_placed):
            logger.warning(
                "%s holds no optimizer or schedule (save_only_model?): moments start afresh, and the schedule is "
                "placed at step %d.",
                checkpoint,
                self.state.global_step,
            )
        if not is_placed:
            self._place_schedule(self.state.global_step)

    def _place_schedule(self, steps: int) -> None:
        if waits_for_metric(self.lr_scheduler):
            return  # where it stands depends on metrics, not on steps
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of a schedule that moves before its optimizer has
            for _ in range(steps):
                self.lr_scheduler.step()

    def _save_scaler(self, output_dir: str) -> None:
        if self.engine.scaler is not None:
            parts.save_scaler(self.engine.scaler, Path(output_dir))

    def _load_scaler(self, checkpoint: str | None) -> None:
        if self.engine.scaler is not None and checkpoint is not None:
            parts.load_scaler(self.engine.scaler, Path(checkpoint))

    def _save_rng_state(self, output_dir: str) -> None:
        parts.save_random_state(Path(output_dir), self.engine.process_index, self.engine.world_size)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            parts.load_random_state(Path(checkpoint), self.engine.process_index, self.engine.world_size)

    def _save_cursor(self, folder: Path) -> None:
        if self._run is not None:
            parts.save_cursor(cursor_state(self._run, self._meters[1:]), folder)
            parts.save_data_state(self._run.reader.state_dict(self._run.cursor.epoch_ended), folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        self.storage.load_weights(model if model is not None else self.model, resume_from_checkpoint, same_model=True)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        # A run that was moved finds its checkpoints beside the others.
        places = [] if best is None else [Path(best), self.run_folder() / Path(best).name]
        folder = next((place for place in places if place.is_dir()), None)
        if folder is None:
            logger.warning("There is no best checkpoint to load (%s): the last step's weights stay.", best)
            return
        logger.info("Loading the best model from %s (%s).", folder, self.state.best_metric)
        self.storage.load_weights(self.model, folder)


def _by_name(seam: Callable[[str], None]) -> Callable[[Path], None]:
    """The seams that people override take the folder as text."""
    return lambda folder: seam(str(folder))


def cursor_state(run: Run, meters_of_others: Sequence[Any]) -> dict[str, Any]:
    """Where a run stands in its data, and the sums of its open log window; those of other processes as well."""
    return {
        "version": 1,
        **asdict(run.cursor),
        "broken_off": run.control.should_epoch_stop,
        "batch_size": run.plan.train_batch_size,
        "accumulation_steps": run.plan.accumulation_steps,
        "batches_per_epoch": run.plan.batches_per_epoch,
        "known_batches_per_epoch": run.known_batches_per_epoch,
        "evaluation_due": run.evaluation_due,
        "data_seed": run.reader.seed,
        "learning_rate": run.learning_rate,
        "gradient_norm": None if run.gradient_norm is None else float(run.gradient_norm),
        "meter": run.meter.state_dict(),
        "meters_of_others": meters_of_others,
    }
