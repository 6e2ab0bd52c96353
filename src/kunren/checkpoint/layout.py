"""Names on disk, and which checkpoint to resume from. The layout and the names are those of transformers."""

from __future__ import annotations

import logging
import os
import re
import zipfile
from pathlib import Path

import safetensors

from kunren.base.strict_json import read_json
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
CONFIG_NAME = "config.json"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.bin"
ADAPTER_SAFE_WEIGHTS_NAME = "adapter_model.safetensors"
EXTRA_STATE_NAME = "extra_state.pt"
# transformers puts this file into a checkpoint that it saves on SIGTERM, and removes it when the save is done.
INCOMPLETE_NAME = "checkpoint-is-incomplete.txt"

_CHECKPOINT = re.compile(rf"^{CHECKPOINT_PREFIX}-(\d+)$")
_WEIGHTS = ("model.safetensors*", "pytorch_model.bin*", "adapter_model.*", "*/adapter_model.*")  # or their index
_SHARDED_WEIGHTS = ("pytorch_model_fsdp*", "global_step*")  # folders, by FSDP and by DeepSpeed


def checkpoint_path(output_dir: str | Path, step: int) -> Path:
    return Path(output_dir) / f"{CHECKPOINT_PREFIX}-{step}"


def step_of(checkpoint: str | Path) -> int | None:
    """The step in a checkpoint's name, or None for a folder that is not named like one."""
    match = _CHECKPOINT.match(Path(checkpoint).name)
    return int(match[1]) if match else None


def rng_state_name(process_index: int = 0, world_size: int = 1) -> str:
    return RNG_STATE_NAME if world_size == 1 else f"rng_state_{process_index}.pth"


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
        found = _problems_without_manifest(folder)
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

    True means the newest whole one in `output_dir`. A path means that one and no other.
    """
    if resume_from_checkpoint is None or resume_from_checkpoint is False:
        return None
    if resume_from_checkpoint is True:
        newest = newest_whole(output_dir)
        if newest is None:
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


def _problems_without_manifest(folder: Path) -> list[str]:
    found = []
    if (folder / INCOMPLETE_NAME).exists():
        found.append(f"its save was cut off ({INCOMPLETE_NAME} is there)")
    try:
        read_json(folder / TRAINER_STATE_NAME)
    except FileNotFoundError:
        found.append(f"{TRAINER_STATE_NAME} is missing")
    except (OSError, ValueError) as error:
        found.append(f"{TRAINER_STATE_NAME} cannot be read ({error})")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS + _SHARDED_WEIGHTS):
        found.append(
            f"it has no weights ({SAFE_WEIGHTS_NAME}, {WEIGHTS_NAME}, {ADAPTER_SAFE_WEIGHTS_NAME} or an index)"
        )
    for index in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
        if (folder / index).exists():
            found += _missing_shards(folder, index)
    return found + [f"{path.name} was cut short" for path in sorted(folder.iterdir()) if _is_cut_short(path)]


def _missing_shards(folder: Path, index: str) -> list[str]:
    try:
        shards = sorted(set(read_json(folder / index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return [f"{index} cannot be read ({error})"]
    return [f"{shard}, listed in {index}, is missing" for shard in shards if not (folder / shard).is_file()]


def _is_cut_short(path: Path) -> bool:
    """Whether a tensor file ends before it should; both formats tell without reading the tensors."""
    if not path.is_file():
        return False
    if path.suffix == ".safetensors":
        try:
            with safetensors.safe_open(path, framework="np"):
                return False
        except safetensors.SafetensorError:
            return True
    if path.suffix in (".pt", ".pth", ".bin"):
        # torch's zip files begin with PK; its format before 1.6 does not, and cannot tell
        with path.open("rb") as file:
            return file.read(2) in (b"PK", b"") and not zipfile.is_zipfile(path)
    return False
