"""Files of safetensors, https://github.com/huggingface/safetensors#format."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kunren.checkpoint.formats.direct_file import BLOCK_BYTES, DirectFile

_WORDS = {"F": "float", "BF": "bfloat", "I": "int", "U": "uint", "C": "complex"}
_FLOATS_OF_8_BITS = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
}


def write(tensors: Mapping[str, torch.Tensor], file: DirectFile, metadata: Mapping[str, str]) -> None:
    """Append a safetensors file: 8 bytes of length, a header of JSON, the tensors in the order of the header.

    The header is padded with blanks to whole blocks, so that data begin on one. Widest types first, as the library's
    own writer orders them: each tensor is then aligned.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.numel() * tensor.element_size()
        try:
            kind = _name_in_files(tensor.dtype)
        except KeyError:
            raise ValueError(f"{name} has type {tensor.dtype}, which a safetensors file cannot hold.") from None
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    padded = -(-(8 + len(text)) // BLOCK_BYTES) * BLOCK_BYTES - 8
    file.write(padded.to_bytes(8, "little"))
    file.write(text.ljust(padded))
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.numel():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy())


def read(path: Path) -> dict[str, Any]:
    """The tensors of a file, on the CPU, tied ones under each of their names."""
    import safetensors
    from safetensors.torch import load_file

    try:
        state = load_file(path, device="cpu")
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    aliases = {name: stored for name, stored in metadata.items() if stored in state and name not in state}
    return {**state, **{name: state[stored] for name, stored in aliases.items()}}


def number_of_tensors(path: Path) -> int:
    import safetensors

    with safetensors.safe_open(path, framework="np") as file:
        return len(file.keys())


def dtypes(path: Path) -> set[str]:
    """The types of the tensors in a file, as torch names them."""
    import safetensors

    with safetensors.safe_open(path, framework="pt") as file:
        return {torch_name(file.get_slice(name).get_dtype()) for name in file.keys()}  # noqa: SIM118  # no mapping


def is_cut_short(path: Path) -> bool:
    """Whether the file ends before it should; its header tells."""
    import safetensors

    try:
        with safetensors.safe_open(path, framework="np"):
            return False
    except safetensors.SafetensorError:
        return True


def torch_name(kind: str) -> str:
    """What torch calls a type of a header: "float32" for F32."""
    if kind in _FLOATS_OF_8_BITS:
        return _FLOATS_OF_8_BITS[kind]
    letters = kind.rstrip("0123456789")
    return _WORDS.get(letters, letters.lower()) + kind[len(letters) :]


@functools.cache
def _name_in_files(dtype: torch.dtype) -> str:
    """What safetensors files call a type, read off an empty tensor that the library writes; KeyError without a name."""
    from safetensors.torch import save

    written = save({"empty": torch.empty(0, dtype=dtype, device="cpu")})
    name: str = json.loads(written[8:])["empty"]["dtype"]
    return name
