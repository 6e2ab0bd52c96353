"""`kunren report`: the files of one run, the comparison of several, and what is told of folders without any."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from unit.report.runs_on_disk import account, begin, end, log_lines, make_run, write

from kunren.cli.main import main
from kunren.report import write as writing
from kunren.report.run_files import PHASES


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the language of whoever runs the tests."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")


def answer(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = main(["report", *map(str, words)])
    told = capsys.readouterr()
    return code, told.out, told.err


def test_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    code, text, _ = answer(capsys, run, "--no-picture")
    assert code == 0 and (run / "report.html").is_file() and not (run / "curves.png").exists()
    for part in ("Finished", "100 of 100", "51 s", "eval_loss", "0.31", "30% of the time", str(run / "report.html")):
        assert part in text, part
    loss = next(line for line in text.splitlines() if line.startswith("loss"))
    assert loss.split(maxsplit=1)[1] == "0.2104 (at step 100), best 0.2104 (at step 100)"


def test_the_picture_and_the_language(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "run", 40, "failed", "Traceback\nValueError: odd")
    code, text, _ = answer(capsys, run, "--lang", "ja")
    assert code == 0 and str(run / "curves.png") in text and (run / "curves.png").is_file()
    assert "エラーで終了: ValueError: odd" in text and 'lang="ja"' in (run / "report.html").read_text(encoding="utf-8")


def test_without_matplotlib(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "find_spec", lambda name: None)
    code, text, _ = answer(capsys, make_run(tmp_path / "run"))
    assert code == 0 and "pip install matplotlib" in text
    assert "数値がまだ" in answer(capsys, write(tmp_path / "empty", [], [begin(1.0)]), "--lang", "ja")[1]


def test_several_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "one", arguments={"learning_rate": 5e-5, "output_dir": "one"})
    make_run(tmp_path / "runs" / "二つ目", 40, "stopped", arguments={"seed": 3, "output_dir": "two"})
    code, text, _ = answer(capsys, "runs/one", "runs/二つ目")
    assert code == 0 and (tmp_path / "compare.html").is_file()
    rows = text.splitlines()
    assert any("one" in row and "Finished" in row and "0.31" in row for row in rows)
    assert any("二つ目" in row and "Stopped early" in row and "40 of 100" in row for row in rows)
    assert any(row.split() == ["learning_rate", "5e-05", "default"] for row in rows)
    assert "output_dir" not in text and not (tmp_path / "runs" / "one" / "report.html").exists()
    (tmp_path / "compare.html").unlink()
    assert answer(capsys, "runs", "runs/one")[1].splitlines()[:3] == rows[:3]  # the folder of both


def test_where_the_page_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    assert answer(capsys, one, two, "--out", tmp_path)[0] == 0 and (tmp_path / "compare.html").is_file()
    assert answer(capsys, one, "--no-picture", "--out", tmp_path / "a.html")[0] == 0
    assert (tmp_path / "a.html").is_file() and not (one / "report.html").exists()
    code, _, told = answer(capsys, one, "--out", tmp_path / "no" / "a.html")
    assert code == 2 and str(tmp_path / "no") in told


def test_a_checkpoint_stands_for_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "checkpoint-40").mkdir()
    assert answer(capsys, run / "checkpoint-40", "--no-picture")[0] == 0 and (run / "report.html").is_file()


def test_an_older_run_and_an_empty_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = write(
        tmp_path / "older",
        [{key: value for key, value in line.items() if key != "account"} for line in log_lines(20, 1.0)],
    )
    code, text, _ = answer(capsys, older, "--no-picture")
    assert code == 0 and "not kept an account" in text
    code, text, _ = answer(capsys, write(tmp_path / "empty", [], [begin(1.0)]), "--no-picture")
    assert code == 0 and "0 of 100" in text


def test_folders_without_a_run_are_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        code, text, told = answer(capsys, tmp_path / name)
        assert code == 2 and text == "" and str(tmp_path / name) in told and str(run) in told


def test_a_page_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    (run / "report.html").mkdir()
    code, _, told = answer(capsys, run, "--no-picture")
    assert code == 2 and "--out FILE" in told and not list(run.glob(".report*"))


def test_what_to_send_where_has_to_be_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path / "run")
    for words in ([run, "--to", "tensorboard"], ["sync", run], ["sync", "--to", "tensorboard"], ["sync"]):
        code, _, told = answer(capsys, *words)
        assert code == 2 and "kunren report sync DIR --to NAME" in told, words


def test_a_run_is_sent_to_a_tracker_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    run = make_run(tmp_path / "run", 20)
    code, text, told = answer(capsys, "sync", run, "--to", "tensorboard")
    assert (code, told) == (0, "") and "tensorboard: 5 log lines sent" in text
    assert list(tmp_path.rglob("events.out.tfevents*"))
    assert "nothing new" in answer(capsys, "sync", run, "--to", "tensorboard")[1]
    code, _, told = answer(capsys, "sync", run, "--to", "tensorbord")
    assert code == 2 and "tensorbord" in told


def test_one_of_several_that_has_logged_nothing_yet_is_among_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "done")
    write(tmp_path / "new", [], [begin(1000.0)])
    (tmp_path / "new" / "metrics.jsonl").unlink()
    code, text, errors = answer(capsys, tmp_path)
    assert (
        code == 0
        and errors == ""
        and "Finished" in text
        and any(line.split()[:2] == ["new", "Running"] for line in text.splitlines())
    )
    assert answer(capsys, tmp_path / "new")[0] == 0 and (tmp_path / "new" / "report.html").is_file()


def test_runs_without_a_bottleneck_or_an_account_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    even = {
        "steps": 1,
        "seconds": {"forward": 0.5, "backward": 0.5},
        "samples": 1,
        "tokens": 0,
        "operations": 0.0,
        "wall": 1.0,
    }
    write(tmp_path / "even", [{"loss": 1.0, "step": 1, "time": 2.0, "account": even}], [begin(1.0)])
    write(tmp_path / "older", [{"loss": 1.0, "step": 1, "time": 1.0}])
    code, text, _ = answer(capsys, "even", "older")
    assert code == 0 and "none" in text and "unknown" in text


def test_runs_that_failed_early_or_lost_their_loss_are_summed_up_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "failed", [], [begin(1.0), {**end(2.0, 0, "failed", "ValueError: 7"), "traceback": "x.py:3 in f"}])
    (tmp_path / "failed" / "metrics.jsonl").unlink()
    code, text, _ = answer(capsys, "failed", "--no-picture")
    assert code == 0 and "Failed: ValueError: 7" in text and "x.py:3 in f" in text
    assert "ValueError: 7" in (tmp_path / "failed" / "report.html").read_text(encoding="utf-8")
    lost = [*log_lines(20, 1.0), {"loss": None, "step": 25, "time": 90.0}, {"loss": None, "step": 30, "time": 99.0}]
    write(tmp_path / "lost", lost, [begin(0.5), begin(1.0), end(100.0, 30)])
    code, text, _ = answer(capsys, "lost", "--no-picture")
    assert "NaN (at step 30), not finite since step 25, best 0.7591 (at step 20)" in text
    assert "holds an earlier training" in text
    code, text, _ = answer(capsys, "failed", "lost")
    assert code == 0 and any("lost" in line and "NaN" in line for line in text.splitlines())
    assert any("failed" in line and "Failed" in line for line in text.splitlines())


def test_healthy_runs_are_compared_in_both_languages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    healthy = account(2.5, 5)
    healthy["seconds"] = {**dict.fromkeys(PHASES, 0.01), "forward": 1.0, "backward": 1.4}
    for name in ("a", "b"):
        lines = [{**line, "account": healthy} if "account" in line else line for line in log_lines(20, 1.0)]
        write(tmp_path / name, lines, [begin(1.0), end(20.0, 20)])
    for language, none in (("en", "none"), ("ja", "なし")):
        code, text, errors = answer(capsys, "a", "b", "--lang", language)
        assert code == 0 and errors == "" and text.count(none) == 2


def test_the_metric_that_chooses_the_best_model_and_those_that_fit_are_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        lines = [{**line, "eval_f1": 1 / line["step"]} if "eval_loss" in line else line for line in log_lines(40, 1.0)]
        write(tmp_path / name, lines, [begin(1.0, arguments={"metric_for_best_model": "f1"}), end(20.0, 40)])
    monkeypatch.setenv("COLUMNS", "200")
    head = answer(capsys, "a", "b")[1].splitlines()[0].split()
    assert head[3:8] == ["loss", "eval_f1", "Best", "eval_loss", "eval_accuracy"]
    assert answer(capsys, "a", "b")[1].splitlines()[1].split()[6:8] == ["0.025", "0.05"]
    monkeypatch.setenv("COLUMNS", "80")
    head = answer(capsys, "a", "b")[1].splitlines()[0].split()
    assert head[3:6] == ["loss", "eval_f1", "Best"] and "eval_accuracy" not in head
    assert "eval_f1" in answer(capsys, "a", "--no-picture")[1]


def test_the_language_of_the_environment_is_spoken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "ja_JP.UTF-8")
    run = make_run(tmp_path / "run")
    code, text, _ = answer(capsys, run, "--no-picture")
    assert code == 0 and "完了" in text and 'lang="ja"' in (run / "report.html").read_text(encoding="utf-8")
    for words, part in (
        ([tmp_path / "nowhere"], "見つかりません"),
        ([run, "--to", "x"], "のためのものです"),
        (["sync", run], "送り先"),
        ([run, "--out", tmp_path / "no" / "a.html"], "がありません"),
    ):
        code, _, told = answer(capsys, *words)
        assert code == 2 and part in told, words
    for command in ("report", "watch"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        told = capsys.readouterr().out
        assert all(part in told for part in ("使い方:", "オプション", "このヘルプを表示", "言語"))
    assert "Finished" in answer(capsys, run, "--no-picture", "--lang", "en")[1]


def test_a_reader_that_has_seen_enough_costs_nothing(tmp_path: Path) -> None:
    runs = [str(make_run(tmp_path / name)) for name in ("a", "b")]
    code = "import os, sys; os.close(0); from kunren.cli.main import main; sys.exit(main(sys.argv[1:]))"
    reading, writing_end = os.pipe()
    os.close(reading)
    page = tmp_path / "page.html"
    command = [sys.executable, "-c", code, "report", *runs, "--out", str(page)]
    done = subprocess.run(command, stdout=writing_end, stderr=subprocess.PIPE, timeout=60)
    os.close(writing_end)
    assert (done.returncode, done.stderr) == (0, b"") and page.is_file()


def test_a_second_run_at_a_tracker_that_followed_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    followed = make_run(tmp_path / "a", 20, arguments={"report_to": ["tensorboard"]})
    write(tmp_path / "empty", [], [begin(1.0)])
    (tmp_path / "empty" / "metrics.jsonl").unlink()
    code, text, _ = answer(capsys, "sync", tmp_path, "--to", "tensorboard")
    assert code == 0 and "it has this run twice now" in text and "nothing to send" in text
    with open(followed / "metrics.jsonl", "a") as file:
        file.write('{"loss": 1.0, "step": 25, "time": 1e10}\n')
    text = answer(capsys, "sync", followed, "--to", "tensorboard")[1]
    assert "1 log lines sent" in text and "twice" not in text
    assert "twice" not in answer(capsys, "sync", make_run(tmp_path / "b", 20), "--to", "tensorboard")[1]
