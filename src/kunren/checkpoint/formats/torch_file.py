"""Files of `torch.save`, read without running code."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import IO, Any

import torch


def save(value: Any, path: Path) -> None:
    """`torch.save` through Python's own file: torch's hides why it failed, this says "No space left on device"."""
    with path.open("wb") as file:
        torch.save(value, file)


def load_plain(path: Path | IO[bytes], name: str | None = None, mapped: bool = False) -> Any:
    """`torch.load` of tensors and plain values only, on the CPU; a ValueError where the file wants more than that.

    `name` is that of an open file, for the error. `mapped`: tensors are read from the disk when they are looked at.
    """
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except RuntimeError:
            if not mapped:
                raise
            return torch.load(path, map_location="cpu", weights_only=True)  # the format before torch 1.6
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"{name or path} cannot be read: {reason} Only tensors and plain values are loaded, because anything else "
            "in such a file can run code."
        ) from error


def is_cut_short(path: Path) -> bool:
    """Whether the file ends before it should: torch's zip files begin with PK; its format before 1.6 cannot tell."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"") and not zipfile.is_zipfile(path)
