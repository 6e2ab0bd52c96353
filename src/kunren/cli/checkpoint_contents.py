"""What a checkpoint holds, found out from headers, sizes and small files: no tensor is read, no code is run."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, final

import safetensors
import torch
from torch import Tensor

from kunren.base.strict_json import read_json
from kunren.checkpoint.formats import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SHARDED_CONTENTS_NAME,
    SHARDED_WEIGHTS_NAME,
)
from kunren.checkpoint.formats.safetensors_file import torch_name
from kunren.checkpoint.layout import (
    TRAINER_STATE_NAME,
    problems,
    step_of,
)
from kunren.checkpoint.store import MANIFEST_NAME

# Of two forms of the same weights, the one that is read on a resume.
_WEIGHTS = (
    ("model.safetensors",),
    ("model-*.safetensors",),
    ("pytorch_model.bin",),
    ("pytorch_model-*.bin",),
    (f"{SHARDED_WEIGHTS_NAME}/{SHARDED_CONTENTS_NAME}",),  # the list of what is in the files beside it
    (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME, f"*/{ADAPTER_SAFE_WEIGHTS_NAME}", f"*/{ADAPTER_WEIGHTS_NAME}"),
)


def looks_like_a_checkpoint(folder: Path) -> bool:
    """Whether a folder of another name holds a state, a manifest or weights."""
    if (folder / MANIFEST_NAME).is_file() or (folder / TRAINER_STATE_NAME).is_file():
        return True
    return bool(weight_files(folder))


def describe_run(checkpoints: list[Path]) -> list[dict[str, Any]]:
    """One description each; the best is the one that the newest readable state names."""
    rows = [_overview(checkpoint) for checkpoint in checkpoints]
    best = next((state["best_model_checkpoint"] for path in reversed(checkpoints) if (state := state_of(path))), None)
    for row, path in zip(rows, checkpoints, strict=True):
        row["best"] = best is not None and Path(best).name == path.name
    return rows


def describe(checkpoint: Path) -> dict[str, Any]:
    """The overview, with each file and what it holds; `best` is as far as was known when it was saved."""
    described = _overview(checkpoint)
    best = state_of(checkpoint).get("best_model_checkpoint")
    described["best"] = best is not None and step_of(best) == described["step"]
    weights = weight_files(checkpoint)
    described["files"] = [_file(checkpoint, path, path in weights) for path in files_of(checkpoint)]
    described["tensors"] = sum(file["tensors"] or 0 for file in described["files"])
    described["parameters"] = sum(file["parameters"] or 0 for file in described["files"])
    return described


def verify(checkpoint: Path) -> dict[str, Any]:
    """Every byte held against the manifest, where there is one."""
    files = files_of(checkpoint)
    return {
        "path": str(checkpoint),
        "has_manifest": (checkpoint / MANIFEST_NAME).is_file(),
        "problems": problems(checkpoint, digests=True),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
    }


def state_of(checkpoint: Path) -> dict[str, Any]:
    """`trainer_state.json` as it stands; empty when it cannot be read."""
    try:
        state = read_json(checkpoint / TRAINER_STATE_NAME)
    except (OSError, ValueError):
        return {}
    return {"best_model_checkpoint": None, **state} if isinstance(state, dict) else {}


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def weight_files(checkpoint: Path) -> list[Path]:
    """The files that hold the weights."""
    for patterns in _WEIGHTS:
        found = sorted(path for pattern in patterns for path in checkpoint.glob(pattern))
        if found:
            return found
    return []


@dataclass(frozen=True)
class TensorForm:
    """Where a tensor is and what it looks like. `stored_as` differs from the name for a tied one."""

    path: Path
    stored_as: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@final
class Weights:
    """The tensors of a checkpoint by name; each is read when it is asked for, and not kept."""

    def __init__(self, checkpoint: Path) -> None:
        self.forms: dict[str, TensorForm] = {}
        self._mapped: dict[Path, Any] = {}
        for path in weight_files(checkpoint):
            of_adapter = path.parent != checkpoint and path.name != SHARDED_CONTENTS_NAME
            prefix = f"{path.parent.name}/" if of_adapter else ""
            self.forms.update({prefix + name: form for name, form in forms_in(path)})

    def read(self, name: str) -> Tensor:
        form = self.forms[name]
        if form.path.name == SHARDED_CONTENTS_NAME:
            tensor: Tensor = _sharded(form.path).read(f"model.{form.stored_as}")
        elif form.path.suffix == ".safetensors":
            with safetensors.safe_open(form.path, framework="pt") as file:
                tensor = file.get_tensor(form.stored_as)
        else:
            if form.path not in self._mapped:
                self._mapped[form.path] = mapped(form.path)
            tensor = self._mapped[form.path][form.stored_as]
        return tensor


def forms_in(path: Path) -> Iterator[tuple[str, TensorForm]]:
    """Name and form of each tensor of a file; ValueError where it cannot be read."""
    if path.name == SHARDED_CONTENTS_NAME:
        yield from _forms_in_parts(path)
        return
    if path.suffix != ".safetensors":
        values = mapped(path)
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, Tensor):
                yield name, TensorForm(path, name, tuple(value.shape), str(value.dtype).removeprefix("torch."))
        return
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            stored = {}
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                part = file.get_slice(name)
                stored[name] = TensorForm(path, name, tuple(part.get_shape()), torch_name(part.get_dtype()))
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    yield from stored.items()
    yield from ((alias, stored[name]) for alias, name in metadata.items() if name in stored and alias not in stored)


def _sharded(path: Path) -> Any:
    from kunren.checkpoint.formats.distributed_checkpoint import ShardedFolder  # slow to import

    return ShardedFolder(path.parent)


def _forms_in_parts(path: Path) -> Iterator[tuple[str, TensorForm]]:
    contents = _sharded(path)
    aliases = contents.aliases()
    for full_name in contents.names:
        if full_name.startswith("model.") and contents.is_tensor(full_name):
            stored_as = aliases.get(full_name, full_name).removeprefix("model.")
            dtype = str(contents.dtype(full_name)).removeprefix("torch.")
            form = TensorForm(path, stored_as, tuple(contents.size(full_name)), dtype)
            yield full_name.removeprefix("model."), form


def mapped(path: Path) -> Any:
    """A file of `torch.save`, tensors and plain values only, its tensors mapped from the disk where they can be."""
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:  # the format before torch 1.6 cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} cannot be read without running code: {reason}") from error


def _overview(checkpoint: Path) -> dict[str, Any]:
    state = state_of(checkpoint)
    step = step_of(checkpoint)
    written = next(
        (path for name in (MANIFEST_NAME, TRAINER_STATE_NAME) if (path := checkpoint / name).is_file()), None
    )
    saved = None if written is None else datetime.fromtimestamp(written.stat().st_mtime).isoformat(timespec="seconds")
    return {
        "path": str(checkpoint),
        "step": state.get("global_step") if step is None else step,
        "epoch": state.get("epoch"),
        "bytes": sum(path.stat().st_size for path in files_of(checkpoint)),
        "saved": saved,
        "has_manifest": (checkpoint / MANIFEST_NAME).is_file(),
        "problems": problems(checkpoint),
    }


def _file(checkpoint: Path, path: Path, holds_weights: bool) -> dict[str, Any]:
    tensors: int | None = None
    parameters: int | None = None
    if holds_weights:
        try:
            stored = {form.stored_as: form for _, form in forms_in(path)}
        except ValueError:
            stored = {}  # `problems` says so
        tensors, parameters = len(stored), sum(form.elements for form in stored.values())
    return {
        "name": path.relative_to(checkpoint).as_posix(),
        "bytes": path.stat().st_size,
        "tensors": tensors,
        "parameters": parameters,
    }
