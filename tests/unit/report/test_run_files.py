"""What a run's files tell: whole, cut off, being written to, from an older run, or nonsense."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.report.run_files import PHASES, last_value, rates, read_run, series
from kunren.trackers.process import this_process


def write(folder: Path, logs: list[Any], events: list[Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logs), encoding="utf-8")
    if events is not None:
        (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events), encoding="utf-8")
    return folder


def begin(moment: float, step: int = 0, **more: Any) -> dict[str, Any]:
    return {"event": "begin", "time": moment, "step": step, "max_steps": 40, **more}


def end(moment: float, step: int, outcome: str = "finished", error: str | None = None) -> dict[str, Any]:
    return {"event": "end", "time": moment, "step": step, "outcome": outcome, "error": error}


def test_it_is_read_without_torch() -> None:
    code = (
        "import sys; from kunren.report import RunRecord, read_local_log, read_run, series, write_report\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_folder_without_a_log_is_an_error_that_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="output_dir"):
        read_run(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        read_run(tmp_path / "file")


@pytest.mark.parametrize(("outcome", "error"), [("finished", None), ("stopped", None), ("failed", "ValueError: 3")])
def test_a_run_that_came_to_its_end(tmp_path: Path, outcome: str, error: str | None) -> None:
    logs = [{"loss": 2.0, "step": 10, "time": 110.0}, {"loss": 1.0, "step": 20, "time": 120.0}]
    run = read_run(write(tmp_path / "mine", logs, [begin(100.0), end(131.0, 21, outcome, error)]))
    assert (run.name, run.outcome, run.error, run.step, run.max_steps) == ("mine", outcome, error, 21, 40)
    assert run.duration == 31 and run.elapsed == [10, 20] and not run.is_running
    assert series(run) == {"loss": [(10, 2.0), (20, 1.0)]}


def test_a_run_without_an_end_runs_or_was_killed(tmp_path: Path) -> None:
    folder = write(tmp_path, [{"loss": 1.0, "step": 1, "time": 5.0}], [begin(1.0)])
    assert read_run(folder).outcome == "running"
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))
    assert read_run(folder).outcome == "interrupted"
    (folder / ".kunren-run.lock").write_text('{"pid": 0, "host": "elsewhere"}')
    assert read_run(folder).outcome == "interrupted"


def test_a_lock_that_is_held_tells_of_a_run_that_has_been_quiet(tmp_path: Path) -> None:
    from kunren.checkpoint.lock import RunLock

    folder = write(tmp_path, [{"loss": 1.0, "step": 1, "time": 5.0}], [begin(1.0)])
    lock = RunLock(folder)
    lock.acquire()
    for path in folder.glob("*.jsonl"):
        os.utime(path, (1e9, 1e9))
    assert read_run(folder).is_running
    lock.release()
    assert not read_run(folder).is_running


def test_an_older_run_has_no_events(tmp_path: Path) -> None:
    logs = [{"loss": 1.0, "step": 1, "time": 5.0}, {"train_runtime": 3.0, "train_loss": 1.0, "step": 1, "time": 8.0}]
    run = read_run(write(tmp_path, logs))
    assert (run.outcome, run.duration, run.account, run.arguments, run.sessions) == ("finished", 3.0, None, {}, [])
    assert series(run) == {"loss": [(1, 1.0)]}


def test_what_a_resume_overtook_does_not_stand_and_the_break_does_not_count(tmp_path: Path) -> None:
    first = [{"loss": 1.0 * step, "step": step, "time": 100.0 + step} for step in (10, 20, 30, 40)]
    second = [{"loss": 50.0, "step": 50, "time": 1020.0}]
    run = read_run(write(tmp_path, first + second, [begin(100.0), begin(1000.0, 20), end(1025.0, 50)]))
    assert [entry["step"] for entry in run.logs] == [10, 20, 50]
    assert run.elapsed == [10, 20, 40] and run.resumed_at == [20] and run.duration == 20 + 25


def test_a_second_training_into_the_folder_is_another_run(tmp_path: Path) -> None:
    first = [{"loss": 1.0, "step": step, "time": 100.0 + step} for step in (1, 2, 3)]
    second = [{"loss": 7.0, "step": 4, "time": 200.0}]
    run = read_run(write(tmp_path, first + second, [begin(100.0), end(104.0, 3), begin(150.0), end(201.0, 4)]))
    assert series(run) == {"loss": [(4, 7.0)]} and run.elapsed == [50]


def test_accounts_are_added_up(tmp_path: Path) -> None:
    account = {"steps": 5, "seconds": {"data": 1.0, "forward": 2.0}, "samples": 40, "tokens": 0, "operations": 1e6}
    lines = [
        {"loss": 1.0, "step": 5, "time": 1.0, "account": {**account, "mfu": 0.2, "wall": 3.0}},
        {"loss": 1.0, "step": 10, "time": 2.0, "account": {**account, "mfu": 0.4, "wall": 1.0}},
        {"loss": 1.0, "step": 15, "time": 3.0, "account": {**account, "mfu": None, "wall": 4.0}},
        {"loss": 1.0, "step": 20, "time": 3.0, "account": "nonsense"},
    ]
    total = read_run(write(tmp_path, lines)).account
    assert total is not None and list(total["seconds"]) == list(PHASES)
    assert (total["seconds"]["forward"], total["steps"], total["wall"]) == (6.0, 15, 8.0)
    assert total["mfu"] == pytest.approx(0.25)


def test_nothing_is_reckoned_twice(tmp_path: Path) -> None:
    account = {"steps": 5, "seconds": {"data": 1.0}, "samples": 40, "wall": 3.0}
    run = read_run(write(tmp_path, [{"loss": 1.0, "step": 5, "time": 1.0, "account": account}]))
    assert run.account is run.account is not None and series(run) is series(run) and rates(run) is rates(run)
    assert run.curves is run.curves and rates(run, while_training=True) is rates(run, while_training=True)


def test_checkpoints_carry_the_evaluation_of_their_own_weights(tmp_path: Path) -> None:
    logs = [
        {"eval_loss": 1.0, "eval_runtime": 2.0, "step": 10, "time": 1.0},
        {"eval_loss": 3.0, "step": 20, "time": 2.0},
        {"eval_loss": 1.0, "step": 20, "time": 3.0},  # after the best was loaded
    ]
    for step in (10, 20):
        (tmp_path / f"checkpoint-{step}").mkdir()
    state = {"best_model_checkpoint": "elsewhere/checkpoint-10"}
    (tmp_path / "checkpoint-20" / "trainer_state.json").write_text(json.dumps(state))
    run = read_run(write(tmp_path, logs))
    assert [(saved.step, saved.metrics, saved.is_best) for saved in run.checkpoints] == [
        (10, {"eval_loss": 1.0}, True),
        (20, {"eval_loss": 3.0}, False),
    ]
    assert series(run)["eval_loss"] == [(10, 1.0), (20, 3.0)]


def test_values_that_were_not_finite_are_gaps(tmp_path: Path) -> None:
    logs = [{"loss": 1.0, "step": 1}, {"loss": None, "step": 2}, {"loss": 10**400, "step": 3}, {"all": None, "step": 4}]
    run = read_run(write(tmp_path, logs))
    assert series(run) == {"loss": [(1, 1.0)]}
    (_, one), (_, two), (_, three) = series(run, gaps=True)["loss"]
    assert one == 1.0 and math.isnan(two) and math.isnan(three)


def test_a_line_that_was_cut_off_is_skipped(tmp_path: Path) -> None:
    whole = json.dumps({"note": "a\u2028b", "loss": 1.0, "step": 1}, ensure_ascii=False)
    (tmp_path / "metrics.jsonl").write_bytes(f'{whole}\n{{"loss": 2.0, "訓練'.encode()[:-1])
    (tmp_path / "events.jsonl").write_text('{"event": "begin", "time": 1, "step": 0}\n{"event": "en')
    run = read_run(tmp_path)
    assert [entry["step"] for entry in run.logs] == [1] and len(run.sessions) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["loss", "step", "time", "eval_f1", "account", "train_runtime"]) | st.text(max_size=6)
event_names = st.sampled_from(
    ["event", "step", "time", "arguments", "model", "max_steps", "run_name", "outcome", "error", "text", "environment"]
)
event_values = json_values | st.sampled_from(["begin", "end", "warning", "failed"])


@settings(max_examples=60, deadline=None)
@given(
    logs=st.lists(st.dictionaries(names, json_values, max_size=5) | json_values, max_size=6),
    events=st.lists(st.dictionaries(event_names, event_values, max_size=6) | json_values, max_size=6),
    cut=st.integers(0, 400),
)
def test_any_files_give_a_record(
    tmp_path_factory: pytest.TempPathFactory, logs: list[Any], events: list[Any], cut: int
) -> None:
    folder = write(tmp_path_factory.mktemp("run"), logs, events)
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(whole[: max(0, len(whole) - cut)])
    run = read_run(folder)
    told = (run.outcome, run.step, run.max_steps, run.account, run.duration, run.error, run.resumed_at, run.warnings)
    assert told[0] in ("finished", "stopped", "failed", "running", "interrupted")
    assert len(run.elapsed) == len(run.logs) and run.elapsed == sorted(run.elapsed)
    assert all(math.isfinite(y) for points in series(run).values() for _, y in points)
    assert run.duration <= time.time() + 1e300


def test_a_clock_that_is_put_back_hides_nothing(tmp_path: Path) -> None:
    later = [{"loss": 1.0, "step": step, "time": 1000.0 + step} for step in (1, 2, 3)]
    write(tmp_path, later, [begin(5000.0)])
    assert [entry["step"] for entry in read_run(tmp_path).logs] == [1, 2, 3]
    write(tmp_path, [{"loss": 1.0, "step": 1, "time": 5001.0}, *later[1:]], [begin(5000.0)])
    assert [entry["step"] for entry in read_run(tmp_path).logs] == [1, 2, 3]


def test_a_run_that_failed_before_its_first_log(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        json.dumps(begin(100.0)) + "\n" + json.dumps(end(103.0, 0, "failed", "ValueError: 3")) + "\n"
    )
    run = read_run(tmp_path)
    assert (run.outcome, run.error, run.step, run.logs, run.duration) == ("failed", "ValueError: 3", 0, [], 3.0)
    assert series(run) == {} and run.account is None and not run.is_running
    (tmp_path / "events.jsonl").write_text("nothing that begins\n")
    with pytest.raises(FileNotFoundError):
        read_run(tmp_path)


def test_a_loss_that_is_lost(tmp_path: Path) -> None:
    losses = [3.0, None, 2.0, None, None]
    logs = [{"loss": loss, "grad_norm": None, "step": step, "time": 1.0} for step, loss in enumerate(losses, 1)]
    run = read_run(write(tmp_path / "a", logs))
    last = last_value(run, "loss")
    assert run.not_finite_since == {"loss": 4} and last is not None and last[0] == 5 and math.isnan(last[1])
    run = read_run(write(tmp_path / "b", logs[:3]))
    assert run.not_finite_since == {} and last_value(run, "loss") == (3, 2.0)
    run = read_run(write(tmp_path / "c", logs[3:]))
    assert run.not_finite_since == {"loss": 4} and series(run) == series(run, gaps=True) == {}


def test_trainings_begun_anew_do_not_add_up_and_resumed_ones_do(tmp_path: Path) -> None:
    logs = [
        {"eval_loss": 9.0, "step": 0, "time": 101.0},  # of the first, before its first step
        {"loss": 1.0, "step": 10, "time": 110.0},
        {"eval_loss": 8.0, "step": 0, "time": 1001.0},
        {"loss": 2.0, "step": 10, "time": 1010.0},
        {"loss": 3.0, "step": 20, "time": 2020.0},
    ]
    first = [begin(100.0), {"event": "warning", "time": 105.0, "step": 5, "text": "old"}, end(111.0, 10)]
    second = [begin(1000.0), end(1015.0, 10, "stopped"), begin(2000.0, 10, resumed_from="x"), end(2030.0, 20)]
    run = read_run(write(tmp_path, logs, first + second))
    assert run.earlier == 1 and run.duration == 15 + 30 and run.warnings == [] and run.resumed_at == [10]
    assert series(run) == {"eval_loss": [(0, 8.0)], "loss": [(10, 2.0), (20, 3.0)]}
    assert run.sessions[0].begin["time"] == 1000.0
    run = read_run(write(tmp_path, logs[2:], second))
    assert run.earlier == 0 and run.duration == 45


def of_process(folder: Path, process: dict[str, Any], written: float | None = None) -> str:
    write(folder, [{"loss": 1.0, "step": 1, "time": 5.0}], [begin(1.0, process=process)])
    if written is not None:
        for path in folder.glob("*.jsonl"):
            os.utime(path, (written, written))
    return read_run(folder).outcome


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="only Linux tells")
def test_a_run_whose_process_was_killed_is_interrupted_at_once(tmp_path: Path) -> None:
    code = (
        "import json; from kunren.trackers.process import this_process; print(json.dumps(this_process()), flush=True)"
    )
    command = [sys.executable, "-c", f"{code}; input()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        process = json.loads(child.stdout.readline())
        assert of_process(tmp_path, process, 1e9) == "running"  # however long it is silent
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert of_process(tmp_path, process) == "interrupted"  # a zombie yet
    assert of_process(tmp_path, process) == "interrupted"
    elsewhere = {**process, "machine": "another"}
    assert of_process(tmp_path, elsewhere) == "running" and of_process(tmp_path, elsewhere, 1e9) == "interrupted"
    reused = {**this_process(), "started": 1}
    assert of_process(tmp_path, reused) == "interrupted"
    for nonsense in (None, 3, {"pid": -1}, {**process, "pid": "x"}, {**process, "started": None}):
        assert of_process(tmp_path, nonsense) == "running"  # type: ignore[arg-type]


def test_the_lock_of_a_process_that_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    began = time.time() - 50
    write(tmp_path, [{"loss": 1.0, "step": 1, "time": began + 1}], [begin(began)])
    assert read_run(tmp_path).outcome == "running"
    owner = {"pid": child.pid, "host": socket.gethostname()}
    for taken, outcome in ((began - 2, "interrupted"), (began - 3000, "interrupted")):
        lock = {**owner, "started": datetime.fromtimestamp(taken, timezone.utc).isoformat(timespec="seconds")}
        (tmp_path / ".kunren-run.lock").write_text(json.dumps(lock))
        assert read_run(tmp_path).outcome == outcome
    write(tmp_path, [{"loss": 1.0, "step": 1, "time": began + 1}], [begin(began - 2500), begin(began)])
    assert read_run(tmp_path).outcome == "running"  # it is the lock of the training before


def test_a_run_that_logs_seldom_is_waited_for(tmp_path: Path) -> None:
    began = time.time() - 2000
    logs = [{"loss": 1.0, "step": step, "time": began + 300 * step} for step in (1, 2, 3, 4)]
    write(tmp_path, logs, [begin(began)])
    for quiet, outcome in ((700, "running"), (1000, "interrupted")):
        for path in tmp_path.glob("*.jsonl"):
            os.utime(path, (time.time() - quiet,) * 2)
        assert read_run(tmp_path).outcome == outcome


def test_traces_are_found(tmp_path: Path) -> None:
    write(tmp_path, [], [begin(1.0)])
    (tmp_path / "profile").mkdir()
    (tmp_path / "profile" / "steps-3-4.json").write_text("{}")
    (tmp_path / "profile" / "steps-3-4.txt").write_text("")
    assert read_run(tmp_path).traces == [tmp_path / "profile" / "steps-3-4.json"]
