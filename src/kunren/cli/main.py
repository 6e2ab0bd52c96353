"""The `kunren` command: reads the command line and hands over; torch is loaded by the command that needs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from kunren._version import __version__
from kunren.cli import check, checkpoint, demo, export_script, inspect_model, launch, plan, report, schema, train, watch
from kunren.cli.termination import ended_in_order


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="kunren", description="Train and fine-tune models with the Trainer API.")
    top.add_argument("--version", action="version", version=f"kunren {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    demo.add_command(commands)
    checkpoint.add_command(commands)
    inspect_model.add_command(commands)
    plan.add_command(commands)
    train.add_command(commands)
    check.add_command(commands)
    export_script.add_command(commands)
    schema.add_command(commands)
    launch.add_command(commands)
    report.add_command(commands)
    watch.add_command(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is 0, or 2 where the command line or what it needs is at fault."""
    options = parser().parse_args(arguments)
    try:
        if options.run not in (train.run, check.run):
            return int(options.run(options))
        with ended_in_order():
            return int(options.run(options))
    except demo.DemoError as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # what a shell expects of a command that Ctrl-C ended


if __name__ == "__main__":
    sys.exit(main())
