"""The language that the command line speaks: what --lang says, or what the environment asks for."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from kunren.cli.line_breaks import wrapped

LANGUAGES = ("en", "ja")
_TITLES = {"en": ("arguments", "options", "show this help and end"), "ja": ("引数", "オプション", "このヘルプを表示")}


def language_of(environment: Mapping[str, str]) -> str:
    """The language that the first of the variables that is set asks for, if there is help in it; English otherwise."""
    said = next((environment[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environment.get(name)), "")
    code = re.split(r"[_.@-]", said.lower())[0]
    return code if code in LANGUAGES else "en"


def spoken(asked: str | None = None) -> str:
    """`asked`; otherwise what the environment asks for, where it can be written."""
    if asked is not None:
        return asked
    language = language_of(os.environ)
    try:
        "訓練".encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "en"
    return language


def add_parser(
    commands: Any, name: str, about: tuple[str, str], description: tuple[str, str]
) -> tuple[argparse.ArgumentParser, Any, Any, int]:
    """A command that explains itself in the language of the environment: its texts are in English and in Japanese.

    The parser, its groups for arguments and for options, and the place of the language in such pairs.
    """
    language = spoken()
    at = LANGUAGES.index(language)
    parser = commands.add_parser(
        name,
        help=about[at],
        description=description[at],
        formatter_class=argparse.RawDescriptionHelpFormatter if language == "en" else _JapaneseFormatter,
        add_help=False,
    )
    arguments, options, own = _TITLES[language]
    groups = parser.add_argument_group(arguments), parser.add_argument_group(options)
    groups[1].add_argument("-h", "--help", action="help", help=own)
    return parser, *groups, at


class _JapaneseFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines where Japanese is broken; what argparse itself says is English but for its first word."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        super().add_usage(usage, actions, groups, "使い方: " if prefix is None else prefix)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(text, width)
