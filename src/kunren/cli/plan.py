"""`kunren plan`: what a run would do and take. Nothing is trained, and nothing is left behind."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
What a run would do and take: steps, tokens, memory, disk, time, learning rates. A few steps are taken on a copy of the
model to measure that; nothing is trained, and nothing is left behind.

CONFIG is a YAML or JSON file with the fields of TrainingArguments, and:
  model            folder or name of a model of transformers; its configuration is enough
  task             what it is for: text-classification, text-generation, fill-mask, ...
  train_dataset    a parquet, csv, json, jsonl or text file, a folder of such, or one that `datasets` has saved
  eval_dataset     the same, for evaluation
  text_column      what to tokenize, where the rows have no input_ids; a list of two for pairs
  max_length       tokens that a row is cut to (512)
or, without model and data:
  num_examples     the number of training examples
or SCRIPT.py:FUNCTION (or package.module:FUNCTION), a function that returns a Trainer."""


def add_command(commands: Commands) -> None:
    """Add `plan` to the commands of the top parser."""
    parser = commands.add_parser(
        "plan",
        help="what a run would do and take: steps, memory, disk, time",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", help="a YAML or JSON file, or SCRIPT.py:FUNCTION")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--ascii", action="store_true", help="draw without block characters")
    parser.add_argument(
        "overrides", nargs=argparse.REMAINDER, metavar="...", help="--name value: goes before what CONFIG says"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan; 2 where what was asked for cannot be read. An error of a run, or of a script, is shown whole."""
    from kunren.cli.plan_config import planned
    from kunren.cli.run_config import ConfigError

    try:
        with planned(options.config, options.overrides) as forecast:
            if options.json:
                from kunren.base.strict_json import dumps

                print(dumps(forecast.as_dict()), end="")
            else:
                from kunren.planning.text import table

                print(table(forecast, True if options.ascii else None))
    except ConfigError as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2
    return 0
