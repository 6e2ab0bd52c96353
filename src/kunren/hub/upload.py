"""What the Trainer's sharing seams do: the repository, the push at each save, and the push of the end."""

from __future__ import annotations

import logging
import math
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from kunren.base.strict_json import read_json
from kunren.checkpoint.layout import TRAINER_STATE_NAME, step_of
from kunren.hub.problems import HubError, without
from kunren.hub.pusher import Push, Pusher, Upload
from kunren.hub.repository import prepare
from kunren.hub.staging import Staging, clean_leftovers

logger = logging.getLogger(__name__)

_SHARED_WHOLE = "all_checkpoints"


def init_hf_repo(trainer: Any, token: str | None = None, private: bool | None = None) -> None:
    """Make the repository from the first process; every process learns its name, or why there is none."""
    found: str | Exception | None = None
    if trainer.is_world_process_zero():
        try:
            found = prepare(trainer.args, token, private)
        except Exception as error:
            found = error
    found = trainer.engine.gather_objects(found)[0]
    if isinstance(found, Exception):
        raise found
    trainer.hub_model_id = found
    if trainer.is_world_process_zero():
        _pusher(trainer)
        clean_leftovers(_output_dir(trainer))


def push_to_hub(
    trainer: Any,
    commit_message: str | None = "End of training",
    blocking: bool = True,
    token: str | None = None,
    revision: str | None = None,
    private: bool | None = None,
    **card: Any,
) -> Any:
    """Save the model, write its card, and upload the output folder; all processes have to call it.

    The first process gets the client's CommitInfo, or a Future of it where it is not to be waited for; the others
    None. A HubError says what went wrong; within a training it is only warned of.
    """
    args = trainer.args
    trainer.fire("on_push_begin")
    token = token if token is not None else args.hub_token
    if trainer.hub_model_id is None:
        trainer.init_hf_repo(token=token, private=private)
    trainer._finish_current_push()  # it would still read the files that are about to be written
    before, trainer._is_pushing = getattr(trainer, "_is_pushing", False), True
    try:
        trainer.save_model()
    finally:
        trainer._is_pushing = before
    if not trainer.is_world_process_zero():
        return None
    trainer.create_model_card(**_card_options(trainer, card))
    return _push_output(trainer, commit_message, blocking, token, revision)


def push_saved_model(trainer: Any) -> None:
    """After a `save_model()` of the script: push it too. What the hub refuses is a warning, the files being there."""
    if getattr(trainer, "_is_pushing", False):
        return
    try:
        trainer.push_to_hub(commit_message="Model save", revision=trainer.args.hub_revision)
    except HubError as error:
        logger.warning("The model is saved, and not shared. %s", error)


def push_from_checkpoint(trainer: Any, checkpoint_folder: str) -> None:
    """Send a published checkpoint, as `hub_strategy` says. Returns at once, and never raises."""
    args = trainer.args
    strategy = str(getattr(args.hub_strategy, "value", args.hub_strategy))
    if not trainer.is_world_process_zero() or strategy == "end":
        return
    try:
        trainer.fire("on_push_begin")
        checkpoint, output_dir = Path(checkpoint_folder), _output_dir(trainer)
        message = f"Training in progress, {_progress(args, checkpoint)}"
        staging = Staging(output_dir)
        try:
            staging.take_output(output_dir, is_awaited=True)
            staging.take_model(checkpoint)
            uploads = [Upload("model", None, message)]
            if strategy in ("checkpoint", _SHARED_WHOLE):
                staging.take_checkpoint(checkpoint)
                place = "last-checkpoint" if strategy == "checkpoint" else checkpoint.name
                # What an earlier checkpoint had and this one has not would make a mixture of the two.
                uploads.append(Upload("checkpoint", place, f"{message}, checkpoint", delete="*"))
            _pusher(trainer).send(
                Push(
                    what=checkpoint.name,
                    repository=trainer.hub_model_id,
                    staging=staging,
                    uploads=uploads,
                    token=args.hub_token,
                    revision=args.hub_revision,
                    is_kept=bool(args.hub_always_push) or strategy == _SHARED_WHOLE,
                )
            )
        except BaseException:
            staging.remove()
            raise
    except Exception as error:
        told = without(args.hub_token, f"{type(error).__name__}: {error}")
        logger.warning("%s cannot be sent to the hub: %s. The training goes on.", checkpoint_folder, told)


def finish_current_push(trainer: Any) -> None:
    """Wait for what is on its way; what is not on the hub then is said. Ctrl-C ends the wait, and not the script."""
    pusher = getattr(trainer, "push_in_progress", None)
    if not isinstance(pusher, Pusher):
        return
    was_asked = trainer.is_asked_to_stop()
    if not pusher.wait_until_done(lambda: trainer.is_asked_to_stop() and not was_asked):
        pusher.cancel()
    pusher.warn_of_last()


def _push_output(trainer: Any, message: str | None, blocking: bool, token: str | None, revision: str | None) -> Any:
    output_dir, pusher = _output_dir(trainer), _pusher(trainer)
    staging = Staging(output_dir)
    try:
        staging.take_output(output_dir, is_awaited=blocking)
    except BaseException:
        staging.remove()
        raise
    future: Future[Any] = pusher.send(
        Push(
            what="the model",
            repository=trainer.hub_model_id,
            staging=staging,
            uploads=[Upload("model", None, message or "Upload model")],
            token=token,
            revision=revision if revision is not None else trainer.args.hub_revision,
            is_kept=True,
            is_in_background=not blocking,
        )
    )
    if not blocking:
        return future
    try:
        pusher.wait_until_done()
        return future.result()
    except KeyboardInterrupt:
        pusher.cancel()
        raise
    except HubError as error:
        text = f"{error} All files are in {output_dir}."
        if trainer.is_in_train:
            logger.warning("%s The training goes on.", text)
            return None
        raise HubError(text) from None


def _card_options(trainer: Any, card: dict[str, Any]) -> dict[str, Any]:
    """The card's keywords, with the model's name and its own tags."""
    if card.get("model_name") is None:
        card["model_name"] = trainer.hub_model_id.rpartition("/")[2]
    own = getattr(trainer.model, "model_tags", None)
    if own:
        given = card.get("tags")
        tags = [given] if isinstance(given, str) else list(given or [])
        card["tags"] = list(dict.fromkeys([*tags, *([own] if isinstance(own, str) else own)]))
    return card


def _progress(args: Any, checkpoint: Path) -> str:
    """Where the training was when the checkpoint was made, which may be a while ago."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) == "epoch":
        with suppress(OSError, ValueError, KeyError, TypeError):
            return f"epoch {math.floor(read_json(checkpoint / TRAINER_STATE_NAME)['epoch'] + 1e-6)}"
    return f"step {step_of(checkpoint)}"


def _pusher(trainer: Any) -> Pusher:
    if not isinstance(getattr(trainer, "push_in_progress", None), Pusher):
        trainer.push_in_progress = Pusher()
    found: Pusher = trainer.push_in_progress
    return found


def _output_dir(trainer: Any) -> Path:
    # The repository is made before the Trainer has an output folder of its own.
    return Path(vars(trainer).get("_output_dir") or trainer.args.output_dir).expanduser().absolute()
