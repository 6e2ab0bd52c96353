"""Bars in a terminal: where they can be drawn, and what fits into their line."""

from __future__ import annotations

import importlib.util
import logging
import os
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

LEAST_COLUMNS = 8  # of the bar itself


def shows_bars() -> bool:
    """Whether a bar can be drawn over, and nothing else gets into its line.

    That takes a terminal for standard error, and for standard output the same, or a file. A pipe may well end in the
    terminal. Where the environment says CI, a terminal is a file in truth.
    """
    if importlib.util.find_spec("tqdm") is None:
        return False
    if in_notebook():
        return True
    if os.environ.get("TERM") == "dumb" or os.environ.get("CI", "").lower() not in ("", "0", "false"):
        return False
    return is_terminal(sys.stderr) and (is_terminal(sys.stdout) or _is_file(sys.stdout))


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this process: what is displayed will be seen."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_shell() if get_shell is not None else None
    return getattr(shell, "kernel", None) is not None


def is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


def _is_file(stream: Any) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):
        return False


def open_bar(**options: Any) -> Any:
    from tqdm.auto import tqdm  # not needed, so maybe not installed, where there is no terminal

    # Refreshes are rationed here. What is shown before the first of them is nothing.
    return tqdm(dynamic_ncols=True, bar_format=" ", **options)


def make_way(bars: Callable[[], Iterable[Any]]) -> Callable[[], None]:
    """Have the bars leave their lines whenever a warning is logged, until they are drawn again. Returns what ends it.

    The message would start behind the bar otherwise. A handler would not do: where there is one, Python prints nothing.
    """
    before = logging.getLogRecordFactory()
    is_on = True

    def make_record(*values: Any, **options: Any) -> logging.LogRecord:
        record = before(*values, **options)
        if is_on and record.levelno >= logging.WARNING:
            with suppress(Exception):
                for bar in bars():
                    bar.clear()
        return record

    def stop() -> None:
        nonlocal is_on
        is_on = False  # somebody else may have put theirs on top
        if logging.getLogRecordFactory() is make_record:
            logging.setLogRecordFactory(before)

    logging.setLogRecordFactory(make_record)
    return stop


def columns_of(bar: Any) -> int:
    return bar.format_dict.get("ncols") or 80


def fill(bar: Any, count: int, name: str, text: str, figures: list[str]) -> None:
    """Have the bar show name, text, and as many of the figures as leave itself a few columns."""
    name = name or (bar.desc or "").rstrip(": ")  # a subclass may have opened the bar
    head = f"{name}: " if name else ""
    room = columns_of(bar) - _width(head) - (len("100%|| ") + LEAST_COLUMNS if bar.total else 0)
    for figure in figures:
        if _width(text) + _width(figure) + 2 > room:
            break
        text += f"  {figure}"
    meter = "{percentage:3.0f}%|{bar}| " if bar.total else ""
    bar.bar_format = _literal(head) + meter + _literal(text)
    bar.n = count


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _width(text: str) -> int:
    """Columns of a terminal that `text` takes."""
    from tqdm.utils import disp_len

    return int(disp_len(text))


def folded(line: str, columns: int) -> str:
    """The line, broken between its entries where it is wider than the terminal."""
    rows: list[str] = []
    for entry in line.split(" | "):
        if rows and _width(f"{rows[-1]} | {entry}") < columns:
            rows[-1] += f" | {entry}"
        else:
            rows.append(f"  {entry}" if rows else entry)
    return "\n".join(rows)
