"""Files of `kunren train` that are not whole, and signals while a command works."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kunren.cli.run_config import ConfigError, read_config, refuse_output
from kunren.cli.termination import ended_in_order

TEXTS = {
    "a key that stands twice": (b"model: a\nmodel: b\n", "'model' stands twice"),
    "the same under arguments": (b"arguments:\n  seed: 1\n  seed: 2\n", "'seed' stands twice"),
    "lists without end": (b"model: " + b"[" * 3000 + b"]" * 3000, "nested too deep"),
    "another encoding": ("model: ü\n".encode("latin-1"), "is not UTF-8"),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_file_that_is_not_clear_is_refused(what: str, tmp_path: Path) -> None:
    text, said = TEXTS[what]
    (tmp_path / "run.yaml").write_bytes(text)
    with pytest.raises(ConfigError, match="run.yaml") as refused:
        read_config(tmp_path / "run.yaml")
    assert said in str(refused.value)


def test_merged_keys_may_be_said_again(tmp_path: Path) -> None:
    text = "model: a\narguments:\n  <<: {learning_rate: 1.0, seed: 1}\n  seed: 2\n"
    (tmp_path / "run.yaml").write_text(text)
    assert read_config(tmp_path / "run.yaml") == {"model": "a", "learning_rate": 1.0, "seed": 2}


def test_a_name_that_is_too_long_is_no_traceback() -> None:
    with pytest.raises(ConfigError, match="cannot be read: File name too long"):
        read_config(Path("a" * 5000))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_of_a_shell_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"model: a\n")
    os.close(writer)
    assert read_config(Path(f"/dev/fd/{reader}")) == {"model": "a"}
    os.close(reader)


def test_an_output_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(ConfigError, match=r"file is no folder. Set output_dir"):
            refuse_output(place)
    refuse_output(tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.skipif(os.name == "nt", reason="no such signals")
def test_a_command_that_is_ended_cleans_up() -> None:
    cleaned = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, ended_in_order():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            cleaned.append(True)
    assert ended.value.code == 143 and cleaned
    assert signal.getsignal(signal.SIGTERM) is before
