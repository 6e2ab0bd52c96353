"""A Chromium for the tests of pages, and the pages that they look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from browser import example_runs
from browser.chromium import Browser, find_chromium
from kunren.report.page import page
from kunren.report.run_files import read_run


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    if executable is None:
        pytest.skip("needs Chromium: apt-get install chromium fonts-noto-cjk, or name one in CHROMIUM")
    opened = Browser(executable)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    top = tmp_path_factory.mktemp("runs")
    return {
        "one": example_runs.finished(top / "one"),
        "other": example_runs.finished(top / "other", seed=2, peak=1e-4),
        "failed": example_runs.failed(top / "failed"),
        "lost": example_runs.lost(top / "lost"),
        "hostile": example_runs.hostile(top / "hostile"),
        "odd": example_runs.odd(top / "odd"),
    }


@pytest.fixture(scope="session")
def pages(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of pages by name."""
    top = tmp_path_factory.mktemp("pages")
    runs = {name: read_run(folder) for name, folder in folders.items()}
    texts = {
        "single": page([runs["one"]]),
        "japanese": page([runs["one"]], "ja"),
        "compare": page([runs["one"], runs["other"]]),
        "compare-japanese": page([runs["one"], runs["other"]], "ja"),
        "failed": page([runs["failed"]]),
        "odd": page([runs["odd"]]),
        "lost": page([runs["lost"]]),
        "lost-compare": page([runs["lost"], runs["one"]], "ja"),
        "hostile": page([runs["hostile"]]),
        "hostile-compare": page([runs["hostile"], runs["one"]]),
    }
    for name, text in texts.items():
        (top / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: (top / f"{name}.html").as_uri() for name in texts}
