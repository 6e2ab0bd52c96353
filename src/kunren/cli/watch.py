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

if TYPE_CHECKING:
    from kunren.report.run_files import RunRecord
    from kunren.report.run_folders import WatchedRuns

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Show runs while they go on: progress, curves, metrics, where the time goes, warnings. DIR is the output_dir of a run,
or a folder of several; runs that begin later are found. Ends when every run has ended (--follow: never), or with q.
Into a pipe, each new log entry is a line."""
_REFRESH_SECONDS = 1.0


def add_command(commands: Commands) -> None:
    """Add `watch` to the commands of the top parser."""
    parser = commands.add_parser(
        "watch",
        help="show runs while they go on, in a terminal or on a page",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="the folder of a run, or of several")
    parser.add_argument("--once", action="store_true", help="print what there is, and end")
    parser.add_argument("--follow", action="store_true", help="go on when all runs have ended, or none is there yet")
    parser.add_argument("--web", action="store_true", help="a page for browsers on this machine, until Ctrl-C")
    parser.add_argument("--port", type=int, metavar="N", help="the page's port; a free one where it is taken (8642)")
    parser.add_argument("--open", action="store_true", help="open the page in a browser; with --web")
    parser.add_argument("--lang", choices=("en", "ja"), default="en", help="the language of what is shown")
    parser.add_argument("--ascii", action="store_true", help="draw without Braille and block characters")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Watch; 0 when the runs have ended or q was pressed, 2 where there is nothing to watch."""
    from kunren.report.run_folders import WatchedRuns

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
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _problem(options: argparse.Namespace) -> str | None:
    from kunren.report.run_folders import NoRunError, runs_or_error

    if (options.open or options.port is not None) and not options.web:
        return "--open and --port are for the page: add --web."
    if options.port is not None and not 0 <= options.port < 65536:
        return f"--port {options.port}: ports go from 0 (any that is free) to 65535."
    for folder in options.folders:
        if options.once or not (options.follow or folder.is_dir()):
            try:
                runs_or_error(folder)
            except NoRunError as error:
                return str(error) if options.once else f"{error} To wait for it, add --follow."
    return None


def _print_once(watched: WatchedRuns, options: argparse.Namespace) -> int:
    _print_view(watched.now(), watched.waiting, options)
    return 0


def _show(watched: WatchedRuns, options: argparse.Namespace) -> int:
    """Draw until all runs have ended; what was seen last stays in the terminal."""
    from kunren.cli.screen import Screen, size_of

    with Screen(sys.stdout, sys.stdin) as screen, contextlib.suppress(EOFError):
        while True:
            began = time.monotonic()
            runs = watched.now()
            width, height = size_of(sys.stdout)
            screen.draw(_drawn(runs, watched.waiting, options, width, height))
            rest = max(_REFRESH_SECONDS, watched.rest * (time.monotonic() - began))
            if _is_over(runs, watched, options) or screen.wait(rest) in ("q", "Q"):
                break
    _print_view(runs, watched.waiting, options)
    return 0


def _is_over(runs: list[RunRecord], watched: WatchedRuns, options: argparse.Namespace) -> bool:
    return bool(runs) and not watched.waiting and not options.follow and all(_has_ended(run) for run in runs)


def _has_ended(run: RunRecord) -> bool:
    """Whether nothing more will come. One without an end is waited for as long as three of its logs take."""
    if run.is_running:
        return False
    times = [_time(entry) for entry in run.logs[-20:]]
    longest = max((later - earlier for earlier, later in zip(times, times[1:], strict=False)), default=0.0)
    return run.outcome != "interrupted" or time.time() - run.changed_at > 3 * longest


def _print_view(runs: list[RunRecord], waiting: list[Path], options: argparse.Namespace) -> None:
    from kunren.cli.screen import encodable, size_of

    for line in _drawn(runs, waiting, options, size_of(sys.stdout)[0], None):
        print(encodable(line, sys.stdout))
    sys.stdout.flush()


def _drawn(
    runs: list[RunRecord], waiting: list[Path], options: argparse.Namespace, width: int, height: int | None
) -> list[str]:
    from kunren.cli.screen import has_colours, is_ascii_only
    from kunren.report.terminal import view
    from kunren.report.text_width import coloured, plain

    colours = has_colours(sys.stdout)
    is_ascii = options.ascii or is_ascii_only(sys.stdout)
    lines = view(runs, width, height, options.lang, is_ascii, colours, waiting)
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
    from kunren.report.live import PORT, LiveServer

    wanted = PORT if options.port is None else options.port
    with LiveServer(options.folders, options.lang, wanted) as server:
        taken = f" (port {wanted} is taken)" if wanted not in (0, server.port) else ""
        print(f"{server.address}{taken}: Ctrl-C ends it", flush=True)
        if options.open:
            import webbrowser

            webbrowser.open(server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    return 0
