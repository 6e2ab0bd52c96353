"""Runs as lines of text: everything is said, and nothing is wider or longer than the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.report.runs_on_disk import account, begin, end, log_lines, make_run, warning, write

from kunren.report.run_files import PHASES, RunRecord, Session, read_run
from kunren.report.terminal import seconds_left, view
from kunren.report.text_width import columns_of, plain
from kunren.report.words import words


def shown(runs: list[RunRecord], width: int = 100, height: int | None = None, **options: Any) -> str:
    lines = [plain(line) for line in view(runs, width, height, **options)]
    assert all(columns_of(line) <= width for line in lines)
    assert height is None or len(lines) <= height
    return "\n".join(lines)


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "mine", steps=60, outcome=None, warnings=("odd", "odd", "rare\x1b[2J")))
    text = shown([run])
    assert run.is_running
    for part in ("mine", "Running", "60%", "60/100", "20 s left", "eval_loss 0.3167", "eval_accuracy", "(Step 60)"):
        assert part in text, part
    assert "tokens_per_second 2,000" in text and "mfu 25.0%" in text
    assert "Waiting for data 30%" in text and "dataloader_num_workers" in text
    assert "! Step 2 ×2: odd" in text and "! Step 3: rare [2J" in text


def test_how_a_run_ended(tmp_path: Path) -> None:
    finished = read_run(make_run(tmp_path / "a"))
    failed = read_run(make_run(tmp_path / "b", 40, "failed", "ValueError: no such thing"))
    assert "Finished" in shown([finished]) and "51 s" in shown([finished]) and "left" not in shown([finished])
    assert "Failed" in shown([failed]) and "ValueError: no such thing" in shown([failed])
    killed = write(tmp_path / "c", log_lines(40, 1000.0), [begin(1000.0)])
    (killed / "metrics.jsonl").touch()
    assert "Running" in shown([read_run(killed)])


def test_without_events_and_without_a_number(tmp_path: Path) -> None:
    older = shown([read_run(write(tmp_path / "older", log_lines(40, time.time())))])
    assert "Step 40" in older and "loss" in older
    empty = shown([read_run(write(tmp_path / "empty", []))])
    assert "empty" in empty and "Step 0" in empty
    nan = shown([read_run(write(tmp_path / "nan", [*log_lines(5, 1.0), {"loss": None, "step": 10, "time": 9.0}]))])
    assert "loss nan" in nan


def test_in_japanese(tmp_path: Path) -> None:
    text = shown([read_run(make_run(tmp_path / "実験", steps=60, outcome=None))], 80, language="ja")
    assert all(part in text for part in ("実験", "学習中", "残り", "データ待ち"))


def test_in_ascii(tmp_path: Path) -> None:
    text = shown([read_run(make_run(tmp_path / "mine", warnings=("w",)))], 80, language="ja", is_ascii=True)
    assert text.isascii() and "Finished" in text and "=====" in text


def test_without_colours_the_account_is_told_by_letters(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "mine"))
    assert "d Waiting for data 30%" in shown([run], has_colours=False)
    assert "ddddd" in shown([run], has_colours=False) and "ddddd" not in shown([run])


def test_several_runs_stand_side_by_side_where_there_is_room(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / f"run-{index}")) for index in range(3)]
    wide, narrow = shown(runs, 200).splitlines(), shown(runs, 80).splitlines()
    assert all(run.name in wide[0] for run in runs)
    assert len(wide) < len(narrow) / 2 and "run-1" not in narrow[0]


def test_a_small_terminal_shows_less_of_each(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / f"run-{index}")) for index in range(6)]
    for height in (60, 20, 6):
        assert all(run.name in shown(runs, 80, height) for run in runs), height
    assert shown(runs, 80, 4).splitlines()[-1] == "and 3 more"
    assert shown(runs, 80, 0) == "" and shown([], 80, 5) == ""
    assert shown([], 80, 5, waiting=[Path("out")]) == "Waiting for the first log in out"


def test_a_hundred_metrics_leave_room_for_the_curves(tmp_path: Path) -> None:
    logs = [{**{f"eval_metric_{index}": 1.0 for index in range(100)}, **line} for line in log_lines(20, time.time())]
    text = shown([read_run(write(tmp_path, logs))], 100, 30)
    assert "…" in text and "│" in text and "eval_metric_0 1" in text and "eval_metric_99" not in text


NAMES = st.sampled_from(["loss", "eval_loss", "grad_norm", "epoch", "eval_正解率", "a\tb", "x" * 90, "$x_1$"])
VALUES = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-(10**30), 10**30))
ENTRIES = st.lists(
    st.tuples(
        st.dictionaries(NAMES, VALUES, max_size=4),
        st.integers(0, 10**7),
        st.one_of(st.none(), st.floats(0, 2e9)),
        st.booleans(),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(ENTRIES, st.integers(1, 200), st.integers(0, 60), st.sampled_from(["en", "ja"]), st.booleans())
def test_whatever_was_logged_fits(
    entries: list[tuple[dict[str, Any], int, float | None, bool]], width: int, height: int, language: str, ends: bool
) -> None:
    logs = [
        {**values, "step": step, "time": moment, **({"account": account(1.0, 1)} if has_account else {})}
        for values, step, moment, has_account in sorted(entries, key=lambda one: one[1])
    ]
    session = Session(begin(0.0), [warning(1.0, 1, "w\n" * 9)], end(5.0, 9) if ends else None)
    run = RunRecord(Path("run"), "run", logs, [session], [], 0.0)
    shown([run, run], width, height, language=language)
    shown([run], width, None, language=language, is_ascii=True)


def test_the_time_that_is_left_follows_the_pace_of_now(tmp_path: Path) -> None:
    logs = [{"loss": 1.0, "step": step, "time": 1000.0 + step} for step in range(0, 50, 5)]
    logs += [{"loss": 1.0, "step": step, "time": 1050.0 + (step - 50) * 3} for step in range(50, 100, 5)]
    run = read_run(write(tmp_path, logs, [begin(1000.0, max_steps=195)]))
    assert seconds_left(run, logs[-1]["time"]) == pytest.approx(290, rel=0.05)
    assert seconds_left(run, logs[-1]["time"] + 100) == pytest.approx(190, rel=0.1)
    assert seconds_left(run, logs[-1]["time"] + 10_000) == 0


def test_the_pace_is_that_of_the_session_after_a_resume(tmp_path: Path) -> None:
    before = [{"loss": 1.0, "step": step, "time": 1000.0 + step} for step in (10, 20)]
    after = {"loss": 1.0, "step": 30, "time": 9020.0}
    events = [begin(1000.0), begin(9000.0, step=20)]
    assert seconds_left(read_run(write(tmp_path / "a", before, events)), 9000.0) is None
    assert seconds_left(read_run(write(tmp_path / "b", [*before, after], events)), 9020.0) == pytest.approx(140)


def test_a_loss_that_is_lost_is_told_of(tmp_path: Path) -> None:
    logs = [*log_lines(20, time.time()), *({"loss": None, "step": step, "time": time.time()} for step in (25, 30))]
    run = read_run(write(tmp_path, logs, [begin(time.time())]))
    assert "loss nan" in shown([run]) and "! loss: not finite since step 25" in shown([run])
    assert "loss nan" in shown([run], 100, 1)
    assert "ステップ 25 から" in shown([run], language="ja")


def test_no_time_is_left_of_a_run_that_is_silent(tmp_path: Path) -> None:
    run = make_run(tmp_path, 60, outcome=None)
    assert "20 s left" in shown([read_run(run)])
    for path in run.glob("*.jsonl"):
        os.utime(path, (time.time() - 30,) * 2)
    text = shown([read_run(run)])
    assert "Running" in text and " left" not in text and "last log 30 s ago" in text


def test_every_phase_has_its_own_letter(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    for options in ({"is_ascii": True}, {"has_colours": False}):
        text = shown([run], 200, **options)
        bar = next(line for line in text.splitlines() if line.startswith("dddd"))
        assert len(set(bar)) == len(PHASES)
        for phase in PHASES:
            assert sum(f"{letter} {words('en')[phase]} " in text for letter in set(bar)) == 1
