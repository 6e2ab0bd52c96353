"""`kunren export-script`: the run of a file as a plain Python script that trains the same, bit for bit."""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kunren.cli.language import add_parser

_ABOUT = (
    "write the run of CONFIG as a Python script",
    "CONFIG の学習を Python スクリプトに書き出す",
)
_DESCRIPTION = (
    """\
Write the run of CONFIG, the file of `kunren train`, as a Python script: arguments that differ from their defaults,
data, preprocessing, model and Trainer. It trains the same, bit for bit, and is yours to change.

The data is read once for that, to know its columns and classes.""",
    """\
`kunren train` のファイル CONFIG の学習を、Python スクリプトに書き出す。既定値と異なる引数、データ、前処理、モデル、
Trainer を含み、結果は 1 ビットも違わない。あとは自由に書き換えられる。

列とクラスを知るため、データを一度読む。""",
)
_CONFIG = ("a YAML or JSON file", "YAML・JSON ファイル")
_OUTPUT = ("the file to write; otherwise it is printed", "書き込むファイル。省略すると標準出力に書く")
_OVERRIDES = ("--name value: goes before what CONFIG says", "--name value: CONFIG より優先する")


def add_command(commands: Any) -> None:
    """Add `export-script` to the commands of the top parser."""
    parser, arguments, options, at = add_parser(commands, "export-script", _ABOUT, _DESCRIPTION)
    arguments.add_argument("config", metavar="CONFIG", help=_CONFIG[at])
    options.add_argument("--output", metavar="FILE", help=_OUTPUT[at])
    arguments.add_argument("overrides", nargs=argparse.REMAINDER, metavar="...", help=_OVERRIDES[at])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the script, or write it; 2 where what was asked for cannot be read, or the script not written."""
    from kunren.cli.arguments_help import show
    from kunren.cli.run_config import ConfigError

    try:
        output, overrides = _own_options(options)
        text = exported(options.config, overrides)
        if output is None:
            show(text.rstrip("\n"))
        else:
            Path(output).write_text(text, encoding="utf-8")
    except (ConfigError, OSError) as error:
        print(f"kunren: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _own_options(options: argparse.Namespace) -> tuple[str | None, list[str]]:
    """`--output` may stand after CONFIG as well."""
    output, left = options.output, []
    words = iter(options.overrides)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--output":
            output = value if equals else next(words, "")
        else:
            left.append(word)
    return output, left


def exported(source: str, overrides: Sequence[str]) -> str:
    """The text of the script; ConfigError for what cannot be read or does not go together."""
    from kunren.base.random_state import preserved
    from kunren.cli.export_script_text import script_of
    from kunren.cli.run_config import ConfigError, build_arguments, build_run, read_config, read_overrides
    from kunren.hf.library_bars import without_bars_in_files
    from kunren.hf.run_stages import has_weights

    args, own = build_arguments(read_config(Path(source)) | read_overrides(overrides))
    missing = [name for name in ("model", "task", "train_dataset") if own.get(name) is None]
    if missing:
        raise ConfigError(f"{source} does not say {', '.join(missing)}: `kunren train --help {missing[0]}`.")
    given = copy.copy(args)
    with tempfile.TemporaryDirectory(prefix="kunren-export-") as cache, without_bars_in_files(), preserved():
        made = build_run(args, own, cache, is_to_train=True)
        about = f"What `kunren train {Path(source).name}` does{', with changes' if overrides else ''}."
        return script_of(made, given, has_weights(made.request), about)
