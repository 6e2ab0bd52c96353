"""`kunren launch` and `accelerate launch`: the same script in several processes, ended by signals and by errors."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import kunren
from kunren.checkpoint import layout

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

HERE = Path(__file__).parent
SCRIPT, SLOW = str(HERE / "script.py"), str(HERE / "launched.py")
CONFIG = """\
model: {folder}/bert
task: text-classification
train_dataset: {folder}/train.csv
output_dir: {folder}/out
learning_rate: 1e-2
per_device_train_batch_size: 4
max_steps: {steps}
save_steps: {steps}
logging_steps: 2
use_cpu: true
run_report: false
"""


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(kunren.__file__).parents[1])}


def launch(*words: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kunren", "launch", *words]
    return subprocess.run(
        command, env=environment(), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def wait_for(what: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A launcher amid the training of two processes, and their ids."""
    folder.mkdir()
    command = [sys.executable, "-m", "kunren", "launch", "--processes", "2", *options, SLOW, str(folder), "is slow"]
    launcher = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    files = [folder / "pid-0", folder / "pid-1"]
    processes: list[int] = []
    try:
        wait_for(lambda: launcher.poll() is not None or all(file.exists() and file.read_text() for file in files))
        processes = [int(file.read_text()) for file in files]
        yield launcher, processes
    finally:
        for process in (launcher.pid, *processes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        launcher.communicate()


def is_alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_numbers_are_those_of_one_process(tmp_path: Path) -> None:
    found = {}
    for processes in ("auto", "2"):
        folder = tmp_path / processes
        folder.mkdir()
        done = launch("--cpu", "--processes", processes, SCRIPT, str(folder), "lives")
        assert done.returncode == 0, done.stderr
        found[processes] = json.loads((folder / "found.json").read_text())
        assert f"kunren: {'1 process' if processes == 'auto' else '2 processes'}: " in done.stderr
        assert "torch/distributed" not in done.stderr
    assert found["2"]["weight"] == pytest.approx(found["auto"]["weight"], rel=1e-6)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_end_is_a_good_one(number: signal.Signals, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--max-restarts", "3") as (launcher, processes):
        launcher.send_signal(number)
        _, said = launcher.communicate(timeout=30)
        assert launcher.returncode == 0, said
        assert f"{number.name} was passed on to 2 processes" in said and "started again" not in said
        assert not any(map(is_alive, processes))
    assert len(layout.list_checkpoints(tmp_path / "run")) == 1
    assert layout.newest_whole(tmp_path / "run") is not None
    assert (tmp_path / "run" / "end.pt").exists()  # the script has gone on after train()


def test_the_third_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running(tmp_path / "run") as (launcher, processes):
        for process in processes:
            os.kill(process, signal.SIGSTOP)  # hangs
        for _ in range(3):
            launcher.send_signal(signal.SIGINT)
            time.sleep(0.5)
        for process in processes:
            os.kill(process, signal.SIGCONT)
        _, said = launcher.communicate(timeout=30)
        assert launcher.returncode == 128 + signal.SIGINT, said
        assert not any(map(is_alive, processes))


def test_what_the_launcher_leaves_behind_when_it_is_killed_saves_and_ends(tmp_path: Path) -> None:
    with running(tmp_path / "run") as (launcher, processes):
        launcher.kill()
        wait_for(lambda: not any(map(is_alive, processes)))
    assert layout.newest_whole(tmp_path / "run") is not None


def test_a_demand_to_save_is_passed_on(tmp_path: Path) -> None:
    with running(tmp_path / "run") as (launcher, _):
        launcher.send_signal(signal.SIGUSR1)
        wait_for(lambda: layout.newest_whole(tmp_path / "run") is not None)
        assert launcher.poll() is None


def test_the_traceback_of_the_first_that_fails_stands_last(tmp_path: Path) -> None:
    done = launch("--processes", "2", SCRIPT, str(tmp_path), "raises")
    assert done.returncode == 1
    told = done.stderr.rpartition("kunren: process 1 of 2 failed first, with exit status 1:\n")[2]
    assert told.startswith("Traceback") and f'File "{SCRIPT}"' in told.splitlines()[1]
    assert told.rstrip().endswith("ArithmeticError: of the second process")


def test_the_exit_status_is_that_of_the_process_that_failed(tmp_path: Path) -> None:
    done = launch("--processes", "2", SLOW, str(tmp_path), "exits")
    assert done.returncode == 7, done.stderr
    assert "kunren: process 1 of 2 failed first, with exit status 7." in done.stderr


def test_a_module_and_what_it_prints(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "say.py").write_text(
        "import os, pickle, sys\n"
        "class Own: pass\n"
        "if __name__ == '__main__':\n"
        "    assert type(pickle.loads(pickle.dumps(Own()))) is Own\n"
        "    print(os.environ['RANK'], sys.argv[1:])\n"
    )
    done = launch(
        "--processes=2", "--log-dir", "logs", "-m", "package.say", "--word", "$HOME $$ ${local_rank}", folder=tmp_path
    )
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        (log,) = (tmp_path / "logs").glob(f"*/attempt_0/{rank}/stdout.log")
        assert log.read_text() == f"{rank} ['--word', '$HOME $$ ${{local_rank}}']\n"
    done = launch(str(tmp_path / "package" / "say.py"), "-m", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "0 ['-m']\n")


def write_config(folder: Path, steps: int) -> Path:
    import transformers
    from parity.tokenizer import make_tokenizer

    config = transformers.BertConfig(
        vocab_size=55,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    make_tokenizer().save_pretrained(folder / "bert")
    rows = [f"w{n} w{n * 7 % 30},{'good' if n % 2 else 'bad'}\n" for n in range(16)]
    (folder / "train.csv").write_text("text,label\n" + "".join(rows))
    path = folder / "run.yaml"
    path.write_text(CONFIG.format(folder=folder, steps=steps))
    return path


def test_a_configuration_is_trained_by_all(tmp_path: Path) -> None:
    config = write_config(tmp_path, steps=4)
    done = launch("--processes", "2", str(config))
    assert done.returncode == 0, done.stderr
    several = json.loads((tmp_path / "out" / "train_results.json").read_text())
    assert done.stdout.count("The model is in") == 1
    done = launch(str(config), "--per-device-train-batch-size", "8", "--output_dir", str(tmp_path / "one"))
    assert done.returncode == 0, done.stderr
    one = json.loads((tmp_path / "one" / "train_results.json").read_text())
    assert several["train_loss"] == pytest.approx(one["train_loss"], rel=1e-6)


def test_a_configuration_that_is_interrupted_says_how_to_go_on(tmp_path: Path) -> None:
    config = write_config(tmp_path, steps=100_000)
    done = launch("--processes", "2", "--max-restarts", "1", str(config), "--max-minutes", "0.05")
    assert done.returncode == 75, done.stderr
    assert done.stderr.rstrip().endswith(f"{config} --max-minutes 0.05 --resume` goes on from there.")
    assert "`kunren launch --processes 2 --max-restarts 1 " in done.stderr and "started again" not in done.stderr
    assert layout.newest_whole(tmp_path / "out") is not None


def test_accelerate_launch(tmp_path: Path) -> None:
    accelerate = Path(sys.executable).with_name("accelerate")
    if not accelerate.exists():
        pytest.skip("there is no accelerate command beside this Python")
    # Without --multi_gpu it starts one process, whatever --num_processes says.
    options = ["launch", "--multi_gpu", "--num_processes", "2", "--mixed_precision", "no", "--dynamo_backend", "no"]
    done = subprocess.run(
        [str(accelerate), *options, "--num_machines", "1", SLOW, str(tmp_path), "lives"],
        env=environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.glob("began-*")} == {"began-0-0-at-0", "began-1-0-at-0"}
    assert layout.newest_whole(tmp_path) is not None
