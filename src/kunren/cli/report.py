"""`kunren report`: the page and the picture of a run at any time, and several runs beside each other."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kunren.report.run_files import RunRecord

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
kunren report DIR            writes report.html and curves.png into the folder of a run, and prints a summary
kunren report A B C          compares runs on one page, compare.html; DIR may also be a folder of several runs
kunren report sync DIR --to NAME[,NAME]
                             sends what a run has logged to trackers: tensorboard, wandb, mlflow, ..."""
_COMPARISON_NAME = "compare.html"


class ReportCommandError(Exception):
    """What was asked for cannot be done; the message says why."""


def add_command(commands: Commands) -> None:
    """Add `report` to the commands of the top parser."""
    parser = commands.add_parser(
        "report",
        help="the curves and facts of a run as a page; compare runs",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="the folder of a run, one of its checkpoints, or of runs"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the page here")
    parser.add_argument("--no-picture", dest="picture", action="store_false", help="leave out curves.png")
    parser.add_argument("--lang", choices=("en", "ja"), default="en", help="the language of page, picture and summary")
    parser.add_argument("--to", metavar="NAME[,NAME]", help="with sync: the trackers to send to")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write a report; 2 for a folder without a run, or one that cannot be written."""
    from kunren.report.run_folders import NoRunError

    try:
        if options.folders[0] == "sync" and (options.to or len(options.folders) > 1 or not Path("sync").is_dir()):
            return _sync(options)
        if options.to is not None:
            raise ReportCommandError("--to belongs to `kunren report sync DIR --to NAME`.")
        return _report(options)
    except (ReportCommandError, NoRunError, ImportError, OSError, ValueError) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2


def _sync(options: argparse.Namespace) -> int:
    """Send what stands in the local log to trackers, run by run."""
    from kunren.report.run_folders import runs_or_error

    trackers = [name.strip() for name in (options.to or "").split(",") if name.strip()]
    folders = [folder for path in options.folders[1:] for folder in runs_or_error(path)]
    if not folders or not trackers:
        raise ReportCommandError("say what to send, and where: `kunren report sync DIR --to NAME[,NAME]`.")
    from kunren.trackers.replay import replay

    for folder in folders:
        for sent in replay(folder, trackers):
            run = f" of run {sent.run_id}" if sent.run_id else ""
            told = f"{sent.lines:,} log lines sent" if sent.lines else "nothing new to send"
            print(f"{folder}: {sent.tracker}: {told}{run}")
    return 0


def _report(options: argparse.Namespace) -> int:
    from kunren.cli.screen import encodable
    from kunren.report.run_folders import runs_or_error
    from kunren.report.words import words

    found = {folder.resolve(): folder for path in options.folders for folder in runs_or_error(path)}
    runs = [run for run in map(_read_or_tell, found.values()) if run is not None]
    if not runs:
        return 2
    text = words(options.lang)
    if len(runs) == 1:
        print(encodable(_facts(runs[0], text), sys.stdout))
        print()
        _write_one(runs[0], options)
    else:
        print(encodable(_compared(runs, text), sys.stdout))
        print()
        _write_comparison(runs, options)
    return 0


def _read_or_tell(folder: Path) -> RunRecord | None:
    """The run; of several, one may have begun just now, or be somebody else's: the others are reported."""
    from kunren.report.run_files import read_run

    try:
        return read_run(folder)
    except OSError as error:
        print(f"kunren: {error}", file=sys.stderr)
        return None


def _write_one(run: RunRecord, options: argparse.Namespace) -> None:
    from kunren.report.write import PICTURE_NAME, REPORT_NAME, can_draw, write_page, write_picture

    page = _target(options.out, REPORT_NAME) or run.folder / REPORT_NAME
    _say(write_page, [run], page, options)
    if not options.picture:
        return
    if can_draw(run):
        picture = page.with_suffix(".png") if options.out else run.folder / PICTURE_NAME
        _say(write_picture, run, picture, options)
    else:
        print(f'{PICTURE_NAME} is not written: it needs matplotlib (pip install "kunren[report]") and a curve.')


def _write_comparison(runs: Sequence[RunRecord], options: argparse.Namespace) -> None:
    from kunren.report.write import write_page

    _say(write_page, runs, _target(options.out, _COMPARISON_NAME) or Path(_COMPARISON_NAME), options)


def _say(write: Any, what: Any, path: Path, options: argparse.Namespace) -> None:
    """Write a file, and print its path."""
    from kunren.cli.screen import encodable

    try:
        print(encodable(str(write(what, path, options.lang)), sys.stdout))
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReportCommandError(f"{path} cannot be written ({reason}): --out FILE writes it elsewhere.") from None


def _target(out: Path | None, name: str) -> Path | None:
    """The file that --out means: in a folder, one of the usual name."""
    if out is None:
        return None
    target = out / name if out.is_dir() else out
    if not target.parent.is_dir():
        raise ReportCommandError(f"--out {out}: there is no folder {target.parent}.")
    return target


def _facts(run: RunRecord, text: Mapping[str, str]) -> str:
    """The summary of one run, a line each."""
    from kunren.report.text_width import columns_of, padded, printable

    rows = [
        (text["run"], run.name),
        (text["folder"], str(run.folder)),
        (text["outcome"], text[run.outcome] + (f": {run.error.strip().splitlines()[-1]}" if run.error else "")),
        (text["steps"], _steps(run, text)),
        *((name, _last_and_best(run, name, text)) for name in ("loss", "eval_loss") if _points(run, name)),
        (text["duration"], _duration(run, text)),
        (text["account"], _bottleneck(run, text, with_remedy=True)),
    ]
    width = max(columns_of(name) for name, _ in rows) + 2
    return "\n".join(padded(name, width) + printable(value) for name, value in rows)


def _compared(runs: Sequence[RunRecord], text: Mapping[str, str]) -> str:
    """The runs as rows, and the arguments in which they differ as rows below."""
    from kunren.report.text_width import table

    keys = ("run", "outcome", "steps")
    header = [*(text[key] for key in keys), "loss", "eval_loss", f"{text['best']}", text["duration"], text["account"]]
    rows = []
    for one in runs:
        best = min((value for _, value in _points(one, "eval_loss")), default=None)
        numbers = [_number(_points(one, name)[-1][1]) if _points(one, name) else "" for name in ("loss", "eval_loss")]
        facts = [one.name, text[one.outcome], _steps(one, text), *numbers, "" if best is None else _number(best)]
        rows.append([*facts, _duration(one, text), _bottleneck(one, text)])
    told = table(header, rows, right=(2, 3, 4, 5, 6))
    different = _different_arguments(runs, text)
    if not different:
        return told
    return told + "\n\n" + table([text["arguments_differ"], *(one.name for one in runs)], different)


def _different_arguments(runs: Sequence[RunRecord], text: Mapping[str, str]) -> list[list[str]]:
    names = sorted({name for one in runs for name in one.arguments} - {"output_dir", "run_name", "logging_dir"})
    rows = [[name, *(str(one.arguments.get(name, text["default"])) for one in runs)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def _points(run: RunRecord, name: str) -> list[tuple[int, float]]:
    from kunren.report.run_files import series

    return series(run).get(name) or []


def _last_and_best(run: RunRecord, name: str, text: Mapping[str, str]) -> str:
    points = _points(run, name)
    step, best = min(points, key=lambda point: point[1])
    last = f"{_number(points[-1][1])} ({text['at_step'].format(step=f'{points[-1][0]:,}')})"
    return f"{last}, {text['best']} {_number(best)} ({text['at_step'].format(step=f'{step:,}')})"


def _number(value: float) -> str:
    return f"{value:.4g}"


def _steps(run: RunRecord, text: Mapping[str, str]) -> str:
    of = " " + text["of_steps"].format(count=f"{run.max_steps:,}") if run.max_steps else ""
    return f"{run.step:,}{of}"


def _duration(run: RunRecord, text: Mapping[str, str]) -> str:
    from kunren.report.words import duration

    return duration(run.duration, text) if run.duration > 0 else text["unknown"]


def _bottleneck(run: RunRecord, text: Mapping[str, str], with_remedy: bool = False) -> str:
    from kunren.report.bottleneck import bottleneck

    account = run.account
    if account is None:
        return text["no_account"] if with_remedy else text["unknown"]
    finding = bottleneck(account["seconds"], run.environment)
    if finding is None:
        return text["no_bottleneck"] if with_remedy else text["none"]
    share, phase = f"{finding.share:.0%}", text[finding.phase]
    if with_remedy:
        return text["bottleneck"].format(phase=phase, share=share) + " " + text[finding.remedy_key]
    return f"{phase} {share}"
