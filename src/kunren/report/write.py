"""Write the report of a run into its folder: `report.html`, and `curves.png` beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kunren.report.page import page
from kunren.report.run_files import RunRecord, read_run, series

REPORT_NAME, PICTURE_NAME = "report.html", "curves.png"


def write_report(folder: str | Path, language: str = "en", picture: bool = True) -> Path:
    """Write the page, and the picture where matplotlib is installed and there is a curve; the path of the page.

    A FileNotFoundError for a folder without `metrics.jsonl`. Each file is whole, or what it was before.
    """
    run = read_run(folder)
    path = write_page([run], Path(folder) / REPORT_NAME, language)
    if picture and can_draw(run):
        write_picture(run, Path(folder) / PICTURE_NAME, language)
    return path


def write_page(runs: Sequence[RunRecord], path: Path, language: str = "en") -> Path:
    """The page of one run, or of several that are compared."""
    html = page(runs, language)
    with _written_aside(path) as aside:
        # A name that is no text, as file systems allow them, must not cost the report.
        aside.write_text(html, encoding="utf-8", errors="replace", newline="\n")
    return path


def write_picture(run: RunRecord, path: Path, language: str = "en") -> Path:
    """The curves as a PNG; an ImportError without matplotlib."""
    from kunren.report.picture import draw

    with _written_aside(path) as aside:
        draw(run, aside, language)
    return path


def can_draw(run: RunRecord) -> bool:
    """Whether matplotlib is installed, and anything was logged as a number."""
    return find_spec("matplotlib") is not None and bool(series(run))


@contextmanager
def _written_aside(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` once that has come to its end."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
