"""`kunren report`: the page and the picture of a run at any time, and several runs beside each other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.cli.language import LANGUAGES, add_parser, spoken

if TYPE_CHECKING:
    from kunren.report.run_files import RunRecord

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = "the curves and facts of a run as a page; compare runs", "学習の曲線と概要をページにする。複数の学習を比較する"
_DESCRIPTION = (
    """\
kunren report DIR            writes report.html and curves.png into the folder of a run, and prints a summary
kunren report A B C          compares runs on one page, compare.html; DIR may also be a folder of several runs
kunren report sync DIR --to NAME[,NAME]
                             sends what a run has logged to trackers: tensorboard, wandb, mlflow, ...""",
    """\
kunren report DIR            学習のフォルダーに report.html と curves.png を書き出し、概要を表示する
kunren report A B C          複数の学習を 1 つのページ compare.html で比較する（DIR は学習を含むフォルダーでもよい）
kunren report sync DIR --to NAME[,NAME]
                             記録をトラッカー（tensorboard、wandb、mlflow など）に送る""",
)
_HELP = {
    "folders": (
        "the folder of a run, one of its checkpoints, or of runs",
        "学習のフォルダー、そのチェックポイント、または複数の学習を含むフォルダー",
    ),
    "out": ("write the page here", "ページの書き出し先"),
    "picture": ("leave out curves.png", "curves.png を書き出さない"),
    "lang": (
        "the language of page, picture and summary; otherwise what LC_ALL, LC_MESSAGES or LANG says",
        "ページ、画像、概要の言語。省略すると LC_ALL、LC_MESSAGES、LANG に従う",
    ),
    "to": ("with sync: the trackers to send to", "sync とともに：送り先のトラッカー"),
}
_COMPARISON_NAME = "compare.html"


class ReportCommandError(Exception):
    """What was asked for cannot be done; the message says why."""


def add_command(commands: Commands) -> None:
    """Add `report` to the commands of the top parser."""
    parser, arguments, options, at = add_parser(commands, "report", _ABOUT, _DESCRIPTION)
    arguments.add_argument("folders", nargs="+", metavar="DIR", help=_HELP["folders"][at])
    options.add_argument("--out", type=Path, metavar="FILE", help=_HELP["out"][at])
    options.add_argument("--no-picture", dest="picture", action="store_false", help=_HELP["picture"][at])
    options.add_argument("--lang", choices=LANGUAGES, help=_HELP["lang"][at])
    options.add_argument("--to", metavar="NAME[,NAME]", help=_HELP["to"][at])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write a report; 2 for a folder without a run, or one that cannot be written."""
    from kunren.cli.screen import give_up_writing
    from kunren.report.run_folders import NoRunError
    from kunren.report.words import words

    options.lang = spoken(options.lang)
    try:
        if options.folders[0] == "sync" and (options.to or len(options.folders) > 1 or not Path("sync").is_dir()):
            return _sync(options)
        if options.to is not None:
            raise ReportCommandError(words(options.lang)["to_without_sync"])
        return _report(options)
    except BrokenPipeError:
        give_up_writing(sys.stdout)
        return 0
    except (ReportCommandError, NoRunError, ImportError, OSError, ValueError) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2


def _sync(options: argparse.Namespace) -> int:
    """Send what stands in the local log to trackers, run by run."""
    from kunren.report.run_files import read_run
    from kunren.report.run_folders import METRICS_NAME, runs_or_error
    from kunren.report.words import words

    text = words(options.lang)
    trackers = [name.strip() for name in (options.to or "").split(",") if name.strip()]
    folders = [folder for path in options.folders[1:] for folder in runs_or_error(path, options.lang)]
    if not folders or not trackers:
        raise ReportCommandError(text["sync_usage"])
    from kunren.trackers.replay import replay, synced_trackers

    for folder in folders:
        if not (folder / METRICS_NAME).is_file():
            _print(f"{folder}: {text['sent_nowhere']}")
            continue
        before, followed = synced_trackers(folder), read_run(folder).arguments.get("report_to")
        followed = followed if isinstance(followed, (str, list)) else []
        for sent in replay(folder, trackers):
            told = text["sent"].format(count=f"{sent.lines:,}") if sent.lines else text["sent_nothing"]
            told += text["sent_to"].format(run=sent.run_id) if sent.run_id else ""
            _print(f"{folder}: {sent.tracker}: {told}")
            is_second = sent.tracker in followed or "all" in followed
            if sent.lines and is_second and sent.tracker not in before:
                _print(f"  {text['sent_again'].format(tracker=sent.tracker)}")
    return 0


def _print(text: str) -> None:
    from kunren.cli.screen import encodable

    print(encodable(text, sys.stdout), flush=True)


def _report(options: argparse.Namespace) -> int:
    """The files first: a summary that nobody reads to its end must not cost them."""
    from kunren.cli.screen import size_of
    from kunren.cli.summary import comparison, summary
    from kunren.report.run_folders import runs_or_error
    from kunren.report.words import words

    found = {folder.resolve(): folder for path in options.folders for folder in runs_or_error(path, options.lang)}
    runs = [run for run in map(_read_or_tell, found.values()) if run is not None]
    if not runs:
        return 2
    text, written = words(options.lang), list[str]()
    try:
        if len(runs) == 1:
            _write_one(runs[0], options, written)
        else:
            _write_comparison(runs, options, written)
    finally:
        told = summary(runs[0], text) if len(runs) == 1 else comparison(runs, text, size_of(sys.stdout)[0])
        _print("\n".join([told, "", *written]))
    return 0


def _read_or_tell(folder: Path) -> RunRecord | None:
    """The run; of several, one may have begun just now, or be somebody else's: the others are reported."""
    from kunren.report.run_files import read_run

    try:
        return read_run(folder)
    except OSError as error:
        print(f"kunren: {error}", file=sys.stderr)
        return None


def _write_one(run: RunRecord, options: argparse.Namespace, written: list[str]) -> None:
    from kunren.report.run_files import series
    from kunren.report.words import words
    from kunren.report.write import PICTURE_NAME, REPORT_NAME, can_draw, write_page, write_picture

    page = _target(options, REPORT_NAME) or run.folder / REPORT_NAME
    written.append(_written(write_page, [run], page, options))
    if not options.picture:
        return
    if can_draw(run):
        picture = page.with_suffix(".png") if options.out else run.folder / PICTURE_NAME
        written.append(_written(write_picture, run, picture, options))
    else:
        why = "no_matplotlib" if series(run) else "no_curve_to_draw"
        written.append(words(options.lang)[why].format(name=PICTURE_NAME))


def _write_comparison(runs: Sequence[RunRecord], options: argparse.Namespace, written: list[str]) -> None:
    from kunren.report.write import write_page

    page = _target(options, _COMPARISON_NAME) or Path(_COMPARISON_NAME)
    written.append(_written(write_page, runs, page, options))


def _written(write: Any, what: Any, path: Path, options: argparse.Namespace) -> str:
    """Write a file; its path."""
    from kunren.report.words import words

    try:
        return str(write(what, path, options.lang))
    except OSError as error:
        told = words(options.lang)["cannot_write"].format(path=path, reason=error.strerror or str(error))
        raise ReportCommandError(told) from None


def _target(options: argparse.Namespace, name: str) -> Path | None:
    """The file that --out means: in a folder, one of the usual name."""
    from kunren.report.words import words

    out: Path | None = options.out
    if out is None:
        return None
    target = out / name if out.is_dir() else out
    if not target.parent.is_dir():
        raise ReportCommandError(words(options.lang)["no_out_folder"].format(path=out, folder=target.parent))
    return target
