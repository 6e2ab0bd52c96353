"""A checkpoint that transformers has saved: nothing lists its files, so that what is wrong shows in them alone."""

from __future__ import annotations

from pathlib import Path

from kunren.base.registry import resolve
from kunren.base.strict_json import read_json
from kunren.checkpoint.formats import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    SHARDED_OPTIMIZER_NAME,
    SHARDED_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    safetensors_file,
    torch_file,
)
from kunren.checkpoint.formats.shards import missing

# transformers puts this file into a checkpoint that it saves on SIGTERM, and removes it when the save is done.
INCOMPLETE_NAME = "checkpoint-is-incomplete.txt"

_WEIGHTS = ("model.safetensors*", "pytorch_model.bin*", "adapter_model.*", "*/adapter_model.*")  # or their index
_SHARDED_WEIGHTS = ("pytorch_model_fsdp*", "global_step*")  # folders, by FSDP and by DeepSpeed


def problems(folder: Path, state_name: str) -> list[str]:
    """Why it cannot be resumed from, a sentence each: it must have a state and weights, and no file cut short."""
    found = []
    if (folder / INCOMPLETE_NAME).exists():
        found.append(f"its save was cut off ({INCOMPLETE_NAME} is there)")
    try:
        read_json(folder / state_name)
    except FileNotFoundError:
        found.append(f"{state_name} is missing")
    except (OSError, ValueError) as error:
        found.append(f"{state_name} cannot be read ({error})")
    if not any(next(folder.glob(pattern), None) for pattern in _WEIGHTS + _SHARDED_WEIGHTS):
        found.append(
            f"it has no weights ({SAFE_WEIGHTS_NAME}, {WEIGHTS_NAME}, {ADAPTER_SAFE_WEIGHTS_NAME} or an index)"
        )
    for index in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
        if (folder / index).exists():
            found += missing(folder / index)
    for name in (SHARDED_WEIGHTS_NAME, SHARDED_OPTIMIZER_NAME):
        if (folder / name).is_dir():
            found += resolve("kunren.checkpoint.formats.distributed_checkpoint:problems")(folder / name)
    return found + [f"{path.name} was cut short" for path in sorted(folder.iterdir()) if _is_cut_short(path)]


def _is_cut_short(path: Path) -> bool:
    """Whether a tensor file ends before it should; both formats tell without reading the tensors."""
    if not path.is_file():
        return False
    if path.suffix == ".safetensors":
        return safetensors_file.is_cut_short(path)
    return path.suffix in (".pt", ".pth", ".bin") and torch_file.is_cut_short(path)
