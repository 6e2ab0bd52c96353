"""`python -m kunren.hf SCRIPT.py ...` or `-m MODULE ...`: runs what was written for transformers' Trainer on kunren."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

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
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).resolve().parent)  # as for `python SCRIPT.py`
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
