"""One process of `kunren launch`: runs the script as Python would, and leaves word of the error that ends it.

What the launcher gets to read is the traceback and the time: of several processes that fail, the first is at fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from pathlib import Path

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"  # the variable by which torch's launcher names the file that it reads
_LOOK_EVERY_SECONDS = 0.2


def main(words: list[str]) -> None:
    """`words`: the parent's process id, "script" or "module", its name, its arguments."""
    parent, kind, name, *arguments = words
    _end_with(int(parent))
    sys.argv = [name, *arguments]
    try:
        if kind == "module":
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            _run_script(name)
    except Exception as error:
        _leave_word(error)
        raise  # Python prints it, and whoever looks at sys.last_type sees how this process ends


def _end_with(parent: int) -> None:
    """Be asked to stop, once, when the launcher is killed: nobody else would end this process then.

    Linux would send a signal by itself, but one for each thread of the launcher that ends: the second means at once.
    """
    if hasattr(os, "getppid"):
        threading.Thread(target=_stop_without, args=(parent,), daemon=True, name="kunren-launcher-watch").start()


def _stop_without(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _run_script(path: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(path).resolve().parent)
    main_module = types.ModuleType("__main__")
    main_module.__file__ = path
    main_module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main_module  # which pickle and the workers of a DataLoader look into
    exec(compile(Path(path).read_bytes(), path, "exec"), main_module.__dict__)


def _leave_word(error: Exception) -> None:
    """In the form that torch's launcher reads, with a time that is more exact than a second."""
    path = os.environ.get(ERROR_FILE)
    if not path:
        return
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        frames = frames.tb_next
    told = "".join(traceback.format_exception(type(error), error, frames))
    now = time.time()
    extra = {"py_callstack": told, "timestamp": str(int(now)), "time": now}
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}, file)


if __name__ == "__main__":
    main(sys.argv[1:])
