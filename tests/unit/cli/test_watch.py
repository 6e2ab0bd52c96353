"""`kunren watch`: in a terminal, into a pipe, once, and as a page."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from unit.cli.terminal import OnTerminal
from unit.report.runs_on_disk import begin, end, log_lines, make_run, warning, write

from kunren.cli import watch
from kunren.cli.main import main
from kunren.report.run_folders import WatchedRuns


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the language of whoever runs the tests."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def going_on(folder: Path, steps: int = 60) -> Path:
    return make_run(folder, steps, outcome=None)


def append(path: Path, *lines: dict[str, object]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def run_ends(run: Path, step: int) -> None:
    append(run / "events.jsonl", end(time.time(), step))


# ---- once


def test_once_prints_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    going_on(tmp_path / "a")
    make_run(tmp_path / "b")
    assert main(["watch", "--once", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert all(part in text for part in ("a  ", "b  ", "60/100", "Running", "Finished")) and "\x1b" not in text
    assert main(["watch", "--once", "--lang", "ja", str(tmp_path / "b")]) == 0
    assert "完了" in capsys.readouterr().out
    assert main(["watch", "--once", "--ascii", str(tmp_path)]) == 0
    assert capsys.readouterr().out.isascii()


def test_where_there_is_nothing_to_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "run")
    for words in (["--once", str(tmp_path / "empty")], [str(tmp_path / "nowhere")]):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert main(["watch", *words]) == 2
        told = capsys.readouterr().err
        assert words[-1] in told and str(tmp_path / "run") in told
    assert "--follow" in told
    for words, part in ((["--port", "1"], "--web"), (["--web", "--port", "99999"], "65535")):
        assert main(["watch", str(tmp_path), *words]) == 2
        assert part in capsys.readouterr().err


def test_the_language_of_the_environment_is_spoken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    make_run(tmp_path / "run")
    assert main(["watch", "--once", str(tmp_path)]) == 0 and "完了" in capsys.readouterr().out
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    told = capsys.readouterr().err
    assert "見つかりません" in told and str(tmp_path / "run") in told and "--follow を付けて" in told
    assert main(["watch", str(tmp_path), "--port", "1"]) == 2 and "--web を付けて" in capsys.readouterr().err
    assert main(["watch", "--once", "--lang", "en", str(tmp_path)]) == 0 and "Finished" in capsys.readouterr().out


def test_it_starts_without_torch(tmp_path: Path) -> None:
    make_run(tmp_path)
    code = (
        "import sys; from kunren.cli.main import main\n"
        "assert main(['watch', '--once', sys.argv[1]]) == 0 and main(['report', '--no-picture', sys.argv[1]]) == 0\n"
        "import kunren.report.live\n"
        "loaded = {'torch', 'transformers', 'numpy', 'matplotlib'} & sys.modules.keys(); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60, stdout=subprocess.DEVNULL)


# ---- into a pipe


def test_a_line_for_each_entry_until_the_runs_have_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(tmp_path / "run", log_lines(10, 1000.0), [begin(1000.0), warning(1003.0, 5, "odd\x1b[2J\nlines")])
    happenings = iter(
        [
            lambda: append(run / "metrics.jsonl", {"loss": None, "step": 15, "time": 1008.0}),
            lambda: append(run / "metrics.jsonl", {"eval_loss": 0.25, "step": 15, "time": 1008.5}),
            lambda: write(run, log_lines(5, 2000.0), [begin(2000.0)]),  # begun anew
            lambda: append(run / "events.jsonl", end(2009.0, 5, "failed", "ValueError: odd")),
        ]
    )
    monkeypatch.setattr(watch.time, "sleep", lambda _: next(happenings)())
    monkeypatch.setattr(WatchedRuns.__init__, "__defaults__", (0.0,))  # reads as soon as something has changed
    assert main(["watch", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "step 5/100 | loss 0.9985 | grad_norm 2.284 | learning_rate 4.75e-05 | epoch 0.1",
        "step 5/100 | warning: odd [2J lines",
        "step 10/100 | loss 0.8893 | grad_norm 1.161 | learning_rate 4.5e-05 | epoch 0.2",
        "step 15/100 | loss nan",
        "step 15/100 | eval_loss 0.25",
        "step 5/100 | loss 0.9985 | grad_norm 2.284 | learning_rate 4.75e-05 | epoch 0.1",
        "step 5/100 | failed: ValueError: odd",
    ]


def test_it_ends_for_a_run_that_failed_before_its_first_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write(tmp_path / "run", [], [begin(1000.0), end(1003.0, 0, "failed", "ValueError: odd")])
    (run / "metrics.jsonl").unlink()
    assert main(["watch", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == ["step 0/100 | failed: ValueError: odd"]
    assert main(["watch", "--once", str(run)]) == 0
    assert "ValueError: odd" in capsys.readouterr().out


def test_the_runs_are_named_where_there_are_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "a", 5)
    make_run(tmp_path / "b", 5)
    assert main(["watch", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["a:", "a:", "b:", "b:"]


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    make_run(tmp_path, 100)
    command = [sys.executable, "-m", "kunren.cli.main", "watch", "--follow", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("step 5/100")
        process.stdout.close()
        append(tmp_path / "metrics.jsonl", {"loss": 1.0, "step": 105, "time": time.time()})
        assert process.stderr.read() == ""
        assert process.wait(30) == 0


# ---- in a terminal


def test_the_view_follows_the_run_and_stays_when_it_has_ended(tmp_path: Path) -> None:
    run = going_on(tmp_path / "run")
    with OnTerminal("watch", tmp_path) as terminal:
        terminal.until(lambda picture: "60/100" in picture.text() and "! " not in picture.text())
        assert terminal.current_settings() != terminal.settings and terminal.picture.modes == {"1049"}
        append(run / "metrics.jsonl", {"loss": 0.125, "step": 65, "time": time.time()})
        append(run / "events.jsonl", warning(time.time(), 65, "odd"))
        terminal.until(
            lambda picture: all(part in picture.text() for part in ("65/100", "loss 0.125", "! Step 65: odd"))
        )
        terminal.resize(50, 9)
        terminal.until(lambda picture: len(picture.lines) <= 9 and "65/100" in picture.text())
        assert max(map(len, terminal.picture.lines.values())) <= 50
        terminal.resize(100, 40)
        run_ends(run, 65)
        assert terminal.ends() == 0
        assert terminal.current_settings() == terminal.settings and terminal.picture.modes == {"7", "25"}
        assert "Finished" in terminal.picture.history and "65/100" in terminal.picture.history


def test_of_many_runs_what_was_on_the_screen_stays(tmp_path: Path) -> None:
    for index in range(30):
        make_run(tmp_path / f"done-{index:02}")
    going_on(tmp_path / "still")
    with OnTerminal("watch", tmp_path) as terminal:
        terminal.until(lambda picture: "still" in picture.lines.get(0, picture.lines.get(1, "")))
        seen = terminal.picture.text()
        terminal.press("q")
        assert terminal.ends() == 0
    left = terminal.picture.history.strip()
    assert len(left.splitlines()) <= 40 and "still" in left.splitlines()[0] and seen.splitlines()[-1].strip() in left


@pytest.mark.slow
def test_ways_to_leave_a_terminal(tmp_path: Path) -> None:
    run = going_on(tmp_path / "run")
    for leave, status in (
        (lambda terminal: terminal.process.send_signal(signal.SIGINT), 130),
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 143),
        (lambda terminal: terminal.press("q"), 0),
    ):
        with OnTerminal("watch", run) as terminal:
            terminal.until(lambda picture: "60/100" in picture.text())
            leave(terminal)
            assert terminal.ends() == status
            assert terminal.current_settings() == terminal.settings and terminal.picture.modes == {"7", "25"}


@pytest.mark.slow
def test_it_can_be_put_aside_and_taken_up_again(tmp_path: Path) -> None:
    run = going_on(tmp_path / "run")
    with OnTerminal("watch", run) as terminal:
        terminal.until(lambda picture: "60/100" in picture.text())
        terminal.process.send_signal(signal.SIGTSTP)
        terminal.until(lambda picture: picture.modes == {"7", "25"})
        until_stopped(terminal.process.pid)
        assert terminal.current_settings() == terminal.settings
        append(run / "metrics.jsonl", {"loss": 0.125, "step": 65, "time": time.time()})
        terminal.process.send_signal(signal.SIGCONT)
        terminal.until(lambda picture: picture.modes == {"1049"} and "65/100" in picture.text())
        terminal.press("q")
        assert terminal.ends() == 0


def until_stopped(process: int) -> None:
    status = Path(f"/proc/{process}/stat")
    if status.exists():
        end = time.monotonic() + 20
        while status.read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert time.monotonic() < end
            time.sleep(0.02)


@pytest.mark.slow
def test_what_happens_to_files_does_not_end_it(tmp_path: Path) -> None:
    run = going_on(tmp_path / "run")
    with OnTerminal("watch", "--follow", tmp_path, tmp_path / "later") as terminal:
        terminal.until(lambda picture: "60/100" in picture.text())
        content = (run / "metrics.jsonl").read_bytes()
        (run / "metrics.jsonl").write_bytes(content[: len(content) // 2])  # cut off in a line
        terminal.until(lambda picture: "60/100" not in picture.text() and "/100" in picture.text())
        (run / "metrics.jsonl").unlink()
        going_on(tmp_path / "later" / "second", 40)
        terminal.until(lambda picture: "second" in picture.text() and "40/100" in picture.text())
        (run / "metrics.jsonl").write_bytes(content)
        terminal.until(lambda picture: "60/100" in picture.text())
        (run / "metrics.jsonl").write_bytes(b"\x00\xff not a log\n")
        write(run, log_lines(10, time.time() - 5), [begin(time.time() - 5)])
        terminal.until(lambda picture: "10/100" in picture.text())
        for one, step in ((run, 10), (tmp_path / "later" / "second", 40)):
            run_ends(one, step)
        terminal.until(lambda picture: picture.text().count("Finished") == 2)
        assert terminal.process.poll() is None  # --follow
        terminal.press("q")
        assert terminal.ends() == 0


# ---- as a page


def test_the_page_is_served_until_ctrl_c(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    command = [sys.executable, "-m", "kunren.cli.main", "watch", str(tmp_path), "--web", "--port", "0", "--lang", "ja"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline()
        match = re.match(r"http://127\.0\.0\.1:(\d+)/$", address)  # alone in its line
        assert match is not None, address
        connection = http.client.HTTPConnection("127.0.0.1", int(match[1]), timeout=20)
        connection.request("GET", "/")
        assert 'lang="ja"' in connection.getresponse().read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


def test_a_taken_port_is_told_of_and_the_page_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kunren.report.live import LiveServer

    def interrupted(self: LiveServer, poll_interval: float = 0.5) -> None:
        raise KeyboardInterrupt

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with LiveServer([tmp_path], port=0) as taken:
        monkeypatch.setattr(LiveServer, "serve_forever", interrupted)
        assert main(["watch", str(tmp_path), "--web", "--open", "--port", str(taken.port)]) == 0
        told = capsys.readouterr().out
    assert f"port {taken.port} is taken" in told
    assert len(opened) == 1 and opened[0] == told.splitlines()[0] and str(taken.port) not in opened[0]
