"""Names on disk, and which checkpoint to resume from. The layout and the names are those of transformers."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

from kunren.checkpoint.formats import SHARDED_CONTENTS_NAME, SHARDED_OPTIMIZER_NAME
from kunren.checkpoint.store import MANIFEST_NAME, is_of_newer_format, verify

logger = logging.getLogger(__name__)

CHECKPOINT_PREFIX = "checkpoint"
TRAINING_ARGS_NAME = "training_args.bin"
TRAINER_STATE_NAME = "trainer_state.json"
OPTIMIZER_NAME = "optimizer.pt"
OPTIMIZER_NAME_BIN = "optimizer.bin"
SCHEDULER_NAME = "scheduler.pt"
SCALER_NAME = "scaler.pt"
RNG_STATE_NAME = "rng_state.pth"
CURSOR_NAME = "cursor.json"
DATA_STATE_NAME = "data_state.pt"
WEIGHTS_BESIDE_MODEL_NAME = "weights_beside_model.pt"  # those of a loss, for example
# What a checkpoint has for a resume, and nobody needs of a model.
OF_A_RUN = (
    MANIFEST_NAME,
    TRAINER_STATE_NAME,
    OPTIMIZER_NAME,
    OPTIMIZER_NAME_BIN,
    SCHEDULER_NAME,
    SCALER_NAME,
    RNG_STATE_NAME,
    CURSOR_NAME,
    DATA_STATE_NAME,
    WEIGHTS_BESIDE_MODEL_NAME,
)
AUTO = "auto"  # what resumes if there is something to resume

_CHECKPOINT = re.compile(rf"^{CHECKPOINT_PREFIX}-(\d+)$")


def checkpoint_path(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir) / f"{CHECKPOINT_PREFIX}-{step}"


def step_of(checkpoint: str | Path) -> int | None:
    """The step in a checkpoint's name, or None for a folder that is not named like one."""
    match = _CHECKPOINT.match(Path(checkpoint).name)
    return int(match[1]) if match else None


def rng_state_name(process_index: int = 0, world_size: int = 1) -> str:
    return RNG_STATE_NAME if world_size == 1 else f"rng_state_{process_index}.pth"


def optimizer_in(folder: Path) -> Path | None:
    """The file with the optimizer's state, or with the list of its parts; None where there is none."""
    names = (OPTIMIZER_NAME, OPTIMIZER_NAME_BIN, f"{SHARDED_OPTIMIZER_NAME}/{SHARDED_CONTENTS_NAME}")
    return next(filter(Path.is_file, map(folder.joinpath, names)), None)


def list_checkpoints(output_dir: str | Path) -> list[Path]:
    """The folders named `checkpoint-N`, whole or not, in the order of N; never of file times, which copying changes."""
    try:
        found = [(step, path) for path in Path(output_dir).iterdir() if (step := step_of(path)) is not None]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for _, path in sorted(found) if path.is_dir()]


def problems(folder: str | Path, digests: bool = False) -> list[str]:
    """Why a checkpoint cannot be resumed from, a sentence each; empty for a whole one.

    One of kunren's is held against its manifest, with `digests` byte by byte. One of transformers' has no manifest: it
    must have a state and weights, and no file that was cut short.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return ["it is not a folder" if folder.exists() else "it does not exist"]
    if (folder / MANIFEST_NAME).exists():
        found = verify(folder, digests)
    elif (folder / CURSOR_NAME).exists():
        found = [f"{MANIFEST_NAME} is missing"]  # one of kunren's, of which nothing can be verified any more
    else:
        from kunren.checkpoint.formats import transformers_checkpoint

        found = transformers_checkpoint.problems(folder, TRAINER_STATE_NAME)
    if not (folder / TRAINER_STATE_NAME).is_file():
        found.append(f"{TRAINER_STATE_NAME} is missing")
    return list(dict.fromkeys(found))


def is_whole(folder: str | Path, digests: bool = False) -> bool:
    """Whether a folder is a checkpoint that can be resumed from, by names and sizes (`digests`: every byte)."""
    return not problems(folder, digests)


def newest_whole(output_dir: str | Path) -> Path | None:
    """The checkpoint of the highest step that is whole; those passed over are reported with the reason."""
    for checkpoint in reversed(list_checkpoints(output_dir)):
        found = problems(checkpoint, digests=True)
        if not found:
            return checkpoint
        if is_of_newer_format(checkpoint):
            raise ValueError(f"{checkpoint} cannot be resumed from: {'; '.join(found)}.")
        logger.warning("%s is damaged and was passed over: %s.", checkpoint, "; ".join(found))
    return None


def get_last_checkpoint(folder: str | os.PathLike[str]) -> str | None:
    """The path of the newest whole checkpoint in `folder`, or None."""
    found = newest_whole(Path(folder))
    return None if found is None else str(found)


def resolve(resume_from_checkpoint: str | os.PathLike[str] | bool | None, output_dir: str | Path) -> Path | None:
    """The checkpoint to resume from, or None to start afresh; a ValueError when what was asked for cannot be had.

    True means the newest whole one in `output_dir`; "auto" that one, or none. A path means that one and no other.
    """
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return None
    if resume_from_checkpoint is True or resume_from_checkpoint == AUTO:
        newest = newest_whole(output_dir)
        if newest is None and resume_from_checkpoint is True:
            damaged = ", ".join(map(str, list_checkpoints(output_dir)))
            raise ValueError(
                f"resume_from_checkpoint=True, but {output_dir} has no checkpoint that is whole"
                f"{f' (damaged: {damaged})' if damaged else ''}: "
                "give the path of one, or start afresh with resume_from_checkpoint=False."
            )
        return newest
    path = Path(resume_from_checkpoint).expanduser()
    found = problems(path, digests=True)
    if found:
        near = [other for other in [*list_checkpoints(path), *list_checkpoints(path.parent)] if other != path]
        whole = ", ".join(str(other) for other in near if is_whole(other))
        advice = f"Whole checkpoints near it: {whole}." if whole else "There is no whole checkpoint near it."
        raise ValueError(f"{path} cannot be resumed from: {'; '.join(found)}. {advice}")
    return path
