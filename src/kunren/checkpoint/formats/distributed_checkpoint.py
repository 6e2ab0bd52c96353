"""Folders of torch.distributed.checkpoint: each process writes parts of tensors, any number of processes reads them.

The names in them are those that accelerate gives: "model.<name>", "optimizer.state.<name>.<key>" and
"optimizer.param_groups.<number>.<key>". Reading runs no code: the pickled list of contents may name its own types only.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pathlib
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.storage import WriteResult

from kunren.checkpoint.formats import SHARDED_CONTENTS_NAME, SHARDED_WEIGHTS_NAME, torch_file
from kunren.checkpoint.formats.direct_file import DirectFile

WEIGHT = "model."
ObjectPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Box:
    """A part of a tensor of a checkpoint, and the memory that it is written from or read into."""

    name: str
    size: torch.Size  # of the whole tensor
    offsets: tuple[int, ...]  # where the part begins in it
    data: torch.Tensor


@dataclass(frozen=True)
class Share:
    """What one process has written."""

    items: list[WriteItem]
    results: list[WriteResult]
    paths: dict[str, ObjectPath]  # of all names, in the order of the state dict; from the first process
    aliases: dict[str, str]  # name of a tied tensor -> the name that it is stored under; from the first process


# ---- writing


def write(
    boxes: Sequence[Box], values: Mapping[str, Any], folder: Path, process_index: int, digests: dict[Path, str]
) -> tuple[list[WriteItem], list[WriteResult]]:
    """Write one file with the parts of this process; it can be read once `finish` has listed those of all."""
    planner = _WritePlanner(boxes, values)
    plan = SavePlan(planner.items)
    if not plan.items:
        return [], []
    writer = _Writer(folder, digests)
    numbered = writer.prepare_global_plan([SavePlan([])] * process_index + [plan])[process_index]
    return plan.items, writer.write_data(numbered, planner).wait()


def finish(shares: Sequence[Share], folder: Path) -> None:
    """Write the list of what all have written."""
    # Of a part that several have written, replicas of a model for one, the first.
    items = {item.index: item for share in reversed(shares) for item in share.items}
    results = list({result.index: result for share in reversed(shares) for result in share.results}.values())
    order = [item.index for share in shares for item in share.items]
    _, content = create_default_global_save_plan([SavePlan([items[index] for index in dict.fromkeys(order)])])
    names: dict[str, list[str]] = {}
    for alias, name in shares[0].aliases.items():
        content.state_dict_metadata[alias] = content.state_dict_metadata[name]
        names.setdefault(name, []).append(alias)
    for result in list(results):
        for alias in names.get(result.index.fqn, ()):
            index = dataclasses.replace(result.index, fqn=alias)
            results.append(dataclasses.replace(result, index=index))
    known = {name: path for name, path in shares[0].paths.items() if name in content.state_dict_metadata}
    others = {name: path for share in shares for name, path in share.paths.items() if name not in known}
    content.planner_data = known | {name: others[name] for name in content.state_dict_metadata if name in others}
    _Writer(folder, {}).finish(content, [results])


@final
class _Writer(filesystem.FileSystemWriter):
    """Writes past the page cache, durably, with the digests taken on the way."""

    def __init__(self, folder: Path, digests: dict[Path, str]) -> None:
        super().__init__(folder, sync_files=False, per_thread_copy_ahead=0)
        self.fs = _DurableFiles(digests)

    def storage_meta(self) -> None:
        """Nothing: the folder is about to be given another name."""


@final
class _DurableFiles(filesystem.FileSystem):
    def __init__(self, digests: dict[Path, str]) -> None:
        super().__init__()
        self._digests = digests

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with DirectFile(path) as file:
            yield _Stream(file)
        self._digests[Path(path)] = file.sha256()


@final
class _Stream:
    """What torch's writer asks of a file."""

    def __init__(self, file: DirectFile) -> None:
        self.write, self.flush = file.write, file.flush
        self._file = file

    def tell(self) -> int:
        return self._file.size

    def close(self) -> None:
        """Nothing: the file ends with its context, where it may still fail."""


@final
class _WritePlanner(SavePlanner):
    """Hands out what this process has to write; there is nothing left to plan."""

    def __init__(self, boxes: Sequence[Box], values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._data = {MetadataIndex(box.name, box.offsets): box.data for box in boxes}
        of_values = [WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in values]
        self.items = of_values + [_item(box) for box in boxes]

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
        if write_item.type != WriteItemType.BYTE_IO:
            return self._data[write_item.index]
        buffer = io.BytesIO()
        torch.save(self._values[write_item.index.fqn], buffer)
        return buffer

    def set_up_planner(self, *arguments: Any, **options: Any) -> None:
        return

    def create_local_plan(self) -> SavePlan:
        return SavePlan(self.items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], metadata.Metadata]:
        return create_default_global_save_plan(all_plans)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        return new_plan


def _item(box: Box) -> WriteItem:
    part = ChunkStorageMetadata(torch.Size(box.offsets), box.data.shape)
    properties = metadata.TensorProperties(dtype=box.data.dtype)
    return WriteItem(
        MetadataIndex(box.name, box.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(part, properties, box.size),
    )


# ---- reading


@final
class ShardedFolder:
    """What lies in a folder of torch.distributed.checkpoint; ValueError where the list of it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._content: metadata.Metadata = _read_content(folder / SHARDED_CONTENTS_NAME)
        paths = self._content.planner_data
        order = [name for name in paths if name in self._entries] if isinstance(paths, Mapping) else []
        self.names = list(dict.fromkeys([*order, *self._entries]))

    @property
    def _entries(self) -> dict[str, Any]:
        return self._content.state_dict_metadata

    def is_tensor(self, name: str) -> bool:
        return isinstance(self._entries[name], TensorStorageMetadata)

    def size(self, name: str) -> torch.Size:
        size: torch.Size = self._entries[name].size
        return size

    def dtype(self, name: str) -> torch.dtype:
        dtype: torch.dtype = self._entries[name].properties.dtype
        return dtype

    def aliases(self) -> dict[str, str]:
        """The names of tied tensors -> the first name that each has."""
        first: dict[tuple[Any, ...], str] = {}
        found = {}
        for name in filter(self.is_tensor, self.names):
            place = self._place(name)
            if place is not None and first.setdefault(place, name) != name:
                found[name] = first[place]
        return found

    def _place(self, name: str) -> tuple[Any, ...] | None:
        chunks = self._entries[name].chunks
        if not chunks or math.prod(self.size(name)) == 0:
            return None
        info = self._content.storage_data[MetadataIndex(name, chunks[0].offsets)]
        return (info.relative_path, info.offset)

    def read_into(self, boxes: Iterable[Box]) -> None:
        """Fill the memory of each box from the parts that it overlaps with. KeyError for a name that is not there."""
        wanted: dict[str, list[Box]] = {}
        for box in boxes:
            if box.data.numel():
                wanted.setdefault(box.name, []).append(box)
        planner, items = _ReadPlanner(wanted), list[ReadItem]()
        for name, parts in wanted.items():
            chunks = [ChunkStorageMetadata(torch.Size(box.offsets), box.data.shape) for box in parts]
            found = create_read_items_for_chunk_list(name, self._entries[name], chunks)
            if sum(math.prod(item.lengths) for item in found) != sum(box.data.numel() for box in parts):
                raise ValueError(f"{self.folder} has only a part of {name}.")
            items += found
        self._read(items, planner)

    def read(self, name: str) -> torch.Tensor:
        """A whole tensor, on the CPU."""
        tensor = torch.empty(self.size(name), dtype=self.dtype(name))
        self.read_into([Box(name, tensor.size(), (0,) * tensor.dim(), tensor)])
        return tensor

    def values(self, prefix: str) -> dict[str, Any]:
        """What is no tensor, by the names that begin with `prefix`."""
        names = [name for name in self.names if name.startswith(prefix) and not self.is_tensor(name)]
        planner = _ReadPlanner({})
        nothing, kind = torch.Size([0]), torch.distributed.checkpoint.planner.LoadItemType.BYTE_IO
        items = [ReadItem(kind, MetadataIndex(name), nothing, MetadataIndex(name), nothing, nothing) for name in names]
        self._read(items, planner)
        return planner.values

    def _read(self, items: list[ReadItem], planner: _ReadPlanner) -> None:
        reader = filesystem.FileSystemReader(self.folder)
        reader.set_up_storage_reader(self._content, is_coordinator=True)
        try:
            reader.read_data(LoadPlan(items), planner).wait()
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ValueError(f"{self.folder} cannot be read: {reason}") from error

    def problems(self) -> list[str]:
        """Files that are missing or end before they should, a sentence each."""
        ends: dict[str, int] = {}
        for info in self._content.storage_data.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        found = []
        for name, end in sorted(ends.items()):
            path = self.folder / name
            shown = f"{self.folder.name}/{name}"
            if Path(name).name != name:
                found.append(f"{self.folder.name} lists {name!r}, which is not the name of a file in it")
            elif not path.is_file():
                found.append(f"{shown} is missing")
            elif path.stat().st_size < end:
                found.append(f"{shown} was cut short")
        return found


def is_sharded_folder(folder: Path) -> bool:
    return (folder / SHARDED_CONTENTS_NAME).is_file()


def read_model(checkpoint: Path) -> dict[str, Any]:
    """The weights of a checkpoint, whole, on the CPU; tied ones are one tensor under each of their names."""
    contents = ShardedFolder(checkpoint / SHARDED_WEIGHTS_NAME)
    aliases = contents.aliases()
    state = {name: contents.read(name) for name in contents.names if contents.is_tensor(name) and name not in aliases}
    state |= {alias: state[name] for alias, name in aliases.items()} | contents.values(WEIGHT)
    return {name.removeprefix(WEIGHT): state[name] for name in contents.names}


def problems(folder: Path) -> list[str]:
    """What is wrong with a folder of torch.distributed.checkpoint, a sentence each."""
    if not (folder / SHARDED_CONTENTS_NAME).is_file():
        return [f"{folder.name}/{SHARDED_CONTENTS_NAME} is missing"]
    try:
        return ShardedFolder(folder).problems()
    except ValueError as error:
        return [str(error)]


@final
class _ReadPlanner(LoadPlanner):
    """Says where each part that is read belongs."""

    def __init__(self, boxes: Mapping[str, Sequence[Box]]) -> None:
        self._data = {MetadataIndex(name, box.offsets): box.data for name, parts in boxes.items() for box in parts}
        self.values: dict[str, Any] = {}

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        target = self._data[read_item.dest_index].detach()
        for dimension, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            target = target.narrow(dimension, start, length)
        return target

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.storage_index.fqn
        self.values[name] = torch_file.load_plain(value, name)

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        return

    def set_up_planner(self, *arguments: Any, **options: Any) -> None:
        return

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan([])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan


_PLAIN_TYPES: dict[tuple[str, str], Any] = {
    (kind.__module__, kind.__qualname__): kind
    for kind in (
        metadata.BytesStorageMetadata,
        metadata.ChunkStorageMetadata,
        metadata.Metadata,
        metadata.MetadataIndex,
        metadata.StorageMeta,
        metadata.TensorProperties,
        metadata.TensorStorageMetadata,
        metadata._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        torch.Size,
        pathlib.PosixPath,
        pathlib.PurePosixPath,
        pathlib.WindowsPath,
        pathlib.PureWindowsPath,
    )
} | {("torch.serialization", "_get_layout"): torch.serialization._get_layout}


@final
class _PlainUnpickler(pickle.Unpickler):
    """Makes what a list of contents consists of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(found := vars(torch).get(name), (torch.dtype, torch.layout)):
            return found
        # Python 3.13 has its paths in a module below.
        found = _PLAIN_TYPES.get((module, name)) or _PLAIN_TYPES.get((f"{module}._local", name))
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which could run code")
        return found


def _read_content(path: Path) -> metadata.Metadata:
    try:
        with path.open("rb") as file:
            content = _PlainUnpickler(file).load()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except Exception as error:  # whatever damaged bytes make of it
        raise ValueError(f"{path} cannot be read ({error})") from error
    if not isinstance(content, metadata.Metadata):
        raise ValueError(f"{path} cannot be read (it holds a {type(content).__name__})")
    return content
