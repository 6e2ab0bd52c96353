"""`kunren train CONFIG --print_config`: all that a run is told, as YAML that gives the same run. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kunren.arguments.effective import default_values, effective_values
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.arguments.plain_values import is_secret
from kunren.cli.arguments_help import sections
from kunren.cli.line_breaks import wrapped
from kunren.cli.run_config import OWN_KEYS, ConfigError, read_config, read_overrides
from kunren.cli.yaml_text import yaml_text

FORMS = ("all", "changed")
_COLUMNS = 118
_WORDS = {
    "en": {
        "secret": "# {}: given, and not printed",
        "old": "Old names, of which some code may read the values",
        "none": "# Nothing differs from the defaults.",
    },
    "ja": {
        "secret": "# {}: 指定あり（表示しない）",
        "old": "以前の名前（コードから読まれることがある）",
        "none": "# 既定値と異なるものはない。",
    },
}


def printed_config(words: Sequence[str], form: str, language: str) -> str:
    """The configuration that the words of a command line give: a file, if any, and what goes before it.

    `form`: "all", or "changed" for what differs from the defaults. ConfigError for what cannot be read or cannot work.
    """
    if form not in FORMS:
        raise ConfigError(f"--print_config={form}: choose {' or '.join(FORMS)}.")
    has_file = bool(words) and not words[0].startswith("-")
    given = read_config(Path(words[0])) if has_file else {}
    given |= read_overrides(words[1:] if has_file else words)
    return config_text(given, form == "changed", language)


def config_text(given: Mapping[str, Any], only_changed: bool, language: str) -> str:
    """YAML of all that `given` says and of the defaults of the rest, with a comment on each."""
    own = {name: given.get(name) for name in OWN_KEYS}
    arguments = {name: value for name, value in given.items() if name not in OWN_KEYS}
    try:
        values = own | effective_values(arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from None
    left = _left_out(given) if only_changed else set()
    blocks = []
    for title, entries in _titled(language):
        lines = [
            line
            for name, text in entries
            if name in values and name not in left
            for line in _lines(name, values[name], text, language)
        ]
        blocks += [[f"# ---- {title}", *lines]] if lines else []
    old = [name for name in arguments if name in LEGACY_NAMES and LEGACY_NAMES[name].translate is None]
    if old:
        blocks.append([f"# ---- {_WORDS[language]['old']}"])
        blocks[-1] += [line for name in old for line in _lines(name, arguments[name], "", language)]
    return "\n\n".join("\n".join(block) for block in blocks) or _WORDS[language]["none"]


def _left_out(given: Mapping[str, Any]) -> set[str]:
    """The names whose values are the defaults."""
    arguments = {name: value for name, value in given.items() if name not in OWN_KEYS}
    values, defaults = effective_values(arguments), default_values()
    return {name for name in OWN_KEYS if given.get(name) is None} | {
        name for name, value in values.items() if value == defaults[name] and type(value) is type(defaults[name])
    }


def _titled(language: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of names with their texts; those besides arguments that help is silent about stand with the others."""
    found = [(title, [(entry.name, entry.text) for entry in entries]) for title, entries in sections(language)]
    told = {name for _, entries in found for name, _ in entries}
    found[0][1].extend((name, "") for name in OWN_KEYS if name not in told)
    return found


def _lines(name: str, value: Any, text: str, language: str) -> list[str]:
    comment = [f"# {line}" for line in wrapped(_first_sentence(text), _COLUMNS - 2)] if text else []
    if _hides(name, value):
        return [*comment, _WORDS[language]["secret"].format(name)]
    return [*comment, f"{name}: {yaml_text(_without_secrets(value))}"]


def _hides(name: Any, value: Any) -> bool:
    return isinstance(name, str) and (is_secret(name, value) or (name == "token" and isinstance(value, str)))


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_secrets(item) for name, item in value.items() if not _hides(name, item)}
    return [_without_secrets(item) for item in value] if isinstance(value, (list, tuple)) else value


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.。])(?:\s|(?<=。))", text, maxsplit=1)[0]
