"""events.jsonl: what a training was, what it warned of, how it ended."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from invariants.runs import arguments
from parity import rows
from parity.models import Points

import kunren
from kunren.trackers import run_events
from kunren.trackers.json_lines import read_json_lines
from kunren.trackers.process import is_alive


def trainer_for(folder: Path, *callbacks: Any, **settings: Any) -> kunren.Trainer:
    args = arguments(folder, **{"run_report": False, "num_train_epochs": 1, **settings})
    return kunren.Trainer(model=Points(), args=args, train_dataset=rows.points(12), callbacks=list(callbacks))


def train(folder: Path, hook: Any = None, at: str = "on_step_end", resume: Any = None, **settings: Any) -> None:
    callbacks = [] if hook is None else [type("Callback", (kunren.TrainerCallback,), {at: hook})()]
    trainer_for(folder, *callbacks, **settings).train(resume_from_checkpoint=resume)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def test_begin_and_end(tmp_path: Path) -> None:
    train(tmp_path, learning_rate=3e-4, run_name="初めて", hub_token="secret")
    begin, end = events(tmp_path)
    assert begin["event"] == "begin" and begin["step"] == 0 and begin["max_steps"] == 3
    assert begin["run_name"] == "初めて" and begin["resumed_from"] is None
    assert begin["arguments"]["learning_rate"] == 3e-4 and "weight_decay" not in begin["arguments"]
    assert "secret" not in json.dumps(begin)
    assert begin["model"] == {"class": "Points", "parameters": 67, "trainable": 67}
    assert begin["data"] == {"examples": 12, "batches_per_epoch": 3}
    assert {"kunren", "python", "torch", "device", "processes"} <= begin["environment"].keys()
    assert end == {"event": "end", "time": end["time"], "step": 3, "outcome": "finished", "error": None}


def test_only_what_differs_from_the_defaults(tmp_path: Path) -> None:
    changed = run_events.changed_arguments(kunren.TrainingArguments(str(tmp_path), logging_steps=7))
    assert changed == {"output_dir": str(tmp_path), "logging_steps": 7}


def test_warnings_are_kept_and_still_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def warn(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logging.getLogger("kunren.somewhere").warning("logged at %d", state.global_step)
        warnings.warn("warned", stacklevel=2)

    with pytest.warns(UserWarning, match="warned"), warnings.catch_warnings():
        warnings.simplefilter("always")
        train(tmp_path, warn, max_steps=1)
    kept = [event for event in events(tmp_path) if event["event"] == "warning"]
    assert [event["text"] for event in kept] == ["logged at 1", "UserWarning: warned"]
    assert [event["step"] for event in kept] == [1, 1]
    assert "logged at 1" in caplog.text


def test_warnings_before_the_first_step_are_kept_too(tmp_path: Path) -> None:
    train(tmp_path, save_strategy="steps", save_steps=2)
    train(tmp_path, save_strategy="steps", save_steps=2, resume=str(tmp_path / "checkpoint-2"), learning_rate=5e-3)
    texts = [event["text"] for event in events(tmp_path) if event["event"] == "warning"]
    assert any("goes on from" in text and "learning_rate" in text for text in texts)
    begins = [event for event in events(tmp_path) if event["event"] == "begin"]
    assert [(begin["step"], begin["resumed_from"]) for begin in begins] == [
        (0, None),
        (2, str(tmp_path / "checkpoint-2")),
    ]


def test_a_warning_at_every_step_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "MOST_WARNINGS", 2)
    train(tmp_path, lambda *args, **kwargs: logging.getLogger("kunren.x").warning("again"))
    kept = [event for event in events(tmp_path) if event["event"] == "warning"]
    assert len(kept) == 2 and "not kept" in kept[-1]["text"]


class Odd(Exception):
    pass


def _raise(error: BaseException) -> Any:
    def hook(*args: Any, **kwargs: Any) -> None:
        raise error

    return hook


@pytest.mark.parametrize(
    ("error", "outcome", "text"),
    [(Odd("broken"), "failed", "Odd: broken"), (KeyboardInterrupt(), "stopped", None)],
)
def test_how_it_ended(error: BaseException, outcome: str, text: str | None, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        train(tmp_path, _raise(error))
    assert (events(tmp_path)[-1]["outcome"], events(tmp_path)[-1]["error"]) == (outcome, text)


def test_nothing_is_noted_of_a_training_that_did_not_begin(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resume"):
        train(tmp_path, resume=True, save_strategy="steps")
    assert not (tmp_path / "events.jsonl").exists()


def test_handlers_are_as_before(tmp_path: Path) -> None:
    before = list(logging.getLogger("kunren").handlers), warnings.showwarning
    with pytest.raises(Odd):
        train(tmp_path, _raise(Odd()))
    assert (list(logging.getLogger("kunren").handlers), warnings.showwarning) == before


def test_without_logging_set_up_warnings_are_printed_as_ever(tmp_path: Path) -> None:
    code = f"""
import logging, sys
sys.path[:0] = {[str(Path(__file__).parents[2]), str(Path(kunren.__file__).parents[1])]!r}
from unit.trackers.test_run_events import train
train({str(tmp_path)!r}, lambda *a, **k: logging.getLogger("kunren.x").warning("seen"), max_steps=1)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines().count("seen") == 1


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events.jsonl").mkdir()
    train(tmp_path)
    assert caplog.text.count("events.jsonl cannot be written") == 1


def test_two_trainings_at_once_leave_nothing_behind(tmp_path: Path) -> None:
    before = list(logging.getLogger("kunren").handlers), warnings.showwarning
    first, second = (trainer_for(tmp_path / name).steps() for name in "ab")
    assert next(first) == next(second) == 1
    assert [*first] == [*second]  # the first to begin is the first to end
    assert (list(logging.getLogger("kunren").handlers), warnings.showwarning) == before


def test_it_may_be_removed_in_mid_run(tmp_path: Path) -> None:
    before = list(logging.getLogger("kunren").handlers), warnings.showwarning
    trainer = trainer_for(tmp_path)
    for step in trainer.steps():
        if step == 2:
            trainer.remove_callback(run_events.RunEventsCallback)
    assert (list(logging.getLogger("kunren").handlers), warnings.showwarning) == before
    assert [event.get("outcome") for event in events(tmp_path)] == [None, "finished"]


def test_after_a_line_that_was_cut_off_the_next_begins_a_line(tmp_path: Path) -> None:
    train(tmp_path)
    for name in ("events.jsonl", "metrics.jsonl"):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-9])
    logged = len(read_json_lines(tmp_path / "metrics.jsonl"))
    train(tmp_path)
    assert [event["event"] for event in read_json_lines(tmp_path / "events.jsonl")] == ["begin", "begin", "end"]
    assert len(read_json_lines(tmp_path / "metrics.jsonl")) == 2 * logged + 1


def test_an_error_that_cannot_say_what_it_is_stays_the_one_that_is_raised(tmp_path: Path) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("mute")

    with pytest.raises(Mute):
        train(tmp_path, _raise(Mute()))
    assert events(tmp_path)[-1]["error"] == "Mute"


def test_where_it_failed_is_noted_and_the_report_is_left(tmp_path: Path) -> None:
    secret = "value-of-a-local"
    with pytest.raises(Odd):
        train(tmp_path, _raise(Odd("broken")), "on_train_begin", run_report=True)
    end = events(tmp_path)[-1]
    lines = end["traceback"].splitlines()
    assert any(line.startswith(__file__) and "in hook: raise error" in line for line in lines)
    assert len(lines) <= run_events.MOST_FRAMES + 2 and secret not in end["traceback"]
    assert not (tmp_path / "metrics.jsonl").exists()
    assert "Odd: broken" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_innermost_line_of_the_user_is_kept_however_deep_a_package_fails(tmp_path: Path) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        json.loads("{", object_hook=None)

    with pytest.raises(json.JSONDecodeError):
        train(tmp_path, fail)
    lines = events(tmp_path)[-1]["traceback"].splitlines()
    assert "raw_decode" in lines[-1] or "decode" in lines[-1]
    assert any(line.startswith(__file__) and "in fail" in line for line in lines)


@pytest.mark.parametrize(
    "given",
    [
        {"eval_strategy": "steps", "logging_steps": 3},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        {"metric_for_best_model": "accuracy"},
        {"gradient_checkpointing": True},
    ],
)
def test_what_follows_from_other_arguments_is_not_listed(given: dict[str, Any], tmp_path: Path) -> None:
    changed = run_events.changed_arguments(kunren.TrainingArguments(str(tmp_path), **given))
    assert changed == {"output_dir": str(tmp_path), **given}


def test_what_was_given_against_the_rule_is_listed(tmp_path: Path) -> None:
    given = {
        "eval_strategy": "steps",
        "eval_steps": 5,
        "metric_for_best_model": "loss_of_f1",
        "greater_is_better": False,
    }
    changed = run_events.changed_arguments(kunren.TrainingArguments(str(tmp_path), **given))
    assert changed == {"output_dir": str(tmp_path), **given}


def test_the_process_is_noted(tmp_path: Path) -> None:
    train(tmp_path, max_steps=1)
    assert is_alive(events(tmp_path)[0]["process"]) in (True, None)
