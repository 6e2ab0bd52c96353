"""Show how far a run is in a notebook: a bar, and under it a table with one row a log, both updated in place."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from time import monotonic
from typing import Any, final

from kunren.base.state import TrainerState
from kunren.base.text_table import text_table
from kunren.callbacks.progress import ProgressCallback
from kunren.callbacks.progress_bars import in_notebook
from kunren.callbacks.progress_records import Entry, Evaluation

SHOWN_ROWS = 100
FIRST_COLUMNS = ("Step", "Epoch", "Training Loss")

_NOT_IN_THE_TABLE = {"learning_rate", "grad_norm", "step", "total_flos", "num_input_tokens_seen"}
_SPEEDS = ("_runtime", "_samples_per_second", "_steps_per_second", "_tokens_per_second", "_model_preparation_time")


class NotebookProgressCallback(ProgressCallback):
    """Progress as HTML; what the Trainer takes by itself in a notebook. Anywhere else it is a `ProgressCallback`."""

    refresh_seconds = 0.25  # a browser lays out every update

    def __init__(self, max_str_len: int = 100) -> None:
        super().__init__(max_str_len)
        self.training_tracker: Table | None = None
        self._in_notebook = in_notebook()
        self._bars, self._rows = Display(), Display()
        self._training_html = self._training_text = ""
        self._next_table = 0.0

    def _begin(self, args: Any, state: TrainerState) -> None:
        if not self._in_notebook:
            return super()._begin(args, state)
        self.training_tracker = Table(FIRST_COLUMNS)
        if getattr(args, "eval_strategy", "no") != "no":
            self.training_tracker.columns.append("Validation Loss")
        for entry in state.log_history:  # of a resumed run: the table is that of the whole of it
            self._put(self.training_tracker, entry.get("step", 0), cells(entry))
        self._bars, self._rows = Display(), Display()
        self._next_table = 0.0
        return self._draw_training(state, self._last_event)

    def _draw_training(self, state: TrainerState, now: float, is_over: bool = False) -> None:
        if self.training_tracker is None:
            return super()._draw_training(state, now, is_over)
        times = self._elapsed(now) if is_over else f"{self._elapsed(now)}<{self._remaining(state)}"
        text = ", ".join([f"{state.global_step}/{state.max_steps} [{times}]", _epochs(state), *self._figures()])
        self._training_html = bar("", state.global_step, state.max_steps, text)
        self._training_text = text
        self._bars.show(self._training_html, text)
        self.current_step = state.global_step
        if now >= self._next_table or is_over:
            self._draw_table()
        return None

    def _draw_table(self) -> None:
        table = self.training_tracker
        if table is not None and table.has_news:
            self._rows.show(table.html(), table.text())
            self._next_table = monotonic() + self.refresh_seconds

    def _draw_evaluation(self, evaluation: Evaluation, now: float) -> None:
        if not self._in_notebook:
            return super()._draw_evaluation(evaluation, now)
        drawn, text = _evaluation(evaluation, now)
        if self.training_tracker is None:
            return self._bars.show(drawn, text)
        self._bars.show(self._training_html + drawn, f"{self._training_text}\n{text}")
        return self._draw_table()

    def _end_evaluation(
        self, evaluation: Evaluation, state: TrainerState, metrics: Mapping[str, Any], now: float
    ) -> None:
        if not self._in_notebook:
            return super()._end_evaluation(evaluation, state, metrics, now)
        shown = cells(metrics, is_evaluation=True)
        if self.training_tracker is not None:
            self._put(self.training_tracker, state.global_step, shown)
            return self._draw_training(state, now)
        drawn, text = _evaluation(evaluation, now)
        shown.pop("Epoch", None)
        if shown:
            table = Table(())
            self._put(table, 0, shown)
            drawn, text = drawn + table.html(), f"{text}\n{table.text()}"
        self._bars.show(drawn, text)
        self._bars = Display()  # the next one is shown below
        return None

    def _show_logs(self, state: TrainerState, entries: Sequence[Entry], now: float) -> None:
        if self.training_tracker is None:
            return super()._show_logs(state, entries, now)
        for entry in entries:
            self._put(self.training_tracker, entry.step, cells(entry.logs))
        return self._draw_training(state, now) if now >= self._next_table else None

    def _put(self, table: Table, step: int, values: Mapping[str, Any]) -> None:
        if values:
            table.put(step, {name: self._cell(value) for name, value in values.items()})

    def _cell(self, value: Any) -> str:
        if isinstance(value, float) and (value == 0 or 1e-4 <= abs(value) < 1e6):
            return f"{value:.6f}"
        return self._format(value)

    def _close(self) -> None:
        super()._close()
        if self.training_tracker is not None:
            self._draw_table()
            self._bars.show(self._training_html, self._training_text)  # without a bar of an evaluation
            self.training_tracker, self._bars = None, Display()


@final
class Table:
    """Rows of figures, one a step. The newest are kept; what is missing from a row is an empty cell."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = list(columns)
        self.rows: dict[int, dict[str, str]] = {}
        self.left_out = 0
        self.has_news = False

    def put(self, step: int, values: Mapping[str, str]) -> None:
        """Add to the row of `step`; unknown names become columns."""
        self.columns += [name for name in values if name not in self.columns]
        self.rows.setdefault(step, {"Step": str(step)}).update(values)
        if len(self.rows) > SHOWN_ROWS:
            del self.rows[min(self.rows)]
            self.left_out += 1
        self.has_news = True

    def html(self) -> str:
        """The table; it is not news any more."""
        self.has_news = False
        head = "".join(f"<th>{escape(name)}</th>" for name in self.columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in self._cells())
        return (
            f'{self._note("<div>", "</div>")}<table class="dataframe"><thead><tr style="text-align: left">{head}</tr>'
            f"</thead><tbody>{body}</tbody></table>"
        )

    def text(self) -> str:
        """The same for places that show no HTML."""
        return self._note("", "\n") + text_table(self.columns, self._cells(), self.columns)

    def _cells(self) -> list[list[str]]:
        return [[row.get(name, "") for name in self.columns] for row in self.rows.values()]

    def _note(self, before: str, after: str) -> str:
        return f"{before}The rows before are in the log: {self.left_out}.{after}" if self.left_out else ""


@final
class Display:
    """A place in the output of a cell, whose content is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown: str | None = None

    def show(self, html: str, text: str) -> None:
        if html == self._shown:
            return
        content = {"text/html": html, "text/plain": text}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown = html


def cells(logs: Mapping[str, Any], is_evaluation: bool | None = None) -> dict[str, Any]:
    """{column: value} of what is logged. Speeds, and the figures of a run that is over, have no columns."""
    if "train_runtime" in logs:
        return {}
    if is_evaluation is None:
        is_evaluation = any(name.endswith("_runtime") for name in logs)
    found = {}
    for name, value in logs.items():
        if name in _NOT_IN_THE_TABLE or name.endswith(_SPEEDS):
            continue
        column = _column(name, is_evaluation)
        found[column] = f"{value:.2f}" if name == "epoch" and isinstance(value, (int, float)) else value
    return found


def _column(name: str, is_evaluation: bool) -> str:
    """The heading for a name: that of an evaluation goes without its prefix, and no name of the training is like it."""
    if not is_evaluation:
        return "Epoch" if name == "epoch" else f"Training {_title(name)}"
    # "eval" or another prefix; what is left of "eval_squad_f1" tells the set.
    bare = name.partition("_")[2]
    if bare == "loss":
        return f"{_loss_of(name)} Loss"
    is_taken = bare in ("step", "epoch") or bare.startswith("training_")  # of a set of that name
    return _title(name if is_taken or not bare else bare)


def _title(name: str) -> str:
    return " ".join(part.capitalize() for part in name.split("_"))


def bar(name: str, done: int, total: int | None, text: str) -> str:
    """A bar with a name before it and a text behind; only these where the end is not known."""
    drawn = (
        f'<progress value="{done}" max="{total}" style="width: 300px; height: 20px; vertical-align: middle">'
        "</progress> "
        if total
        else ""
    )
    return f"<div>{escape(name + ': ') if name else ''}{drawn}{escape(text)}</div>"


def _loss_of(name: str) -> str:
    return "Test" if name.startswith(("test_", "predict_")) else "Validation"


def _evaluation(evaluation: Evaluation, now: float) -> tuple[str, str]:
    count, times = evaluation.words(now)
    text = " ".join([count, *times])
    return bar(evaluation.name, evaluation.batches, evaluation.total, text), f"{evaluation.name}: {text}"


def _epochs(state: TrainerState) -> str:
    planned = state.num_train_epochs
    return f"Epoch {state.epoch:.2f}" + (f"/{planned}" if 0 < planned < sys.maxsize else "")
