"""`kunren checkpoint`: what is in a checkpoint, whether it is whole, what differs between two."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from unit.checkpoint.publishing import publish

from kunren.base.state import TrainerState
from kunren.checkpoint import parts
from kunren.checkpoint.layout import checkpoint_path
from kunren.checkpoint.weights import save_weights
from kunren.cli.checkpoint_diff import difference_of
from kunren.cli.main import main
from kunren.planning.units import human_size


def saved(run: Path, step: int, best: int | None = None, change: float = 0.0, **arguments: Any) -> Path:
    """A small checkpoint; `change` moves one weight and one moment."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        model[0].weight[1, 2] += change
        optimizer.state[model[1].bias]["exp_avg"][0] += change
    state = TrainerState(global_step=step, epoch=step / 10, log_history=[{"step": 1, "loss": 2.0, "x_runtime": step}])
    if best is not None:
        state.best_model_checkpoint = str(run / f"checkpoint-{best}")

    def write(folder: Path) -> None:
        save_weights(model, folder)
        parts.save_trainer_state(state, folder)
        parts.save_optimizer(optimizer, folder)
        parts.save_training_args({"learning_rate": 0.1, "output_dir": "out", **arguments}, folder)

    publish(checkpoint_path(run, step), write)
    return checkpoint_path(run, step)


def rewritten(checkpoint: Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None) -> Path:
    save_file(dict(tensors), checkpoint / "model.safetensors", metadata)
    return checkpoint


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main(["checkpoint", *map(str, words)])
    return code, capsys.readouterr().out


def parsed(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Any:
    return json.loads(answer(capsys, *words, "--json")[1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)


# ---- ls


def test_a_run_is_listed_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 10, best=9)
    saved(tmp_path, 9, best=9)
    (tmp_path / "checkpoint-11").mkdir()
    code, text = answer(capsys, "ls", tmp_path)
    assert code == 0
    header, *lines = text.splitlines()
    assert header.split() == ["step", "epoch", "size", "saved", "best", "state"]
    assert [line.split()[0] for line in lines] == ["9", "10", "11"]
    assert lines[0].split()[1:4] == ["0.90", *human_size(size_of(tmp_path / "checkpoint-9")).split()]
    assert lines[0].split()[-2:] == ["best", "whole"]
    assert "best" not in lines[1]
    assert "damaged: trainer_state.json is missing" in lines[2]
    rows = parsed(capsys, "ls", tmp_path)["checkpoints"]
    assert [(row["step"], row["best"], bool(row["problems"])) for row in rows] == [
        (9, True, False),
        (10, False, False),
        (11, False, True),
    ]


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_one_checkpoint_is_listed_with_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = saved(tmp_path, 3, best=3)
    described = parsed(capsys, "ls", checkpoint)
    assert (described["tensors"], described["parameters"]) == (4, 4 * 3 + 3 + 3 * 2 + 2)
    assert described["best"] and described["step"] == 3 and described["bytes"] == size_of(checkpoint)
    assert {file["name"] for file in described["files"]} == {path.name for path in checkpoint.iterdir()}
    code, text = answer(capsys, "ls", checkpoint)
    assert code == 0
    assert "4 tensors, 23 parameters" in text
    (line,) = [line for line in text.splitlines() if line.startswith("model.safetensors")]
    assert line.split()[-2:] == ["4", "23"]


def test_tied_weights_count_once_and_shards_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = rewritten(saved(tmp_path, 1), {"a": torch.ones(2, 3)}, {"b": "a", "format": "pt"})
    described = parsed(capsys, "ls", checkpoint)
    assert (described["tensors"], described["parameters"]) == (1, 6)
    (checkpoint / "model.safetensors").unlink()
    save_file({"a": torch.ones(2)}, checkpoint / "model-00001-of-00002.safetensors")
    save_file({"b": torch.ones(3)}, checkpoint / "model-00002-of-00002.safetensors")
    torch.save({"a": torch.ones(2), "b": torch.ones(3)}, checkpoint / "pytorch_model.bin")
    described = parsed(capsys, "ls", checkpoint)
    assert (described["tensors"], described["parameters"]) == (2, 5)


def test_a_folder_of_another_name_may_be_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, 3).rename(tmp_path / "final")
    assert parsed(capsys, "ls", tmp_path / "final")["step"] == 3


@pytest.mark.parametrize(
    ("name", "reason"), [("missing", "does not exist"), ("file", "is a file"), ("empty", "no fold")]
)
def test_what_is_no_checkpoint_is_told(
    name: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for action in ("ls", "verify"):
        assert main(["checkpoint", action, str(tmp_path / name)]) == 2
        told = capsys.readouterr().err
        assert str(tmp_path / name) in told and reason in told


# ---- verify


def test_verify_names_what_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = saved(tmp_path, 1), saved(tmp_path, 2)
    code, text = answer(capsys, "verify", tmp_path)
    assert code == 0
    assert text.count("whole") == 2 and "every digest is right" in text
    flip(bad / "model.safetensors")
    (bad / "optimizer.pt").unlink()
    assert answer(capsys, "verify", good)[0] == 0
    code, text = answer(capsys, "verify", tmp_path)
    assert code == 1
    assert text.splitlines()[0].startswith(f"{good}: whole")
    assert text.splitlines()[1:] == [
        f"{bad}: damaged",
        "  model.safetensors has changed since it was written (its sha256 differs)",
        "  optimizer.pt is missing",
    ]
    assert [len(one["problems"]) for one in parsed(capsys, "verify", tmp_path)["checkpoints"]] == [0, 2]


def test_verify_says_what_it_cannot_know(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = saved(tmp_path, 1)
    (checkpoint / "manifest.json").unlink()
    code, text = answer(capsys, "verify", checkpoint)
    assert code == 0
    assert "no manifest, so no digests" in text


# ---- diff


def test_a_checkpoint_does_not_differ_from_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path / "a", 3, best=3), saved(tmp_path / "b", 3, best=3)
    code, text = answer(capsys, "diff", one, other)
    assert code == 0
    assert text.startswith("No difference: 4 tensors")
    assert parsed(capsys, "diff", one, other)["equal"]


def test_what_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path, 3), saved(tmp_path, 4, change=0.5, learning_rate=0.2)
    assert answer(capsys, "diff", one, other)[0] == 1
    found = parsed(capsys, "diff", one, other)
    assert found["state"] == {"epoch": {"first": 0.3, "second": 0.4}, "global_step": {"first": 3, "second": 4}}
    assert found["arguments"] == {"learning_rate": {"first": 0.1, "second": 0.2}}
    (tensor,) = found["tensors"]
    assert (tensor["name"], tensor["differing"], tensor["elements"]) == ("0.weight", 1, 12)
    assert tensor["max_difference"] == pytest.approx(0.5)
    assert found["equal_tensors"] == 3
    assert found["optimizer"] == "states of 1 of 4 parameters differ, by 0.5 at most"
    assert not found["equal"]


def test_other_names_shapes_and_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    half = torch.ones(2, dtype=torch.float16)
    one = rewritten(saved(tmp_path, 3), {"a": torch.ones(2), "b": torch.ones(2), "t": torch.ones(2)})
    other = rewritten(saved(tmp_path, 4), {"b": torch.ones(3), "c": torch.ones(2), "t": half})
    found = parsed(capsys, "diff", one, other)
    assert (found["only_first"], found["only_second"], found["equal_tensors"]) == (["a"], ["c"], 0)
    shapes, types = found["tensors"]
    assert (shapes["name"], shapes["shapes"], shapes["max_difference"]) == ("b", [[2], [3]], None)
    assert (types["name"], types["dtypes"], types["differing"]) == ("t", ["float32", "float16"], 0)
    text = answer(capsys, "diff", one, other)[1]
    assert "[2] float32 | [3] float32" in text and "tensors only in A: 1\n  a\n" in text


def test_arguments_alone_are_listed_with_status_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path / "a", 3), saved(tmp_path / "b", 3, fsdp=True)
    code, text = answer(capsys, "diff", one, other)
    assert code == 0
    assert "fsdp" in text and "No difference" not in text
    found = parsed(capsys, "diff", one, other)
    assert found["values_are_equal"] and not found["equal"]


def test_the_second_name_of_a_tie_is_not_another_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {"wte": torch.ones(2), "b": torch.ones(2)}
    one, other = (
        rewritten(saved(tmp_path / "a", 3), tensors, {"head": "wte"}),
        rewritten(saved(tmp_path / "b", 3), tensors),
    )
    for first, second in ((one, other), (other, one)):
        assert answer(capsys, "diff", first, second)[0] == 0
        found = parsed(capsys, "diff", first, second)
        assert (found["only_first"], found["only_second"]) == ([], [])
    rewritten(other, {"b": torch.ones(2)})
    assert parsed(capsys, "diff", one, other)["only_first"] == ["head", "wte"]


def test_adapters_and_pickled_weights_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path, 3), saved(tmp_path, 4)
    for checkpoint, value in ((one, 1.0), (other, 3.0)):
        (checkpoint / "model.safetensors").unlink()
        torch.save({"w": torch.full((2,), value)}, checkpoint / "pytorch_model.bin")
    assert parsed(capsys, "diff", one, other)["tensors"][0]["max_difference"] == 2
    for checkpoint, value in ((one, 1.0), (other, 4.0)):
        (checkpoint / "pytorch_model.bin").unlink()
        (checkpoint / "style").mkdir()
        save_file({"w": torch.full((2,), value)}, checkpoint / "style" / "adapter_model.safetensors")
    (tensor,) = parsed(capsys, "diff", one, other)["tensors"]
    assert (tensor["name"], tensor["max_difference"]) == ("style/w", 3)


def test_missing_optimizers_and_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path / "a", 3), saved(tmp_path / "b", 3)
    (other / "optimizer.pt").unlink()
    (one / "notes.txt").write_text("x")
    (one / "same.txt").write_text("x")
    (other / "same.txt").write_text("y")
    found = parsed(capsys, "diff", one, other)
    assert found["optimizer"] == "only in A"
    assert found["files"] == ["notes.txt only in A", "same.txt differs"]
    (one / "optimizer.pt").unlink()
    assert parsed(capsys, "diff", one, other)["optimizer"] == "none in either"


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("code was run",))


def test_reading_runs_no_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path, 3), saved(tmp_path, 4)
    for name in ("training_args.bin", "optimizer.pt"):
        torch.save(Evil(), one / name)
    text = answer(capsys, "diff", one, other)[1]
    assert "code was run" not in text
    assert "the arguments of A are pickled" in text and "optimizer: not compared" in text
    (other / "model.safetensors").unlink()
    (other / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(), protocol=2))
    assert main(["checkpoint", "diff", str(one), str(other)]) == 2
    captured = capsys.readouterr()
    assert "code was run" not in captured.out + captured.err
    assert "pytorch_model.bin cannot be read without running code" in captured.err
    assert "0 tensors" in answer(capsys, "ls", other)[1]


def test_weights_that_cannot_be_read_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = saved(tmp_path, 3), saved(tmp_path, 4)
    (other / "model.safetensors").write_bytes(b"x" * 30)
    assert main(["checkpoint", "diff", str(one), str(other)]) == 2
    assert "model.safetensors cannot be read" in capsys.readouterr().err
    assert main(["checkpoint", "diff", str(tmp_path), str(other)]) == 2
    assert "name one of them" in capsys.readouterr().err


def test_differences_of_every_type() -> None:
    nan, inf = math.nan, math.inf
    assert difference_of(torch.tensor([1.0, nan, inf]), torch.tensor([1.0, nan, inf])) == (0.0, 0)
    assert difference_of(torch.tensor([1.0, 2.0]), torch.tensor([1.0, -inf])) == (inf, 1)
    largest, count = difference_of(torch.tensor([1.0, nan, 5.0]), torch.tensor([9.0, 1.0, 5.0]))
    assert math.isnan(largest) and count == 2
    assert difference_of(torch.tensor([True, False]), torch.tensor([True, True])) == (1.0, 1)
    assert difference_of(torch.tensor([2**60]), torch.tensor([2**60 + 1]))[1] == 1
    assert difference_of(torch.zeros(0), torch.zeros(0)) == (0.0, 0)
    long = torch.zeros((1 << 22) + 5)
    changed = long.clone()
    changed[3], changed[-1] = 1.0, -2.0
    assert difference_of(long, changed) == (2.0, 2)
    assert difference_of(torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).bfloat16() * 3) == (2.0, 2)


def test_sizes_as_people_read_them() -> None:
    assert [human_size(size) for size in (0, 1023, 1024, 1536 << 20)] == ["0 B", "1023 B", "1.0 KiB", "1.5 GiB"]


def test_help_does_not_load_torch() -> None:
    script = (
        "import sys\nfrom kunren.cli.main import main\n"
        "try:\n    main(['checkpoint', 'diff', '--help'])\nexcept SystemExit as done:\n    assert done.code == 0\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60).returncode == 0


def test_what_cannot_be_merged_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = saved(tmp_path, 3)
    refused = {
        checkpoint: "cannot be merged: its weights are whole already.",
        tmp_path: "is a folder of checkpoints: name one of them to merge.",
        tmp_path / "absent": "does not exist.",
    }
    for path, reason in refused.items():
        assert main(["checkpoint", "merge", str(path)]) == 2
        assert capsys.readouterr().err.endswith(f"{path} {reason}\n")
    (checkpoint / "model.safetensors").unlink()
    assert main(["checkpoint", "merge", str(checkpoint)]) == 2
    assert "is damaged and cannot be merged: model.safetensors is missing" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]
