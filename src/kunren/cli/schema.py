"""`kunren schema`: the JSON Schema of CONFIG, by which an editor completes names and shows mistakes. Loads no torch."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.cli.language import LANGUAGES, add_parser, spoken

if TYPE_CHECKING:
    from kunren.arguments.help_texts import ArgumentHelp

_ABOUT = (
    "the JSON Schema of CONFIG, for editors",
    "CONFIG の JSON Schema を出力する（エディターの補完と検査用）",
)
_DESCRIPTION = (
    """\
The JSON Schema (draft 2020-12) of the YAML or JSON file that `kunren train`, `kunren plan` and `kunren check` read:
names, types, choices, defaults and explanations. With it an editor completes and shows mistakes while you write:

  kunren schema --output kunren.schema.json
  # yaml-language-server: $schema=kunren.schema.json      (the first line of CONFIG)""",
    """\
`kunren train`、`kunren plan`、`kunren check` が読む YAML・JSON ファイルの JSON Schema（draft 2020-12）。
名前・型・選択肢・既定値・説明を含み、エディターで補完と検査ができる。

  kunren schema --output kunren.schema.json
  # yaml-language-server: $schema=kunren.schema.json      （CONFIG の 1 行目に書く）""",
)
_OUTPUT = ("the file to write; otherwise it is printed", "書き込むファイル。省略すると標準出力に書く")
_LANG = ("the language of the explanations: en or ja", "説明の言語。en または ja")
_TITLE = ("A run of kunren", "kunren の学習設定")
_NESTED = ("The fields of TrainingArguments may stand here as well.", "TrainingArguments の項目はここに書いてもよい。")
_OLD = ("Old name: {}.", "以前の名前: {}")
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$"
_WORD = "^([tT][rR][uU][eE]|[fF][aA][lL][sS][eE]|[yY][eE][sS]|[nN][oO]|[oO][nN]|[oO][fF][fF])$"
# What a value may be, by the names of types; texts that kunren reads as numbers and switches are valid as well.
_TYPES: dict[str, list[dict[str, Any]]] = {
    "int": [{"type": "integer"}, {"type": "string", "pattern": r"^[-+]?\d+$"}],
    "float": [{"type": "number"}, {"type": "string", "pattern": _NUMBER}],
    "bool": [{"type": "boolean"}, {"type": "string", "pattern": _WORD}],
    "str": [{"type": "string"}],
    "list": [{"type": "array"}, {"type": "string"}],
    "dict": [{"type": "object"}],
}


def add_command(commands: Any) -> None:
    """Add `schema` to the commands of the top parser."""
    parser, _, options, at = add_parser(commands, "schema", _ABOUT, _DESCRIPTION)
    options.add_argument("--output", metavar="FILE", help=_OUTPUT[at])
    options.add_argument("--lang", choices=LANGUAGES, help=_LANG[at])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the schema, or write it; 2 where it cannot be written."""
    text = json.dumps(schema(spoken(options.lang)), indent=2, ensure_ascii=False)
    if options.output is None:
        from kunren.cli.arguments_help import show

        show(text)
        return 0
    try:
        Path(options.output).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        print(f"kunren: {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def schema(language: str) -> dict[str, Any]:
    """What CONFIG may hold, as JSON Schema."""
    from kunren.arguments.help_texts import declared_types, help_sections
    from kunren.cli.arguments_help import sections
    from kunren.cli.run_config import OWN_KEYS

    at = LANGUAGES.index(language)
    told = {entry.name: entry for _, entries in sections(language) for entry in entries}
    own = {name: _of_key(kinds, told.get(name)) for name, kinds in OWN_KEYS.items()}
    declared = declared_types()
    entries = [entry for _, of_group in help_sections(language) for entry in of_group]
    arguments = {entry.name: _of_argument(entry, declared[entry.name]) for entry in entries}
    arguments |= _old_names(arguments, at)
    names = own | {name: {"$ref": f"#/$defs/arguments/properties/{name}"} for name in arguments}
    nested = {"description": _NESTED[at], "anyOf": [{"$ref": "#/$defs/arguments"}, {"type": "null"}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE[at],
        "type": "object",
        "properties": names | {"arguments": nested},
        "additionalProperties": False,
        "$defs": {"arguments": {"type": "object", "properties": own | arguments, "additionalProperties": False}},
    }


def _of_key(kinds: tuple[str, ...], entry: ArgumentHelp | None) -> dict[str, Any]:
    """Of what is said besides arguments, all of which may be left out or empty."""
    found: dict[str, Any] = {"description": entry.text} if entry is not None else {}
    if entry is not None and entry.choices:
        return found | {"enum": [*entry.choices, None]}
    return found | _any_of(kinds, may_be_null=True)


def _of_argument(entry: ArgumentHelp, annotation: str) -> dict[str, Any]:
    from kunren.arguments.optimization import RENAMED_OPTIMIZERS
    from kunren.cli.run_config import SWITCHES

    found: dict[str, Any] = {"description": entry.text, "default": entry.default}
    may_be_null = "None" in annotation or entry.default in (None, []) or entry.kinds == ("bool",)
    if entry.choices and "list" not in entry.kinds:
        words: list[Any] = [*entry.choices, *(RENAMED_OPTIMIZERS if entry.name == "optim" else ())]
        words += [False] if "no" in words else []  # as version 1.1 of YAML reads `no`
        words += [True, False] if "bool" in entry.kinds else []
        return found | {"enum": list(dict.fromkeys(words)) + ([None] if may_be_null else [])}
    kinds = (*entry.kinds, "bool") if entry.name in SWITCHES and "bool" not in entry.kinds else entry.kinds
    return found | _any_of(kinds, may_be_null)


def _any_of(kinds: tuple[str, ...], may_be_null: bool) -> dict[str, Any]:
    if any(kind not in _TYPES for kind in kinds):
        return {}  # an object that only Python can make
    # A text may be anything that text allows; what else would be read from it needs no pattern then.
    parts = [part for kind in kinds for part in (_TYPES[kind] if "str" not in kinds else _TYPES[kind][:1])]
    parts += [{"type": "null"}] if may_be_null else []
    return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _old_names(arguments: Mapping[str, Any], at: int) -> dict[str, Any]:
    from kunren.arguments.legacy import LEGACY_NAMES

    return {
        name: {"description": _OLD[at].format(entry.now), "deprecated": True}
        for name, entry in LEGACY_NAMES.items()
        if name not in arguments
    }
