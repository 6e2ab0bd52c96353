"""Folders of torch.distributed.checkpoint: those that torch has written are read, and torch reads kunren's."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from kunren.checkpoint.formats import distributed_checkpoint
from kunren.checkpoint.formats.distributed_checkpoint import Box, ShardedFolder, Share

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")

MATRIX = torch.arange(15.0).reshape(5, 3)
PATHS = {
    "model.a": ("model", "a"),
    "model.b": ("model", "b"),
    "model.tied": ("model", "tied"),
    "model.n": ("model", "n"),
}


def written(folder: Path) -> Path:
    """By two processes: the first rows of a matrix by one, the others and a number by the other."""
    folder.mkdir(exist_ok=True)
    parts: list[tuple[list[Box], dict[str, Any]]] = [
        ([Box("model.a", MATRIX.size(), (0, 0), MATRIX[:2])], {"model.n": {"count": 3}}),
        (
            [
                Box("model.a", MATRIX.size(), (2, 0), MATRIX[2:]),
                Box("model.b", torch.Size([]), (), torch.tensor(7, dtype=torch.int64)),
            ],
            {},
        ),
    ]
    shares = []
    for index, (boxes, values) in enumerate(parts):
        digests: dict[Path, str] = {}
        items, results = distributed_checkpoint.write(boxes, values, folder, index, digests)
        assert list(digests) == [folder / f"__{index}_0.distcp"]
        shares.append(
            Share(items, results, PATHS if index == 0 else {}, {"model.tied": "model.a"} if index == 0 else {})
        )
    distributed_checkpoint.finish(shares, folder)
    return folder


def test_what_several_have_written_is_read_whole_or_in_any_parts(tmp_path: Path) -> None:
    contents = ShardedFolder(written(tmp_path / "parts"))
    assert contents.names == ["model.a", "model.b", "model.tied", "model.n"]
    assert torch.equal(contents.read("model.a"), MATRIX)
    assert contents.read("model.b") == 7
    assert contents.aliases() == {"model.tied": "model.a"}
    assert contents.values("model.") == {"model.n": {"count": 3}}
    middle, corner = torch.zeros(3, 3), torch.zeros(1, 2)
    contents.read_into([Box("model.a", MATRIX.size(), (1, 0), middle), Box("model.a", MATRIX.size(), (4, 1), corner)])
    assert torch.equal(middle, MATRIX[1:4])
    assert torch.equal(corner, MATRIX[4:, 1:])


def test_torch_reads_it(tmp_path: Path) -> None:
    written(tmp_path / "parts")
    state = {"model": {"a": torch.zeros(5, 3), "tied": torch.zeros(5, 3), "b": torch.zeros((), dtype=torch.int64)}}
    torch_checkpoint.load(state, checkpoint_id=tmp_path / "parts", no_dist=True)
    assert torch.equal(state["model"]["a"], MATRIX)
    assert torch.equal(state["model"]["tied"], MATRIX)
    dcp_to_torch_save(tmp_path / "parts", tmp_path / "whole.pt")
    found = torch.load(tmp_path / "whole.pt", weights_only=True)["model"]
    assert torch.equal(found["a"], MATRIX)
    assert found["n"] == {"count": 3}


def test_what_torch_has_written_is_read(tmp_path: Path) -> None:
    state = {"model": {"a": MATRIX, "b": torch.tensor(1)}, "other": [1, 2]}
    torch_checkpoint.save(state, checkpoint_id=tmp_path / "parts", no_dist=True)
    contents = ShardedFolder(tmp_path / "parts")
    assert torch.equal(contents.read("model.a"), MATRIX)
    assert contents.values("other") == {"other": [1, 2]}
    assert distributed_checkpoint.problems(tmp_path / "parts") == []


class RunsCode:
    def __reduce__(self) -> Any:
        return os.mkdir, ("made-by-a-pickle",)


@pytest.mark.parametrize("content", [RunsCode(), {"a": 1}, b"cut"], ids=["code", "a dict", "damaged"])
def test_a_list_of_contents_that_is_none_is_told_and_runs_no_code(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "parts") / ".metadata"
    path.write_bytes(path.read_bytes()[:-9] if content == b"cut" else pickle.dumps(content))
    with pytest.raises(ValueError, match=r"\.metadata cannot be read"):
        ShardedFolder(tmp_path / "parts")
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_names_that_only_begin_in_a_module_of_torch_are_refused(tmp_path: Path) -> None:
    words = (b"torch.distributed.checkpoint.metadata", b"os.system")
    named = b"".join(b"\x8c" + bytes([len(word)]) + word for word in words)  # SHORT_BINUNICODE
    (tmp_path / ".metadata").write_bytes(b"\x80\x04" + named + b"\x93.")  # STACK_GLOBAL
    with pytest.raises(ValueError, match="could run code"):
        ShardedFolder(tmp_path)


def test_damaged_files_are_told(tmp_path: Path) -> None:
    folder = written(tmp_path / "parts")
    assert distributed_checkpoint.problems(folder) == []
    second = folder / "__1_0.distcp"
    second.write_bytes(second.read_bytes()[:-1])
    (folder / "__0_0.distcp").unlink()
    assert distributed_checkpoint.problems(folder) == [
        "parts/__0_0.distcp is missing",
        "parts/__1_0.distcp was cut short",
    ]
    (folder / ".metadata").unlink()
    assert distributed_checkpoint.problems(folder) == ["parts/.metadata is missing"]


def test_a_tensor_of_which_a_part_was_never_written_is_told(tmp_path: Path) -> None:
    items, results = distributed_checkpoint.write(
        [Box("model.a", MATRIX.size(), (0, 0), MATRIX[:2])], {}, tmp_path, 0, {}
    )
    distributed_checkpoint.finish([Share(items, results, {}, {})], tmp_path)
    with pytest.raises(ValueError, match=r"has only a part of model\.a"):
        ShardedFolder(tmp_path).read("model.a")
