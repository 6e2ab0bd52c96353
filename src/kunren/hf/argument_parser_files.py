"""Arguments from files: JSON, YAML 1.2, and files of words as they stand on a command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import yaml

from kunren.arguments.yaml_numbers import read_yaml

_WORD = re.compile(r"""(?P<quote>["'])(?P<inside>.*?)(?P=quote)(?=\s|$)|(?P<plain>\S+)""", re.DOTALL)


class _StandsTwice(ValueError):
    """A name that has two values."""


def read_json_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The object in a JSON file; FileNotFoundError or ValueError with its path."""
    try:
        found = json.loads(_text_of(path), object_pairs_hook=_without_doubles)
    except RecursionError:
        raise ValueError(f"{path} is nested too deep.") from None
    except (json.JSONDecodeError, _StandsTwice) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    return _names_and_values(path, found)


def read_yaml_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The mapping in a YAML file; FileNotFoundError or ValueError with its path."""
    try:
        found = read_yaml(_text_of(path))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    return _names_and_values(path, {} if found is None else found)


def read_words(path: str | os.PathLike[str]) -> list[str]:
    """The words of a file; one in quotes may hold blanks, and quotes within a word stay."""
    found = _WORD.finditer(_text_of(path))
    return [word["plain"] if word["quote"] is None else word["inside"] for word in found]


def _text_of(path: str | os.PathLike[str]) -> str:
    file = Path(path).expanduser()
    if file.is_dir() or not file.exists():  # and no pipe of a shell either
        what = "is a folder" if file.is_dir() else f"does not exist (looked for {file.absolute()})"
        raise FileNotFoundError(f"The file of arguments {path} {what}.")
    try:
        return file.read_text(encoding="utf-8-sig")  # which editors begin with a mark
    except UnicodeDecodeError as error:
        raise ValueError(f"The file of arguments {path} is not UTF-8 ({error}): save it as UTF-8.") from None


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _StandsTwice(f"{name!r} stands twice")
        found[name] = value
    return found


def _names_and_values(path: str | os.PathLike[str], found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"{path} has to hold names and values of arguments, and holds a {type(found).__name__}.")
    return {str(name): value for name, value in found.items()}
