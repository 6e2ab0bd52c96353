"""What a notebook shows: HTML in place of HTML, everything escaped, not too often. No kernel is needed for these."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import PrinterCallback, notebook, progress
from kunren.callbacks.notebook import NotebookProgressCallback, Table, bar, cells

CONTROL = TrainerControl()
ARGUMENTS = SimpleNamespace(eval_strategy="steps")


class Page:
    """The outputs of a cell, as `IPython.display.display` makes and updates them."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def display(self, content: dict[str, str], raw: bool, display_id: bool) -> SimpleNamespace:
        assert raw
        assert display_id
        place = len(self.outputs)
        self.outputs.append(content)

        def update(content: dict[str, str], raw: bool) -> None:
            assert raw
            self.updates += 1
            self.outputs[place] = content

        return SimpleNamespace(update=update)

    @property
    def html(self) -> str:
        return "".join(output["text/html"] for output in self.outputs)

    @property
    def table(self) -> list[list[str]]:
        return Cells(self.html).rows


class Cells(HTMLParser):
    """The cells of all tables; every element has to be closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "progress", "table", "thead", "tbody", "tr", "th", "td"), tag
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Page:
    """A notebook without a kernel."""
    shown, package, module = Page(), ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = shown.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(NotebookProgressCallback, "refresh_seconds", 0.0)
    monkeypatch.setattr(progress, "COST_LIMIT", 0.0)
    return shown


def step(callback: Any, state: TrainerState, count: int = 1) -> None:
    for _ in range(count):
        state.global_step += 1
        state.epoch = state.global_step / 10
        callback.on_step_end(ARGUMENTS, state, CONTROL)


def log(callback: Any, state: TrainerState, **logs: Any) -> None:
    logs |= {"epoch": state.epoch}
    state.log_history.append({**logs, "step": state.global_step})
    callback.on_log(ARGUMENTS, state, CONTROL, logs=logs, account={"tokens": 500, "wall": 0.5})


def evaluate(
    callback: Any, state: TrainerState, prefix: str, loader: Any, during: Callable[[], None], **metrics: Any
) -> None:
    for _ in range(3):
        callback.on_prediction_step(ARGUMENTS, state, CONTROL, eval_dataloader=loader, metric_key_prefix=prefix)
    during()
    found = {f"{prefix}_{name}": value for name, value in metrics.items()} | {f"{prefix}_runtime": 1.0}
    log(callback, state, **found)
    callback.on_evaluate(ARGUMENTS, state, CONTROL, metrics={**found, "epoch": state.epoch})


def test_a_training(page: Page) -> None:
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20, num_train_epochs=2)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    step(callback, state, 5)
    log(callback, state, loss=0.5, learning_rate=1e-3, grad_norm=2.0)
    step(callback, state, 5)
    log(callback, state, loss=0.25, learning_rate=5e-4, grad_norm=2.0)
    assert len(page.outputs) == 2

    def during() -> None:
        assert '</div><div>evaluation: <progress value="3" max="6"' in page.outputs[0]["text/html"]

    evaluate(callback, state, "eval", range(6), during, loss=0.75, accuracy=0.5, tiny=1e-7, samples_per_second=9.0)
    assert "evaluation" not in page.html
    assert page.table == [
        ["Step", "Epoch", "Training Loss", "Validation Loss", "Accuracy", "Tiny"],
        ["5", "0.50", "0.500000", "", "", ""],
        ["10", "1.00", "0.250000", "0.750000", "0.500000", "1e-07"],
    ]
    step(callback, state, 10)
    assert '<progress value="20" max="20"' in page.html
    log(callback, state, train_runtime=9.0, train_loss=0.3)
    callback.on_train_end(ARGUMENTS, state, CONTROL)
    assert "20/20 [00:00], Epoch 2.00/2, loss 0.25, 1,000 tokens/s, lr 0.0005</div>" in page.html
    assert len(page.table) == 3
    assert len(page.outputs) == 2
    assert page.outputs[1]["text/plain"].splitlines()[1].split() == ["5", "0.50", "0.500000"]


def test_several_sets_one_a_stream(page: Page) -> None:
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    step(callback, state, 5)

    def squad() -> None:
        assert "<div>squad: <progress" in page.html

    def stream() -> None:
        assert "<div>a stream: 3 batches [00:00]</div>" in page.html

    evaluate(callback, state, "eval_squad", range(6), squad, loss=0.5, f1=0.25)
    evaluate(callback, state, "eval_a stream", iter(()), stream, loss=0.25)
    assert page.table == [
        ["Step", "Epoch", "Training Loss", "Validation Loss", "Squad Loss", "Squad F1", "A stream Loss"],
        ["5", "0.50", "", "", "0.500000", "0.250000", "0.250000"],
    ]


def test_a_resumed_training_shows_all_of_it(page: Page) -> None:
    history = [
        {"loss": 0.5, "epoch": 0.5, "step": 5}, {"eval_loss": 0.75, "eval_runtime": 1.0, "epoch": 0.5, "step": 5},
        {"train_runtime": 1.0, "train_loss": 1.0, "step": 5},
    ]  # fmt: skip
    state = TrainerState(max_steps=20, global_step=5, log_history=history)
    callback = NotebookProgressCallback()
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    assert '<progress value="5" max="20"' in page.html
    step(callback, state)
    log(callback, state, loss=0.25)
    assert page.table[1:] == [["5", "0.50", "0.500000", "0.750000"], ["6", "0.60", "0.250000", ""]]


def test_evaluation_and_prediction_outside_training(page: Page) -> None:
    callback, state = NotebookProgressCallback(), TrainerState()
    evaluate(callback, state, "eval", range(3), lambda: None, loss=0.5, accuracy=0.25)
    callback.on_prediction_step(ARGUMENTS, state, CONTROL, metric_key_prefix="test")
    callback.on_predict(ARGUMENTS, state, CONTROL, metrics={"test_loss": 0.5, "test_runtime": 1.0})
    assert len(page.outputs) == 2
    assert page.outputs[0]["text/html"].startswith('<div>evaluation: <progress value="3" max="3"')
    assert page.table == [["Validation Loss", "Accuracy"], ["0.500000", "0.250000"], ["Test Loss"], ["0.500000"]]


def test_other_processes_show_nothing(page: Page) -> None:
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=3, is_world_process_zero=False)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    step(callback, state)
    log(callback, state, loss=1.0)
    evaluate(callback, state, "eval", range(3), lambda: None, loss=0.5)
    callback.on_train_end(ARGUMENTS, state, CONTROL)
    assert page.outputs == []


def test_everything_is_escaped(page: Page) -> None:
    evil = "<script>alert('&')</script>"
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    step(callback, state)
    log(callback, state, loss=evil, **{evil: evil})
    evaluate(callback, state, "eval_" + evil, range(6), lambda: Cells(page.html) and None, **{evil: evil})
    assert "<script" not in page.html.lower()
    assert evil in page.table[1]


def test_updates_are_rationed(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(seconds=100.0)
    for module in (progress, notebook):
        monkeypatch.setattr(module, "monotonic", lambda: now.seconds)
    monkeypatch.setattr(NotebookProgressCallback, "refresh_seconds", 0.25)
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=1000)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    for _ in range(1000):
        now.seconds += 0.01
        step(callback, state)
        log(callback, state, loss=1.0)
    assert 40 < page.updates < 130  # ten seconds, of the bar and of the table
    callback.on_train_end(ARGUMENTS, state, CONTROL)
    assert page.table[-1][0] == "1000"
    assert len(page.table) == 1 + notebook.SHOWN_ROWS
    assert "The rows before are in the log: 900." in page.html
    assert len(page.html) < 20_000


def test_an_error_leaves_no_bar_of_an_evaluation(page: Page) -> None:
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    callback.on_prediction_step(ARGUMENTS, state, CONTROL, eval_dataloader=range(3))
    assert "evaluation" in page.html
    callback.on_exception(ARGUMENTS, state, CONTROL, exception=KeyboardInterrupt())
    assert "evaluation" not in page.html
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    assert len(page.outputs) == 2  # the other training has its own


def test_a_failing_display_is_told_once(
    page: Page, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules["IPython.display"], "display", lambda *args, **options: 1 / 0)
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20)
    with caplog.at_level(logging.WARNING):
        callback.on_train_begin(ARGUMENTS, state, CONTROL)
        step(callback, state)
        log(callback, state, loss=1.0)
        evaluate(callback, state, "eval", range(3), lambda: None, loss=0.5)
        callback.on_train_end(ARGUMENTS, state, CONTROL)
    assert len(caplog.records) == 1


def test_lines_where_there_is_no_notebook(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert progress.reporter(False) is progress.ProgressLinesCallback
    callback, state = NotebookProgressCallback(), TrainerState(max_steps=20)
    callback.on_train_begin(ARGUMENTS, state, CONTROL)
    step(callback, state)
    log(callback, state, loss=0.5)
    evaluate(callback, state, "eval", range(3), lambda: None, loss=0.5)
    callback.on_train_end(ARGUMENTS, state, CONTROL)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("step 1/20 | loss 0.5 | epoch 0.1 | 1,000 tokens/s")
    assert lines[1:] == ["step 1/20 | eval_loss 0.5 | eval_runtime 1 | epoch 0.1"]


def test_who_runs_in_a_notebook(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress.reporter(False) is NotebookProgressCallback
    assert progress.reporter(True) is PrinterCallback
    for shell in (None, SimpleNamespace()):  # no shell, and that of a terminal
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda shell=shell: shell)
        assert progress.reporter(False) is progress.ProgressLinesCallback


def test_parts() -> None:
    assert bar("a<b", 3, None, "3 > 2") == "<div>a&lt;b: 3 &gt; 2</div>"
    assert cells({"train_runtime": 1.0, "loss": 1.0}) == {}
    assert cells({"loss": 1, "mine": 2, "learning_rate": 3}) == {"Training Loss": 1, "Training Mine": 2}
    assert cells({"dev_loss": 1, "dev_exact_match": 2, "dev_runtime": 3}) == {"Validation Loss": 1, "Exact Match": 2}
    for name in ("accuracy", "training_loss", "step", "epoch", "train_loss", "mine", "loss"):
        assert not cells({"loss": 1, name: 2, "epoch": 3}).keys() & (
            cells({f"eval_{name}": 1, "eval_runtime": 1}).keys()
        )
    table = Table(("Step",))
    assert table.html().count("<tr") == 1
