"""report.html and curves.png: whole or not there, quick, and without what is optional."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from unit.report.runs_on_disk import account, begin, end, log_lines, make_run, write

from kunren.report import write as writing
from kunren.report.run_files import read_run
from kunren.report.write import write_page, write_report

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_run_gets_its_page_and_its_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = make_run(tmp_path / "実験")
    assert write_report(run, language="ja") == run / "report.html"
    html = (run / "report.html").read_text(encoding="utf-8")
    assert "実験" in html and 'lang="ja"' in html
    assert (run / "curves.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in run.iterdir()) == [
        "curves.png",
        "events.jsonl",
        "metrics.jsonl",
        "report.html",
    ]
    assert (run / "report.html").stat().st_mode & 0o777 == (run / "metrics.jsonl").stat().st_mode & 0o777


def test_no_picture_is_drawn_without_matplotlib_without_a_curve_or_when_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [make_run(tmp_path / "a"), write(tmp_path / "b", [], [begin(1.0), end(2.0, 0)]), make_run(tmp_path / "c")]
    write_report(runs[0], picture=False)
    write_report(runs[1])
    monkeypatch.setattr(writing, "find_spec", lambda name: None)
    write_report(runs[2])
    for run in runs:
        assert (run / "report.html").is_file() and not (run / "curves.png").exists()


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no metrics\.jsonl"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path)
    write_report(run, picture=False)
    before = (run / "report.html").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_report(run, picture=False)
    assert (run / "report.html").read_bytes() == before
    assert not [path.name for path in run.iterdir() if path.name.startswith(".")]


def test_a_name_that_is_no_text_does_not_cost_the_report(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", run_name="a\ud800b", warnings=("c\udfffd",))
    assert b"<html" in write_page([read_run(run)], tmp_path / "page.html").read_bytes()


def test_it_needs_neither_torch_nor_pyplot_and_changes_no_setting(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    make_run(tmp_path)
    code = (
        "import sys, matplotlib\n"
        "settings = lambda: {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != 'backend'}\n"
        "before = settings()\n"
        "from kunren.report.write import write_report; write_report(sys.argv[1])\n"
        "assert settings() == before\n"
        "loaded = {'torch', 'transformers', 'matplotlib.pyplot'} & sys.modules.keys(); assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], check=True, timeout=60, env=os.environ)


def test_a_log_of_ten_thousand_lines_is_written_quickly(tmp_path: Path) -> None:
    lines = [{**line, "account": account(0.5, 1)} for line in log_lines(10_000, 1000.0, 1, 10_000, 500)]
    run = write(tmp_path, lines, [begin(1000.0, max_steps=10_000), end(9000.0, 10_000)])
    began = time.process_time()
    write_report(run, picture=False)
    assert time.process_time() - began < 1.0
    assert (run / "report.html").stat().st_size < 1_000_000
