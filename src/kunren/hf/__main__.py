"""`python -m kunren.hf SCRIPT.py ...` or `-m MODULE ...`: runs what was written for transformers' Trainer on kunren."""

from __future__ import annotations

import importlib.util
import os
import runpy
import signal
import sys
from pathlib import Path
from types import TracebackType

from kunren.hf.installation import install

_USAGE = "usage: python -m kunren.hf SCRIPT.py [argument ...]\n       python -m kunren.hf -m MODULE [argument ...]"


def main(words: list[str]) -> None:
    """Run the script or module with transformers' names giving kunren's, in this process and in those it starts."""
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        print(_USAGE, file=sys.stdout if words[:1] in (["-h"], ["--help"]) else sys.stderr)
        sys.exit(0 if words[:1] in (["-h"], ["--help"]) else 2)
    if words[0] != "-m" and not Path(words[0]).exists():
        sys.exit(f"kunren: there is no file {words[0]!r} in {Path.cwd()}.")
    os.environ["KUNREN_INSTALL"] = "1"
    install()
    try:
        _run(words)
    except KeyboardInterrupt as error:
        sys.excepthook(type(error), _as_of_the_script(error), error.__traceback__)
        sys.exit(128 + signal.SIGINT)  # what a shell sees of `python SCRIPT.py`
    except Exception:
        show = sys.excepthook  # the script's own, where it has set one
        sys.excepthook = lambda kind, error, _: show(kind, _as_of_the_script(error), error.__traceback__)
        raise


def _run(words: list[str]) -> None:
    if words[0] == "-m":
        _check_module(words[1])
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)  # as for `python SCRIPT.py`
        runpy.run_path(words[0], run_name="__main__")


def _check_module(name: str) -> None:
    try:
        is_there = importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:  # of a package that it would be in, or that this package needs
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        is_there = False
    if not is_there:
        sys.exit(f"kunren: there is no module {name!r}.")


def _as_of_the_script(error: BaseException) -> BaseException:
    """The error without the calls that lead to the script, which are none of it."""
    own = (__file__, "<frozen runpy>", runpy.__file__)
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return error.with_traceback(trace)


if __name__ == "__main__":
    main(sys.argv[1:])
