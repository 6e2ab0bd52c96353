"""`kunren watch`: runs while they go on, in a terminal or as a page; reads their files and nothing else."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.cli.language import LANGUAGES, add_parser, spoken

if TYPE_CHECKING:
    from kunren.report.run_files import RunRecord
    from kunren.report.run_folders import WatchedRuns

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_ABOUT = "show runs while they go on, in a terminal or on a page", "学習の様子を端末またはページで見る"
_DESCRIPTION = (
    """\
Show runs while they go on: progress, curves, metrics, where the time goes, warnings. DIR is the output_dir of a run,
or a folder of several; runs that begin later are found. Ends when every run has ended (--follow: never), or with q.
Into a pipe, each new log entry is a line.""",
    """\
学習の進み具合、曲線、指標、時間の内訳、警告を表示する。DIR は学習の output_dir、または複数の学習を含むフォルダー。
あとから始まった学習も表示する。すべての学習が終わるか（--follow なら続行）、q を押すと終了する。
パイプへは、ログを 1 件ずつ 1 行で書き出す。""",
)
_HELP = {
    "folders": ("the folder of a run, or of several", "学習のフォルダー、または複数の学習を含むフォルダー"),
    "once": ("print what there is, and end", "現在の様子を表示して終了する"),
    "follow": (
        "go on when all runs have ended, or none is there yet",
        "すべての学習が終わっても、まだ 1 つもなくても続ける",
    ),
    "web": (
        "a page for browsers on this machine, until Ctrl-C",
        "このマシンのブラウザー用のページを開く（Ctrl-C で終了）",
    ),
    "port": (
        "the page's port; a free one where it is taken (8642)",
        "ページのポート。使用中なら空いているもの（8642）",
    ),
    "open": ("open the page in a browser; with --web", "ページをブラウザーで開く（--web とともに）"),
    "lang": (
        "the language of what is shown; otherwise what LC_ALL, LC_MESSAGES or LANG says",
        "表示の言語。省略すると LC_ALL、LC_MESSAGES、LANG に従う",
    ),
    "ascii": ("draw without Braille and block characters", "点字とブロックの文字を使わずに描く"),
}
_REFRESH_SECONDS = 1.0


def add_command(commands: Commands) -> None:
    """Add `watch` to the commands of the top parser."""
    parser, arguments, options, at = add_parser(commands, "watch", _ABOUT, _DESCRIPTION)
    arguments.add_argument("folders", nargs="+", type=Path, metavar="DIR", help=_HELP["folders"][at])
    options.add_argument("--once", action="store_true", help=_HELP["once"][at])
    options.add_argument("--follow", action="store_true", help=_HELP["follow"][at])
    options.add_argument("--web", action="store_true", help=_HELP["web"][at])
    options.add_argument("--port", type=int, metavar="N", help=_HELP["port"][at])
    options.add_argument("--open", action="store_true", help=_HELP["open"][at])
    options.add_argument("--lang", choices=LANGUAGES, help=_HELP["lang"][at])
    options.add_argument("--ascii", action="store_true", help=_HELP["ascii"][at])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Watch; 0 when the runs have ended or q was pressed, 2 where there is nothing to watch."""
    from kunren.cli.screen import give_up_writing
    from kunren.report.run_folders import WatchedRuns

    options.lang = spoken(options.lang)
    if problem := _problem(options):
        print(f"kunren: {problem}", file=sys.stderr)
        return 2
    try:
        if options.web:
            return _serve(options)
        watched = WatchedRuns(options.folders)
        if options.once:
            return _print_once(watched, options)
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            return _show(watched, options)
        return _print_entries(watched, options)
    except BrokenPipeError:
        give_up_writing(sys.stdout)
        return 0


def _problem(options: argparse.Namespace) -> str | None:
    from kunren.report.run_folders import NoRunError, runs_or_error
    from kunren.report.words import words

    text = words(options.lang)
    if (options.open or options.port is not None) and not options.web:
        return text["page_options"]
    if options.port is not None and not 0 <= options.port < 65536:
        return text["bad_port"].format(port=options.port)
    for folder in options.folders:
        if options.once or not (options.follow or folder.is_dir()):
            try:
                runs_or_error(folder, options.lang)
            except NoRunError as error:
                return str(error) if options.once else str(error) + text["add_follow"]
    return None


def _print_once(watched: WatchedRuns, options: argparse.Namespace) -> int:
    from kunren.cli.screen import encodable, size_of

    runs = watched.now()
    for line in _drawn(runs, watched.waiting, options, size_of(sys.stdout)[0], None):
        print(encodable(line, sys.stdout))
    sys.stdout.flush()
    return 0


def _show(watched: WatchedRuns, options: argparse.Namespace) -> int:
    """Draw until all runs have ended; what was seen last stays in the terminal."""
    from kunren.cli.screen import Screen, encodable, size_of

    with Screen(sys.stdout, sys.stdin) as screen, contextlib.suppress(EOFError):
        while True:
            began = time.monotonic()
            runs = watched.now()
            width, height = size_of(sys.stdout)
            drawn = _drawn(runs, watched.waiting, options, width, height)
            screen.draw(drawn)
            rest = max(_REFRESH_SECONDS, watched.rest * (time.monotonic() - began))
            if _is_over(runs, watched, options) or screen.wait(rest) in ("q", "Q"):
                break
    print("\n".join(encodable(line, sys.stdout) for line in drawn), flush=True)
    return 0


def _is_over(runs: list[RunRecord], watched: WatchedRuns, options: argparse.Namespace) -> bool:
    return bool(runs) and not watched.waiting and not options.follow and not any(run.is_running for run in runs)


def _drawn(
    runs: list[RunRecord], waiting: list[Path], options: argparse.Namespace, width: int, height: int | None
) -> list[str]:
    from kunren.cli.screen import has_colours, is_ascii_only
    from kunren.report.run_folders import by_interest
    from kunren.report.terminal import view
    from kunren.report.text_width import coloured, plain

    colours = has_colours(sys.stdout)
    is_ascii = options.ascii or is_ascii_only(sys.stdout)
    lines = view(by_interest(runs), width, height, options.lang, is_ascii, colours, waiting)
    return [coloured(line) if colours else plain(line) for line in lines]


def _print_entries(watched: WatchedRuns, options: argparse.Namespace) -> int:
    """A line for everything that is logged, as it comes."""
    seen: set[Any] = set()
    while True:
        runs = watched.now()
        for run in runs:
            before = f"{run.name}: " if len(runs) > 1 else ""
            for key, line in _entries(run):
                if (run.folder, key) not in seen:
                    seen.add((run.folder, key))
                    print(_as_line(before + line), flush=True)
        if _is_over(runs, watched, options):
            return 0
        time.sleep(_REFRESH_SECONDS)


def _as_line(text: str) -> str:
    from kunren.cli.screen import encodable
    from kunren.report.text_width import printable

    return encodable(" ".join(printable(text).split()), sys.stdout)


def _entries(run: RunRecord) -> Iterator[tuple[Any, str]]:
    """What there is to tell of a run in the order of time, each with a key that tells it from the others."""
    found: list[tuple[float, Any, str]] = []
    of = f"/{run.max_steps}" if run.max_steps else ""
    for entry in run.logs:
        values = {name: value for name, value in entry.items() if name not in ("step", "time", "account")}
        told = " | ".join([f"step {entry['step']}{of}", *(f"{name} {_shown(value)}" for name, value in values.items())])
        found.append((_time(entry), (entry.get("time"), entry["step"], *values), told))
    for session in run.sessions:
        for event in [*session.warnings, *([session.end] if session.end else [])]:
            told = f"warning: {event.get('text')}" if event is not session.end else str(event.get("outcome"))
            error = f": {event['error']}" if event.get("error") else ""
            key = (event.get("event"), event.get("time"), event.get("step"), told)
            found.append((_time(event), key, f"step {event.get('step')}{of} | {told}{error}"))
    for _, key, line in sorted(found, key=lambda one: one[0]):
        yield key, line


def _time(entry: dict[str, Any]) -> float:
    moment = entry.get("time")
    return float(moment) if isinstance(moment, (int, float)) and abs(moment) < 1e300 else 0.0


def _shown(value: Any) -> str:
    if value is None:
        return "nan"  # JSON has no such number
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _serve(options: argparse.Namespace) -> int:
    from kunren.cli.screen import encodable
    from kunren.report.live import PORT, LiveServer
    from kunren.report.words import words

    wanted = PORT if options.port is None else options.port
    with LiveServer(options.folders, options.lang, wanted) as server:
        text = words(options.lang)
        taken = [text["port_taken"].format(port=wanted)] if wanted not in (0, server.port) else []
        # The address alone in its line: terminals make a link of what touches it.
        print(encodable("\n".join([server.address, " ".join([*taken, text["ctrl_c"]])]), sys.stdout), flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0
