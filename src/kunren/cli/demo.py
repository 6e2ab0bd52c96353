"""`kunren demo`: run one of the example scripts, each of which is plain code to read and copy."""

from __future__ import annotations

import argparse
import ast
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kunren.base.names import did_you_mean

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DEFAULT_DEMO = "sentiment"


class DemoError(Exception):
    """A demo cannot run for a reason that the user can mend; the message says how."""


def add_command(commands: Commands) -> None:
    """Add `demo` to the commands of the top parser."""
    parser = commands.add_parser(
        "demo",
        help="fine-tune or train a small model on real data and try it",
        description="Fine-tune or train a small model on real data and try it. Everything comes from Python packages.",
    )
    parser.add_argument("name", nargs="?", default=DEFAULT_DEMO, help=f"which one (default: {DEFAULT_DEMO})")
    parser.add_argument("--list", action="store_true", help="name the demos and the files they are in")
    parser.add_argument(
        "options",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="for the demo itself; `kunren demo NAME --help` shows them",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """List the demos or run one, as `python examples/NAME.py ...` would."""
    demos = demo_scripts()
    if options.list:
        for name, path in demos.items():
            print(f"{name:<10} {summary(path)}\n{'':<10} {path}")
        return 0
    if options.name not in demos:
        raise DemoError(
            f"there is no demo {options.name!r}: choose one of {', '.join(demos)}.{did_you_mean(options.name, demos)}"
        )
    path = demos[options.name]
    saved, sys.argv = sys.argv, [str(path), *options.options]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "kunren":
            raise  # nothing that the user could install
        raise DemoError(f"{error}\nAll that the demos need comes with `pip install 'kunren[demo]'`.") from error
    finally:
        sys.argv = saved
    return 0


def demo_scripts() -> dict[str, Path]:
    """Name -> file: from the copy of examples/ that an installed kunren carries, or from the checkout's own folder."""
    here = Path(__file__).resolve()
    for folder in (here.parent / "demos", here.parents[3] / "examples"):
        scripts = {path.stem: path for path in sorted(folder.glob("*.py"))}
        if scripts:
            return scripts
    raise DemoError(
        "this installation of kunren carries no demos: reinstall it with `pip install --force-reinstall kunren`"
    )


def summary(path: Path) -> str:
    """The first line of a script's docstring, read without running it."""
    documentation = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return documentation.partition("\n")[0]
