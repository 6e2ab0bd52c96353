"""A checkpoint in parts made into a folder that `from_pretrained` reads: offline, by one process, without a device."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from kunren.base.registry import resolve
from kunren.base.strict_json import read_json, write_json
from kunren.checkpoint import layout
from kunren.checkpoint.disk import check_room
from kunren.checkpoint.formats import (
    CONFIG_NAME,
    EXTRA_STATE_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    SHARDED_WEIGHTS_NAME,
    safetensors_file,
    torch_file,
)
from kunren.checkpoint.formats.direct_file import DirectFile
from kunren.checkpoint.formats.distributed_checkpoint import WEIGHT, ShardedFolder, is_sharded_folder
from kunren.checkpoint.weights import has_full_weights

FILE_BYTES = 5_000_000_000
_DEEPSPEED = "kunren.checkpoint.spread.deepspeed_files"


@dataclass(frozen=True)
class Merged:
    """What has come of it."""

    folder: Path
    files: list[str]
    tensors: int
    bytes: int


def merge(checkpoint: Path, output: Path | None = None, file_bytes: int = FILE_BYTES) -> Merged:
    """Write the whole weights into `output`, or beside the checkpoint; ValueError for what cannot be merged.

    One file of at most `file_bytes` is held in memory. `output` is there when all of it is.
    """
    output = output if output is not None else checkpoint.with_name(f"{checkpoint.name}-merged")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ValueError(f"{output} exists and is not empty: give another --output.")
    found = layout.problems(checkpoint, digests=True)
    if found:
        raise ValueError(f"{checkpoint} is damaged and cannot be merged: {'; '.join(found)}.")
    is_of_torch = is_sharded_folder(checkpoint / SHARDED_WEIGHTS_NAME)
    if not is_of_torch and not resolve(f"{_DEEPSPEED}:is_in")(checkpoint):
        reason = "its weights are whole already" if has_full_weights(checkpoint) else "it has no weights in parts"
        raise ValueError(f"{checkpoint} cannot be merged: {reason}.")
    temporary = output.with_name(f".{output.name}.merging")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        if is_of_torch:
            _write(ShardedFolder(checkpoint / SHARDED_WEIGHTS_NAME), temporary, file_bytes)
            _copy_what_describes_the_model(checkpoint, temporary)
        else:
            resolve(f"{_DEEPSPEED}:merge_deepspeed")(checkpoint, temporary)
        _tell_dtype(temporary)
        result = _described(temporary, output)
        if output.exists():
            output.rmdir()
        temporary.rename(output)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return result


def _write(contents: ShardedFolder, folder: Path, file_bytes: int) -> None:
    aliases = contents.aliases()
    weights = [name for name in contents.names if name.startswith(WEIGHT) and contents.is_tensor(name)]
    sizes = {name: _bytes_of(contents, name) for name in weights if name not in aliases}
    problem = check_room(folder, sum(sizes.values()))
    if problem is not None:
        raise ValueError(f"{problem}.")
    files = _divided(sizes, file_bytes)
    in_file: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file_name = SAFE_WEIGHTS_NAME
        if len(files) > 1:
            file_name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        ties = {_plain(alias): _plain(name) for alias, name in aliases.items() if name in names}
        with DirectFile(folder / file_name) as file:
            tensors = {_plain(name): contents.read(name) for name in names}
            safetensors_file.write(tensors, file, {**ties, "format": "pt"})
        in_file.update(dict.fromkeys((*tensors, *ties), file_name))
    if len(files) > 1:
        write_json(
            folder / SAFE_WEIGHTS_INDEX_NAME, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": in_file}
        )
    values = {_plain(name): value for name, value in contents.values(WEIGHT).items()}
    if values:
        torch_file.save(values, folder / EXTRA_STATE_NAME)


def _divided(sizes: dict[str, int], file_bytes: int) -> list[list[str]]:
    """Names in order, in as many files as it takes; one that is larger than a file has one of its own."""
    files: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if files[-1] and filled + size > file_bytes:
            files.append([])
            filled = 0
        files[-1].append(name)
        filled += size
    return files


def _copy_what_describes_the_model(checkpoint: Path, folder: Path) -> None:
    for path in sorted(checkpoint.iterdir()):
        if path.is_file() and path.name not in layout.OF_A_RUN and not path.name.startswith("rng_state"):
            shutil.copyfile(path, folder / path.name)


def _tell_dtype(folder: Path) -> None:
    """Have `config.json` name the type of the merged weights, in which `from_pretrained` loads them."""
    path = folder / CONFIG_NAME
    config = read_json(path) if path.is_file() else None
    if not isinstance(config, dict) or "model_type" not in config:
        return
    kinds = {kind for file in folder.glob("*.safetensors") for kind in safetensors_file.dtypes(file)}
    floats = [kind for kind in kinds if "float" in kind]
    if len(floats) == 1:
        write_json(path, {**config, "torch_dtype" if "torch_dtype" in config else "dtype": floats[0]})


def _described(folder: Path, output: Path) -> Merged:
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    tensors = 0
    for path in folder.glob("*.safetensors"):
        tensors += safetensors_file.number_of_tensors(path)
    return Merged(output, list(sizes), tensors, sum(sizes.values()))


def _bytes_of(contents: ShardedFolder, name: str) -> int:
    return contents.size(name).numel() * contents.dtype(name).itemsize


def _plain(name: str) -> str:
    return name.removeprefix(WEIGHT)
