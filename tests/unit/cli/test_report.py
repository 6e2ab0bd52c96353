"""`kunren report`: the files of one run, the comparison of several, and what is told of folders without any."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.report.runs_on_disk import begin, log_lines, make_run, write

from kunren.cli.main import main
from kunren.report import write as writing


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
    assert loss.split(maxsplit=1)[1] == "0.2104 (at step 100), Best 0.2104 (at step 100)"


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
    assert code == 0 and 'pip install "kunren[report]"' in text


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
    begun = write(tmp_path / "begun", [], [begin(1.0)])
    (begun / "metrics.jsonl").unlink()
    code, _, told = answer(capsys, begun)
    assert code == 2 and "metrics.jsonl" in told


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


def test_one_of_several_that_has_logged_nothing_yet_does_not_cost_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "done")
    write(tmp_path / "new", [], [begin(1000.0)])
    (tmp_path / "new" / "metrics.jsonl").unlink()
    code, text, errors = answer(capsys, tmp_path)
    assert code == 0 and "Finished" in text and f"{tmp_path / 'new'} has no metrics.jsonl" in errors
    assert answer(capsys, tmp_path / "new")[0] == 2


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
