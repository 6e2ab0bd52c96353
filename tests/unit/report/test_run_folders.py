"""Where runs are found, and that they are read again only when something has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from unit.report.runs_on_disk import begin, end, log_lines, make_run, write

from kunren.report import run_folders
from kunren.report.run_files import RunRecord
from kunren.report.run_folders import (
    NoRunError,
    WatchedRuns,
    by_interest,
    most_interesting,
    runs_at,
    runs_at_all,
    runs_or_error,
)


def test_a_run_is_found_from_its_folder_its_files_and_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    (run / "checkpoint-10").mkdir()
    for path in (run, run / "metrics.jsonl", run / "events.jsonl", run / "checkpoint-10"):
        assert runs_at(path) == [run], path
    monkeypatch.chdir(run / "checkpoint-10")
    assert [path.resolve() for path in runs_at(".")] == [run]


def test_runs_below_a_folder_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("run-10", "run-2", "deep/er/run", ".hidden"):
        make_run(tmp_path / name)
    make_run(tmp_path / "run-2" / "within")  # belongs to run-2
    (tmp_path / "other").mkdir()
    assert [path.relative_to(tmp_path).as_posix() for path in runs_at(tmp_path)] == ["deep/er/run", "run-2", "run-10"]
    assert len(runs_at_all([tmp_path / "run-2", tmp_path, tmp_path / "run-10"])) == 3


def test_what_holds_no_run_is_told_with_where_there_is_one(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for name, told in (("nowhere", "does not exist"), ("empty", "no metrics.jsonl"), ("file", "is a file")):
        with pytest.raises(NoRunError, match=told) as caught:
            runs_or_error(tmp_path / name)
        assert name == "file" or str(tmp_path / "run") in str(caught.value)
    assert runs_or_error(tmp_path) == [tmp_path / "run"]


def test_a_run_is_read_again_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Path] = []

    def counted(folder: Path) -> RunRecord:
        reads.append(folder)
        return read(folder)

    read = run_folders.read_run
    monkeypatch.setattr(run_folders, "read_run", counted)
    run = write(tmp_path / "run", log_lines(20, 1000.0), [begin(1000.0)])
    watched = WatchedRuns([tmp_path], rest=0)
    assert [one.step for one in watched.now()] == [20] == [one.step for one in watched.now()]
    assert len(reads) == 1
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"loss": 1.0, "step": 25, "time": 1025.0}\n{"loss": 1.0, "st')
    assert watched.now()[0].step == 25 and len(reads) == 2
    with open(run / "metrics.jsonl", "a") as file:
        file.write('ep": 30, "time": 1030.0}\n')
    assert watched.now()[0].step == 30


def test_reading_rests_as_long_as_it_is_told(tmp_path: Path) -> None:
    watched = WatchedRuns([tmp_path], rest=1e9)
    write(tmp_path / "a", log_lines(20, 1000.0), [begin(1000.0)])
    assert [run.step for run in watched.now()] == [20]
    write(tmp_path / "a", log_lines(40, 1000.0), [begin(1000.0)])
    write(tmp_path / "b", log_lines(40, 1000.0), [begin(1000.0)])
    assert [run.step for run in watched.now()] == [20]


def test_runs_come_go_and_begin_anew(tmp_path: Path) -> None:
    watched = WatchedRuns([tmp_path], rest=0)
    assert watched.now() == [] and watched.waiting == [tmp_path]
    write(tmp_path / "a", log_lines(20, 1000.0), [begin(1000.0)])
    make_run(tmp_path / "b")
    assert [run.name for run in watched.now()] == ["a", "b"] and watched.waiting == []
    write(tmp_path / "a", log_lines(5, 2000.0))  # replaced by a shorter one
    assert [run.step for run in watched.now()] == [5, 100]
    (tmp_path / "a" / "metrics.jsonl").unlink()  # gone while it is looked at: what was read stays
    assert [run.step for run in watched.now()] == [5, 100]
    shutil.rmtree(tmp_path / "a")
    assert [run.name for run in watched.now()] == ["b"]


def test_a_run_that_has_begun_and_logged_nothing_is_waited_for(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [], [begin(1000.0)])
    (run / "metrics.jsonl").unlink()
    watched = WatchedRuns([run], rest=0)
    assert watched.now() == [] and watched.waiting == [run]
    (run / "metrics.jsonl").write_text('{"loss": 1.0, "step": 5, "time": 1005.0}\n')
    assert watched.now()[0].step == 5 and watched.waiting == []


def test_a_run_that_failed_before_its_first_log_is_not_waited_for(tmp_path: Path) -> None:
    for name, events in (("failed", [begin(1000.0), end(1003.0, 0, "failed", "x")]), ("begun", [begin(1000.0)])):
        write(tmp_path / name, [], events)
        (tmp_path / name / "metrics.jsonl").unlink()
    watched = WatchedRuns([tmp_path], rest=0)
    assert [run.name for run in watched.now()] == ["failed"] and watched.waiting == [tmp_path / "begun"]


def test_a_run_keeps_its_place_when_another_appears_before_it(tmp_path: Path) -> None:
    watched = WatchedRuns([tmp_path], rest=0)
    make_run(tmp_path / "b")
    assert [run.name for run in watched.now()] == ["b"]
    make_run(tmp_path / "a")
    make_run(tmp_path / "c")
    assert [run.name for run in watched.now()] == ["b", "a", "c"]


def test_those_that_go_on_come_first_and_then_the_latest(tmp_path: Path) -> None:
    for index, ended in enumerate((5.0, 9.0, 7.0)):
        write(tmp_path / f"done-{index}", log_lines(5, 1.0), [begin(1.0), end(ended, 5)])
    make_run(tmp_path / "x", outcome=None)
    make_run(tmp_path / "y", outcome=None)
    runs = WatchedRuns([tmp_path], rest=0).now()
    assert [run.name for run in by_interest(runs)] == ["x", "y", "done-1", "done-2", "done-0"]
    assert [run.name for run in most_interesting(runs, 3)] == ["done-1", "x", "y"]
