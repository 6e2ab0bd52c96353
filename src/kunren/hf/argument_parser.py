"""HfArgumentParser: the fields of dataclasses as options of a command line, or from a dict, JSON or YAML."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import re
import sys
import typing
from argparse import SUPPRESS
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kunren.arguments.construction import USUAL_ELSEWHERE, ArgumentsType
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import closest_name, did_you_mean
from kunren.hf.argument_parser_fields import HfArg as HfArg
from kunren.hf.argument_parser_fields import OptionHelp, add_opposite, add_option, default_of, spellings
from kunren.hf.argument_parser_files import read_json_file, read_words, read_yaml_file
from kunren.hf.argument_parser_values import meaning_of
from kunren.hf.argument_parser_values import string_to_bool as string_to_bool

_MISSING = dataclasses.MISSING


class HfArgumentParser(argparse.ArgumentParser):
    """Parses into instances of dataclasses; options that are added besides come back in a namespace after them."""

    dataclass_types: list[Any]

    def __init__(self, dataclass_types: Any = None, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", OptionHelp)
        super().__init__(**kwargs)
        # -1e-5 and -inf are numbers too, and no options
        self._negative_number_matcher = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^-inf$", re.IGNORECASE)
        self._declared: dict[str, tuple[Any, dataclasses.Field[Any]]] = {}
        self._made: dict[str, Any] = {}
        self._old_options: list[argparse.Action] = []
        if dataclass_types is None:
            dataclass_types = ()
        is_single = isinstance(dataclass_types, type) or not isinstance(dataclass_types, Iterable)
        self.dataclass_types = [dataclass_types] if is_single else list(dataclass_types)
        for dtype in self.dataclass_types:
            self._add_dataclass_arguments(dtype)

    @staticmethod
    def _parse_dataclass_field(parser: Any, field: dataclasses.Field[Any]) -> None:
        """Add one field, its type resolved, to a parser or to a group of one."""
        add_option(parser, field)
        add_opposite(parser, field, set(parser._option_string_actions))

    def _add_dataclass_arguments(self, dtype: Any) -> None:
        title = getattr(dtype, "_argument_group_name", None)
        parser: Any = self if title is None else self.add_argument_group(title)
        if not isinstance(dtype, type) or not dataclasses.is_dataclass(dtype):
            raise TypeError(f"{dtype!r} is no dataclass: give HfArgumentParser a dataclass, or a list of them.")
        hints = _types_of(dtype)
        for declared in dataclasses.fields(dtype):
            if not declared.init:
                continue
            field = copy.copy(declared)  # the class keeps its annotations as they are
            field.type = hints[field.name]
            if field.name in self._declared:
                self._share(dtype, field)
                continue
            self._declared[field.name] = (dtype, field)
            known = len(self._actions)
            self._parse_dataclass_field(parser, field)
            if declared.default_factory is not _MISSING:
                self._made.update((action.dest, action.default) for action in self._actions[known:])

    def _share(self, dtype: Any, field: dataclasses.Field[Any]) -> None:
        """One option for a field of two dataclasses; TypeError where they do not mean the same."""
        owner, other = self._declared[field.name]
        if other.type != field.type:
            raise TypeError(
                f"{owner.__name__} and {dtype.__name__} both have a field {field.name!r}, of different types "
                f"({_shown(other.type)} and {_shown(field.type)}): one option cannot fill both. Rename one of them."
            )
        is_needed = _MISSING in (default_of(other), default_of(field))
        for action in self._actions:
            if action.dest == field.name and default_of(other) != default_of(field):
                action.default = SUPPRESS  # each class fills in its own
                action.required = is_needed and action.nargs != 0

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in argparse, with the names that TrainingArguments once had, which the help does not show."""
        if not self._old_options and any(map(_knows_old_names, self.dataclass_types)):
            # Only now, so that a script may have added options of the same names.
            free = [name for name in LEGACY_NAMES if not set(spellings(name)) & self._option_string_actions.keys()]
            hidden: dict[str, Any] = {"default": SUPPRESS, "help": SUPPRESS, "nargs": "?", "const": True}
            read = meaning_of(int | float | str).read
            self._old_options = [self.add_argument(*spellings(name), dest=name, type=read, **hidden) for name in free]
        return super().parse_known_args(args, namespace)

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What an abbreviation may mean: no old name."""
        found: list[Any] = super()._get_option_tuples(option_string)
        return [entry for entry in found if entry[0] not in self._old_options]

    def _read_args_from_files(self, arg_strings: list[str]) -> list[str]:
        """As in argparse, with an error of the command line for a file that is no text."""
        try:
            found: list[str] = super()._read_args_from_files(arg_strings)
        except UnicodeDecodeError as error:
            self.error(f"a file of arguments among {arg_strings} is not UTF-8 ({error}): save it as UTF-8.")
        return found

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """One of the choices, or the error that names the nearest."""
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            problem = f"invalid choice: {value!r} (choose from {', '.join(names)})."
            raise argparse.ArgumentError(action, problem + did_you_mean(str(value), names))

    def format_help(self) -> str:
        """All options, under a usage that does not list them once more."""
        usage, self.usage = self.usage, self.usage or f"%(prog)s [-h] {self._short_usage()}"
        try:
            return super().format_help()
        finally:
            self.usage = usage

    def error(self, message: str) -> NoReturn:
        """Leave with the error alone: a usage of all options would hide it."""
        usage = (self.usage or f"%(prog)s {self._short_usage()}") % {"prog": self.prog}
        self.exit(2, f"usage: {usage}\n{self.prog}: error: {message}\n{self.prog} --help shows all.\n")

    def _short_usage(self) -> str:
        needed = [action.option_strings[0] for action in self._actions if action.required and action.option_strings]
        placed = [str(action.metavar or action.dest) for action in self._actions if not action.option_strings]
        words = [*(f"{option} ..." for option in needed), "[--name value ...]", *placed]
        return " ".join(words).replace("%", "%%")

    def parse_args_into_dataclasses(
        self,
        args: Sequence[str] | None = None,
        return_remaining_strings: bool = False,
        look_for_args_file: bool = True,
        args_filename: str | os.PathLike[str] | None = None,
        args_file_flag: str | None = None,
    ) -> tuple[Any, ...]:
        """An instance of each dataclass, then a namespace of other arguments if there are any, then what remains.

        Words come from a file first, so that the command line overrides them: `args_filename`, else the script's name
        ending in `.args` if there is one, and those named after `args_file_flag`. Unknown words are a ValueError.
        """
        words = list(sys.argv[1:] if args is None else args)
        files: list[str | os.PathLike[str]] = []
        if args_filename:
            files.append(args_filename)
        elif look_for_args_file and (beside := _file_beside_script()):
            files.append(beside)
        if args_file_flag:
            named, words = _taken_out(args_file_flag, words)
            files += named
        words = [word for file in files for word in read_words(file)] + words
        namespace, remaining = self.parse_known_args(words)
        if remaining and not return_remaining_strings:
            raise ValueError(self._not_understood(remaining))
        given = vars(namespace)
        old = {action.dest: given.pop(action.dest) for action in self._old_options if action.dest in given}
        outputs = [self._built(dtype, given, old) for dtype in self.dataclass_types]
        rest = {name: value for name, value in given.items() if name not in self._declared}
        if rest:
            outputs.append(argparse.Namespace(**rest))
        return (*outputs, remaining) if return_remaining_strings else tuple(outputs)

    def _built(self, dtype: Any, given: dict[str, Any], old: dict[str, Any]) -> Any:
        fields = {field.name: field for field in dataclasses.fields(dtype) if field.init}
        # A default is left to the class: a list then belongs to one instance only, and an old name may speak for a new.
        found = {
            name: given[name]
            for name, field in fields.items()
            if name in given and given[name] is not self._made.get(name, field.default)
        }
        return dtype(**found, **(old if _knows_old_names(dtype) else {}))

    def _not_understood(self, remaining: Sequence[str]) -> str:
        known = {option[2:].replace("-", "_") for option in self._option_string_actions if option.startswith("--")}
        asked = [word.partition("=")[0][2:].replace("-", "_") for word in remaining if word.startswith("--")]
        return f"These words of the command line are not understood: {list(remaining)}.{_hints(asked, known, '--')}"

    def parse_dict(self, args: dict[str, Any], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """An instance of each dataclass from a dict; ValueError for keys that none has, unless extra ones may be."""
        old_names = LEGACY_NAMES if any(map(_knows_old_names, self.dataclass_types)) else {}
        known = {name for dtype in self.dataclass_types for name in _names_in(dtype)}
        unknown = sorted(str(name) for name in args if name not in known and name not in old_names)
        if unknown and not allow_extra_keys:
            raise ValueError(f"No dataclass has a field for these keys: {unknown}.{_hints(unknown, known)}")
        old = {name: value for name, value in args.items() if name in old_names and name not in known}
        outputs = []
        for dtype in self.dataclass_types:
            own = {name: args[name] for name in _names_in(dtype) if name in args}
            outputs.append(dtype(**own, **(old if _knows_old_names(dtype) else {})))
        return tuple(outputs)

    def parse_json_file(self, json_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` of what a JSON file holds."""
        return self.parse_dict(read_json_file(json_file), allow_extra_keys=allow_extra_keys)

    def parse_yaml_file(self, yaml_file: str | os.PathLike[str], allow_extra_keys: bool = False) -> tuple[Any, ...]:
        """`parse_dict` of what a YAML file holds; 1e-5 is a number in it."""
        return self.parse_dict(read_yaml_file(yaml_file), allow_extra_keys=allow_extra_keys)


def _knows_old_names(dtype: Any) -> bool:
    return isinstance(dtype, ArgumentsType)


def _names_in(dtype: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(dtype) if field.init]


def _types_of(dtype: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(dtype)
    except NameError as error:
        raise RuntimeError(
            f"The annotations of {dtype.__name__} cannot be resolved: {error}. Define and import what they name at "
            "the top of the module, outside of functions and of `if TYPE_CHECKING`."
        ) from error


def _shown(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is meant: what other libraries call so, or one that is spelt much the same."""
    known = list(known)
    usual = USUAL_ELSEWHERE.get(name)
    return usual if usual in known else closest_name(name, known)


def _hints(names: Iterable[str], known: Iterable[str], dashes: str = "") -> str:
    known = list(known)
    found = ((name, _nearest(name, known)) for name in names)
    return "".join(f" Instead of '{dashes}{name}', did you mean '{dashes}{near}'?" for name, near in found if near)


def _file_beside_script() -> Path | None:
    script = Path(sys.argv[0]) if sys.argv else Path()
    found = script.with_suffix(".args") if script.name else None  # in an interactive Python there is no script
    return found if found is not None and found.is_file() else None


def _taken_out(flag: str, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The values of each `flag` in `words`, and the words without them."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, action="append", dest="files", default=[])
    found, others = parser.parse_known_args(words)
    return found.files, others
