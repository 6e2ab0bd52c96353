"""`kunren launch`: what a command line means, and how mistakes in it are answered. Nothing is started here."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from kunren.cli import launch
from kunren.cli.elastic_agent import Launch, _first, _told
from kunren.cli.launch import LaunchError, planned, read_words
from kunren.cli.launch_words import ELSEWHERE, OPTIONS, WORDS
from kunren.cli.main import main

ENGLISH: dict[str, Any] = WORDS["en"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    return tmp_path


def plan(*words: str, devices: int = 0, is_on_cpu: bool = False, language: str = "en") -> tuple[Launch, str]:
    return planned(read_words([*words, "train.py", "--lr", "1"], ENGLISH), devices, "GPU", is_on_cpu, WORDS[language])


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["launch", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kunren: ") and captured.err.count("\n") == 1
    return captured.err


def test_the_launchers_options_end_where_the_script_begins() -> None:
    request = read_words(["--processes=2", "--node_rank", "1", "-m", "a.b", "--processes", "3", "--", "-m"], ENGLISH)
    assert request.options == {"--processes": "2", "--node-rank": "1", "--module": ""}
    assert (request.source, request.words) == ("a.b", ["--processes", "3", "--", "-m"])
    assert read_words(["--", "--strange.py"], ENGLISH).source == "--strange.py"


@pytest.mark.parametrize(
    ("words", "devices", "processes", "why"),
    [
        ((), 4, 4, "4 processes: 4 GPUs are visible."),
        ((), 1, 1, "1 process: 1 GPU is visible."),
        ((), 0, 1, "1 process: no GPU is visible."),
        (("--processes", "auto"), 2, 2, "2 processes: 2 GPUs are visible."),
        (("--processes", "2"), 4, 2, "2 processes: as asked; 4 GPUs are visible."),
        (("--processes", "3"), 0, 3, "3 processes: as asked; no GPU is visible."),
    ],
)
def test_every_device_is_used_and_the_line_says_why(words: Any, devices: int, processes: int, why: str) -> None:
    found, said = plan(*words, devices=devices)
    assert (found.processes, said) == (processes, why)
    assert found.words[-4:] == ("script", "train.py", "--lr", "1") and found.words[-5] == str(os.getpid())
    assert (found.nodes, found.rendezvous, found.address, found.max_restarts) == (1, None, None, 0)


def test_on_the_cpu_and_in_japanese() -> None:
    assert plan("--processes", "3", is_on_cpu=True)[1] == "3 processes: to train on the CPU, as asked."
    assert plan(devices=2, language="ja")[1] == "2 プロセス: GPU が 2 個見えている。"


def test_one_of_several_machines() -> None:
    words = ("--nodes", "8", "--node-rank", "3", "--rendezvous", "localhost", "--run-id", "7", "--max-restarts", "2")
    found, said = plan(*words, devices=8)
    assert said == "8 processes: 8 GPUs are visible; machine 3 of 8, meeting at localhost:29400."
    assert (found.nodes, found.node_rank, found.rendezvous) == (8, 3, ("localhost", 29400))
    assert (found.run_id, found.max_restarts) == ("7", 2)
    assert found.address is None  # nobody else knows this machine by 127.0.0.1
    found, _ = plan("--nodes", "2", "--node-rank", "1", "--rendezvous", "[::1]:5", "--address", "10.0.0.9")
    assert (found.rendezvous, found.address) == (("::1", 5), "10.0.0.9")


def test_a_configuration_is_trained_by_the_train_command() -> None:
    found, _ = planned(read_words(["run.yaml", "--bf16"], ENGLISH), 0, "GPU", False, ENGLISH)
    assert found.words[-5:] == ("module", "kunren", "train", "run.yaml", "--bf16")


def test_the_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)), raising=False)
    assert launch._settings(plan("--processes", "2")[0], ENGLISH) == ["OMP_NUM_THREADS=3: 7 cores, 2 processes."]
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert launch._settings(plan("--processes", "5")[0], ENGLISH) == []  # it is set by now
    monkeypatch.delenv("OMP_NUM_THREADS")
    launch._settings(plan("--processes", "9")[0], ENGLISH)
    assert os.environ["OMP_NUM_THREADS"] == "1"
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert launch._settings(plan()[0], ENGLISH) == [] and "OMP_NUM_THREADS" not in os.environ
    assert os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE")


@pytest.mark.skipif(sys.platform != "linux", reason="names of interfaces are asked of Linux")
def test_the_interface_of_an_address() -> None:
    assert launch._interface_of("127.0.0.1") == "lo"
    assert launch._interface_of("192.0.2.1") is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Give a script or a configuration"),
        (("--proceses", "2", "train.py"), "no option --proceses. Did you mean '--processes'?"),
        (("--max_restart", "2", "train.py"), "no option --max_restart. Did you mean '--max-restarts'?"),
        (("--nproc_per_node=2", "train.py"), "--nproc_per_node is called --processes here."),
        (("--num_procesess", "2", "train.py"), "Did you mean '--processes'?"),
        (("--processes", "train.py"), "--processes train.py: give a whole number or auto, of 1 or more."),
        (("--processes", "0", "train.py"), "--processes 0: give a whole number or auto, of 1 or more."),
        (("--processes", "-1", "train.py"), "--processes -1: give a whole number"),
        (("--processes",), "--processes needs a value: --processes N|auto."),
        (("--cpu=1", "train.py"), "--cpu takes no value."),
        (("--max-restarts", "two", "train.py"), "--max-restarts two: give a whole number, of 0 or more."),
        (("tain.py",), "tain.py does not exist. Did you mean 'train.py'?"),
        (("-m", "nowhere.train"), "There is no module nowhere.train"),
        (("-m", "train.py"), "train.py is a file: leave -m out, or give the name of a module"),
        (("folder",), "folder is a folder: give a script or a configuration in it, or -m PACKAGE."),
        (("notes.txt",), "notes.txt is neither a Python file nor a configuration"),
        (("--nodes", "2", "train.py"), "--nodes 2: the machines have to know where they meet: --rendezvous HOST:PORT"),
        (("--nodes", "2", "--rendezvous", "localhost", "train.py"), "which of them is this? Give --node-rank"),
        (
            ("--nodes", "2", "--node-rank", "2", "--rendezvous", "localhost", "train.py"),
            "--node-rank 2: of --nodes 2, the last is number 1.",
        ),
        (("--node-rank", "1", "train.py"), "--node-rank is for several machines: give --nodes."),
        (("--rendezvous", "localhost:99999", "train.py"), "a port between 1 and 65535"),
        (("--rendezvous", ":80", "train.py"), "give HOST or HOST:PORT"),
        (("--lang", "fr", "train.py"), "--lang fr: en | ja."),
        (("run.yaml",), "There is no key 'learning_rat'. Did you mean 'learning_rate'?"),
        (("good.yaml", "--learning-rat", "1"), "There is no option --learning-rat. Did you mean '--learning_rate'?"),
    ],
)
def test_what_cannot_be_started(here: Path, words: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "notes.txt").write_text("no program\n")
    (here / "folder").mkdir()
    (here / "run.yaml").write_text("learning_rat: 1\n")
    (here / "good.yaml").write_text("learning_rate: 1\n")
    assert said in refused(capsys, *words)


def test_a_host_of_no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*place: Any, **options: Any) -> Any:
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(LaunchError, match="--rendezvous nohost: there is no host of that name."):
        plan("--nodes", "2", "--node-rank", "0", "--rendezvous", "nohost")


def test_more_processes_than_devices() -> None:
    with pytest.raises(LaunchError, match="--processes 3, and 2 GPUs are visible: .* Give at most 2, or --cpu"):
        plan("--processes", "3", devices=2)


def test_help_in_both_languages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["launch", "--help"]) == 0
    english = capsys.readouterr().out
    assert main(["launch", "--lang", "ja", "-h"]) == 0
    japanese = capsys.readouterr().out
    for text in (english, japanese):
        assert all(f"\n  {name}" in text for name in OPTIONS)
        assert max(map(len, text.splitlines())) <= 100
    assert "訓練" not in english and "プロセス" in japanese
    assert main(["launch", "good.yaml", "--help", "learning_rate"]) == 2  # there is no such file
    capsys.readouterr()
    Path("good.yaml").write_text("learning_rate: 1\n")
    assert main(["launch", "good.yaml", "--help", "learning_rate"]) == 0
    assert "--learning_rate" in capsys.readouterr().out


def test_both_languages_say_the_same_things() -> None:
    assert WORDS["en"].keys() == WORDS["ja"].keys()
    assert set(ELSEWHERE.values()) <= OPTIONS.keys()


class Failure:
    """An end as torch's agent reports it."""

    def __init__(self, exitcode: int, message: str | None = None, time: float = 0.0) -> None:
        self.exitcode, self.timestamp = exitcode, int(time)
        extra = {"py_callstack": f"Traceback\n{message}\n", "timestamp": str(int(time)), "time": time}
        self.error_file_data: Any = {"message": {"message": message, "extraInfo": extra} if message else "<NONE>"}

    def signal_name(self) -> str:
        return "SIGKILL" if self.exitcode == -9 else "SIGTERM"


@pytest.mark.parametrize(
    ("ends", "at_fault"),
    [
        ([Failure(1, "ValueError: no", 5.2), Failure(1, "ValueError: no", 5.1)], 1),
        ([Failure(1, "RuntimeError: Connection closed by peer", 5.1), Failure(1, "ValueError: no", 5.2)], 1),
        ([Failure(1, "RuntimeError: Connection reset by peer", 5.1), Failure(-9, None, 6)], 1),
        ([Failure(-15, None, 5), Failure(3, None, 6)], 1),
        ([Failure(-15, None, 5), Failure(-15, None, 6)], 0),
    ],
)
def test_the_one_at_fault_is_the_first_that_no_other_has_ended(ends: list[Failure], at_fault: int) -> None:
    assert _first(dict(enumerate(ends)))[0] == at_fault


def test_what_is_told_of_an_end() -> None:
    assert _told({1: Failure(-9)}, 2, ENGLISH) == (
        "process 1 of 2 was the first to end, killed by SIGKILL. The system does that when its memory is used up."
    )
    assert _told({0: Failure(3)}, 1, ENGLISH) == "process 0 of 1 failed first, with exit status 3."
    told = _told({0: Failure(1, "ValueError: no")}, 1, ENGLISH)
    assert told == "process 0 of 1 failed first, with exit status 1:\nTraceback\nValueError: no"
