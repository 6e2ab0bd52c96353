"""curves.png: what is drawn, in which font, and that no name or setting can spoil it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from unit.report.runs_on_disk import log_lines, make_run, write

matplotlib = pytest.importorskip("matplotlib")

from matplotlib import font_manager  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from kunren.report import picture  # noqa: E402
from kunren.report.picture import draw, japanese_font  # noqa: E402
from kunren.report.run_files import read_run  # noqa: E402


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are made, to look into."""
    made: list[Figure] = []

    class Kept(Figure):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            made.append(self)

    monkeypatch.setattr("matplotlib.figure.Figure", Kept)
    return made


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left") for axes in figure.axes]


def test_every_curve_has_its_panel_and_both_losses_share_one(tmp_path: Path, figures: list[Figure]) -> None:
    run = read_run(make_run(tmp_path / "run"))
    draw(run, tmp_path / "a.png")
    (figure,) = figures
    assert titles(figure) == ["Loss", "Learning rate", "Gradient norm", "eval_accuracy"]
    both = figure.axes[0]
    assert [line.get_label() for line in both.lines] == ["loss", "eval_loss"]
    losses = [(entry["step"], entry["loss"]) for entry in run.logs if "loss" in entry]
    assert list(zip(*both.lines[0].get_data(), strict=True)) == losses
    assert figure._suptitle is not None and figure._suptitle.get_text() == "run"


def test_many_values_are_drawn_with_their_mean(tmp_path: Path, figures: list[Figure]) -> None:
    at = {"learning_rate": 0.1, "time": 1.0}
    lines = [{"loss": 3.0 if step % 2 else 1.0, **at, "step": step} for step in range(1000)]
    draw(read_run(write(tmp_path, lines)), tmp_path / "a.png")
    raw, mean = figures[0].axes[0].lines
    assert len(figures[0].axes[1].lines) == 1  # a schedule is not noisy
    assert len(raw.get_ydata()) == len(mean.get_ydata()) == 1000
    assert all(abs(value - 2) < 0.2 for value in mean.get_ydata())


def test_a_few_large_values_get_a_logarithmic_scale(tmp_path: Path, figures: list[Figure]) -> None:
    lines = [{"loss": 1e5 if step == 3 else 2.0, "learning_rate": 0.1, "step": step, "time": 1.0} for step in range(20)]
    draw(read_run(write(tmp_path, lines)), tmp_path / "a.png")
    assert [axes.get_yscale() for axes in figures[0].axes] == ["log", "linear"]


def test_japanese_where_there_is_a_font_for_it(
    tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = read_run(make_run(tmp_path / "run"))
    if japanese_font() is not None:
        draw(run, tmp_path / "a.png", "ja")
        assert titles(figures.pop())[:3] == ["損失", "学習率", "勾配ノルム"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", font_manager.fontManager.ttflist[:0])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [])
    assert japanese_font() is None
    monkeypatch.undo()
    monkeypatch.setattr("matplotlib.figure.Figure", Figure)
    monkeypatch.setattr(picture, "japanese_font", lambda: None)
    draw(run, tmp_path / "b.png", "ja")
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_a_font_that_was_installed_since_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    if japanese_font() is None:
        pytest.skip("no font with Japanese characters is installed")
    listed = font_manager.fontManager.ttflist
    monkeypatch.setattr(
        font_manager.fontManager, "ttflist", [entry for entry in listed if entry.name not in picture._JAPANESE]
    )
    assert japanese_font() is not None


@pytest.mark.parametrize("name", ["$x_$", "_hidden", "eval_正解率", "\u2603\U0001f600\x00", "a\\b{c}^", "%", "x" * 200])
def test_no_name_spoils_the_picture(tmp_path: Path, name: str) -> None:
    lines = [{name: float(step), "loss": 1.0, "step": step, "time": 1.0} for step in range(3)]
    run = read_run(write(tmp_path, lines))
    draw(run, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 5_000


def test_a_user_s_settings_are_not_obeyed_and_not_changed(tmp_path: Path, figures: list[Figure]) -> None:
    run = read_run(make_run(tmp_path / "run"))
    draw(run, tmp_path / "plain.png")
    theirs = {
        "text.usetex": True,
        "axes.facecolor": "black",
        "axes.formatter.use_mathtext": True,
        "figure.facecolor": "black",
        "font.family": "serif",
        "font.size": 30,
        "lines.linestyle": ":",
        "axes.grid": False,
    }
    with matplotlib.rc_context(theirs):
        draw(run, tmp_path / "theirs.png")
        assert {name: matplotlib.rcParams[name] for name in theirs} == {**theirs, "font.family": ["serif"]}
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "theirs.png").read_bytes()


def test_a_run_without_a_number_and_one_with_more_curves_than_are_drawn(
    tmp_path: Path, figures: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picture, "_MOST_PANELS", 5)
    with pytest.raises(ValueError, match="no curve"):
        draw(read_run(write(tmp_path / "a", [{"loss": None, "step": 1, "time": 1.0}])), tmp_path / "a.png")
    many = {f"eval_{index}": 1.0 for index in range(100)}
    draw(read_run(write(tmp_path / "b", [*log_lines(5, 1.0), {**many, "step": 5, "time": 4.0}])), tmp_path / "b.png")
    assert len(figures[0].axes) == 5
    assert "+ 98" in figures[0]._suptitle.get_text()


def test_where_a_loss_was_lost_is_marked(tmp_path: Path, figures: list[Figure]) -> None:
    lines = [*log_lines(20, 1.0, evaluate=100), *({"loss": None, "step": step, "time": 99.0} for step in (25, 60))]
    draw(read_run(write(tmp_path, lines)), tmp_path / "a.png")
    legend = figures[0].axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["loss", "loss: not finite since step 25"]
    assert figures[0].axes[0].get_xlim()[1] >= 60 and figures[0].axes[1].get_legend() is None
