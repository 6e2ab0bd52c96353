"""A field of a dataclass as an option of a command line: its spellings, its default and its help."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any

from kunren.hf.argument_parser_values import Meaning, meaning_of

MISSING = dataclasses.MISSING

# Of what stands in a field's metadata, that which argparse takes; the rest is meant for others.
_TAKEN_OVER = ("help", "choices", "metavar", "nargs", "const")
_OF_ARGPARSE = "prog|default|type|choices|metavar|dest|const|nargs|option_strings|required|help|container"
_PERCENT = re.compile(rf"%%|%\((?:{_OF_ARGPARSE})\)[-#0 +]*\d*(?:\.\d+)?[a-zA-Z]|%")
_MANY_CHOICES = 12


def HfArg(
    *,
    aliases: str | list[str] | None = None,
    help: str | None = None,  # as everybody calls it
    default: Any = MISSING,
    default_factory: Callable[[], Any] = MISSING,  # type: ignore[assignment]  # as in dataclasses
    metadata: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """A dataclass field with its help and with further spellings; `kwargs` go to `dataclasses.field`."""
    told = {**(metadata or {})}
    if aliases is not None:
        told["aliases"] = aliases
    if help is not None:
        told["help"] = help
    return dataclasses.field(metadata=told, default=default, default_factory=default_factory, **kwargs)


class Gather(argparse.Action):
    """Words into one value: a list, a tuple or a set of them."""

    def __init__(self, *args: Any, meaning: Meaning, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.meaning = meaning

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        gather = self.meaning.collection
        if self.meaning.each and len(values) == len(self.meaning.each):
            try:
                values = [read(word) for read, word in zip(self.meaning.each, values, strict=True)]
            except argparse.ArgumentTypeError as error:
                raise argparse.ArgumentError(self, str(error)) from None
        is_one = self.meaning.is_one_too and len(values) == 1
        setattr(namespace, self.dest, values[0] if is_one or gather is None else gather(values))


def spellings(name: str) -> list[str]:
    """`--a_b`, and `--a-b` beside it."""
    return list(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))


def percent_safe(text: str) -> str:
    """A help text in which `%` is a per cent sign wherever argparse would not know what to put in its place."""
    return _PERCENT.sub(lambda found: "%%" if found[0] == "%" else found[0], text)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, made now where a function makes it; MISSING where it has to be given."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def add_option(parser: Any, field: dataclasses.Field[Any]) -> None:
    """Add a field, its type resolved, to a parser or to a group of one."""
    meaning = meaning_of(field.type)
    keywords = {name: field.metadata[name] for name in _TAKEN_OVER if name in field.metadata}
    help_text = keywords.get("help")
    keywords["help"] = percent_safe(str(help_text)) if help_text and help_text is not argparse.SUPPRESS else help_text
    keywords["type"] = meaning.read
    if meaning.choices:
        keywords.setdefault("choices", meaning.choices)
    is_long = len(keywords.get("choices", ())) > _MANY_CHOICES
    if is_long or "choices" not in keywords:  # argparse shows the choices themselves
        keywords.setdefault("metavar", meaning.placeholder)
    if meaning.collection:
        keywords |= {"action": Gather, "meaning": meaning}
        keywords.setdefault("nargs", meaning.length or "+")
    elif meaning.is_switch:
        keywords.setdefault("nargs", "?")
        keywords.setdefault("const", True)
    default = default_of(field)
    is_plain_switch = meaning.is_switch and not meaning.is_optional
    if default is not MISSING:
        keywords["default"] = default
    elif is_plain_switch:
        keywords["default"] = False
    elif not meaning.is_switch:
        keywords["required"] = True
    aliases = field.metadata.get("aliases", ())
    further = [aliases] if isinstance(aliases, str) else list(aliases)
    parser.add_argument(*spellings(field.name), *further, dest=field.name, **keywords)


def add_opposite(parser: Any, field: dataclasses.Field[Any], taken: set[str]) -> None:
    """`--no_NAME` for a switch that is on by default, unless something else is called so."""
    free = [word for name in (f"no_{field.name}",) for word in spellings(name) if word not in taken]
    if free and field.default is True and meaning_of(field.type).is_switch:
        parser.add_argument(
            *free,
            action="store_false",
            dest=field.name,
            default=argparse.SUPPRESS,
            help=field.metadata.get("help") and f"The opposite of --{field.name}.",
        )


class OptionHelp(argparse.ArgumentDefaultsHelpFormatter):
    """The help with defaults, where an option that may be written with `_` and with `-` stands once."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        named = action.option_strings
        shown.option_strings = [
            option for option in named if not any(option == other.replace("_", "-") != other for other in named)
        ]
        return super()._format_action_invocation(shown)
