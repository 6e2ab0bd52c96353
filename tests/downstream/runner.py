"""Run one function twice, on transformers' Trainer and on kunren's through `install()`, each in a process of its own.

A test asks the fixture `both` (or `on_kunren`, where there is nothing to compare with):

    def test_losses(both, tmp_path):
        theirs, ours = both("downstream.sft_runs:train", tmp_path, packing=True)
        assert_same_log(theirs["log"], ours["log"])

where `train(folder, packing)` of tests/downstream/sft_runs.py returns something for JSON, e.g. `outcome(trainer)`. Each
of the two sides is a server that imports the module of the function, once, and forks a child for each call: a child
starts with everything imported and nothing used, in milliseconds. It has its own folder, `folder/"kunren"` or
`folder/"transformers"`, and is the only one who may start threads.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_HANGING_SECONDS = 120.0
LOGGED = ("loss", "grad_norm", "learning_rate", "epoch", "step")
# Times, and what is measured of the machine.
TIMES = ("_runtime", "_samples_per_second", "_steps_per_second", "_preparation_time", "_time", "tokens_per_second")


class Side:
    """One library's server: `side("module:function", folder, **options)` is what the function returned."""

    def __init__(self, installed: bool) -> None:
        self.name = "kunren" if installed else "transformers"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment.pop("PYTHONWARNINGS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "downstream.runner", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def start(self, task: str, folder: Path, **options: Any) -> Path:
        """Ask for a call; `answer` waits for it."""
        own = folder / self.name
        own.mkdir(parents=True, exist_ok=True)
        request = {"task": task, "folder": str(own), "options": options}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return own

    def answer(self, own: Path) -> Any:
        """What the function returned. AssertionError with all that it wrote where it failed, or did not end."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        log = own / "output.txt"
        written = log.read_text(errors="replace")[-12_000:] if log.exists() else ""
        if not line or json.loads(line) != 0:
            raise AssertionError(f"on {self.name}: ended with {line.strip() or 'the server'}\n{written}")
        return json.loads((own / "answer.json").read_text())

    def __call__(self, task: str, folder: Path, **options: Any) -> Any:
        return self.answer(self.start(task, folder, **options))

    def close(self) -> None:
        self._process.communicate()


def outcome(trainer: Any, result: Any = None) -> dict[str, Any]:
    """What two trainings are compared by: the log, the weights that are trained, the totals, the control."""
    weights = {name: digest(value) for name, value in trainer.model.named_parameters() if value.requires_grad}
    state = trainer.state
    return {
        "trainer": [f"{kind.__module__}.{kind.__qualname__}" for kind in type(trainer).__mro__],
        "log": state.log_history,
        "weights": weights,
        "global_step": state.global_step,
        "max_steps": state.max_steps,
        "epoch": state.epoch,
        "total_flos": state.total_flos,
        "best_metric": state.best_metric,
        "best_step": getattr(state, "best_global_step", None),
        "training_loss": None if result is None else result.training_loss,
        "metrics": {} if result is None else dict(result.metrics),
        "files": sorted(
            str(path.relative_to(trainer.args.output_dir)) for path in Path(trainer.args.output_dir).rglob("*")
        ),
    }


def digest(tensor: Any) -> str:
    """Equal for tensors that are equal bit for bit."""
    import torch

    flat = tensor.detach().cpu().contiguous().view(torch.uint8) if tensor.dim() else tensor.detach().cpu()[None]
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.sha256(flat.numpy().tobytes()).hexdigest()[:24]}"


def entries(log: Iterable[Mapping[str, Any]], key: str = "loss") -> dict[int, dict[str, Any]]:
    """The entries of a log that have a key, by their step."""
    return {entry["step"]: dict(entry) for entry in log if key in entry}


def assert_same_log(
    theirs: list[dict[str, Any]],
    ours: list[dict[str, Any]],
    key: str = "loss",
    apart: Mapping[str, float] | None = None,
    without: tuple[str, ...] = (),
) -> None:
    """Each of their entries with `key` is in ours, with all its names and, times apart, with equal values.

    `apart` gives names that may differ, and by how much (absolutely); `without`: names that are not compared.
    """
    expected, got = entries(theirs, key), entries(ours, key)
    assert expected, f"no entry with {key} in {theirs}"
    assert set(expected) <= set(got), f"steps {sorted(set(expected) - set(got))} are missing from kunren's log"
    for step, entry in expected.items():
        missing = [name for name in entry if name not in got[step] and not name.endswith(TIMES)]
        assert not missing, f"step {step}: no {missing} in {got[step]}"
        for name, value in entry.items():
            if name.endswith(TIMES) or name in without:
                continue
            other, room = got[step][name], (apart or {}).get(name, 0.0)
            same = other == value or (room and abs(other - value) <= room) or (other != other and value != value)
            assert same, f"step {step}: {name} is {other!r}, in transformers {value!r}"


def assert_same_outcome(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    """Two of `outcome`: equal logs, weights and totals, bit for bit."""
    assert any(name.startswith("kunren.") for name in ours["trainer"]), ours["trainer"]
    assert not any(name.startswith("kunren.") for name in theirs["trainer"]), theirs["trainer"]
    assert_same_log(theirs["log"], ours["log"])
    for name in ("global_step", "max_steps", "epoch", "training_loss", "total_flos", "best_metric", "best_step"):
        assert ours[name] == theirs[name], f"{name} is {ours[name]!r}, in transformers {theirs[name]!r}"
    assert theirs["weights"]
    off = [name for name, value in theirs["weights"].items() if ours["weights"][name] != value]
    assert list(ours["weights"]) == list(theirs["weights"])
    assert not off, f"{len(off)} of {len(theirs['weights'])} weights differ: {off[:4]}"


def _serve() -> Callable[[], None] | None:
    """Fork for each request. Returns in the server at the end of input, and in each child with what it has to do."""
    for line in sys.stdin:
        request = json.loads(line)
        log = Path(request["folder"], "output.txt")
        module, name = request["task"].split(":")
        try:
            function = getattr(importlib.import_module(module), name)
        except BaseException:
            log.write_text(traceback.format_exc())
            print(1, file=_answers, flush=True)
            continue
        gc.collect()
        gc.freeze()  # a collection in a child would otherwise copy every page of the server
        child = os.fork()
        if child == 0:
            return lambda request=request, log=log, function=function: _work(function, request, log)  # type: ignore[misc]
        print(_wait(child), file=_answers, flush=True)
    return None


def _work(function: Callable[..., Any], request: dict[str, Any], log: Path) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    answer = function(Path(request["folder"]), **request["options"])
    Path(request["folder"], "answer.json").write_text(json.dumps(answer))


def _wait(child: int) -> int:
    watch = os.pidfd_open(child)
    if not select.select([watch], [], [], _HANGING_SECONDS)[0]:
        os.kill(child, signal.SIGKILL)
    os.close(watch)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    if sys.argv[1] == "kunren":
        import kunren.hf

        kunren.hf.install()
    todo = _serve()
    if todo is None:
        return
    status = 1
    try:
        todo()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _answers = os.fdopen(os.dup(1), "w")  # what imported modules print goes to standard error
    os.dup2(2, 1)
    main()
