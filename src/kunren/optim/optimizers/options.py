"""`args.optim_args`, text of the form "name=value,name=value", as keyword arguments of an optimizer."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kunren.base.names import did_you_mean

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments

Known = dict[str, Callable[[str], Any]]  # option -> what reads its value

_COMMA_OUTSIDE_BRACKETS = re.compile(r",(?![^(\[]*[)\]])")


def flag(text: str) -> bool:
    """A switch."""
    if text.lower() in ("true", "1", "yes"):
        return True
    if text.lower() in ("false", "0", "no"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def number_or_word(text: str) -> Any:
    """What the text says in Python, be it a number, a tuple, None or a switch; otherwise the text."""
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def one_of(*choices: str) -> Callable[[str], str]:
    """One of a few words."""

    def choose(text: str) -> str:
        if text not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text

    return choose


def options_of(optimizer_class: type, beside: tuple[str, ...] = ()) -> Known:
    """Every option that an optimizer class takes, but its parameters, its rate, and those named."""
    parameters = inspect.signature(optimizer_class).parameters.values()
    left_out = {"params", "lr", "weight_decay", *beside}
    return {
        item.name: number_or_word
        for item in parameters
        if item.name not in left_out and item.kind is not item.VAR_KEYWORD
    }


def parse_options(args: TrainingArguments, known: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    """The options given in `args.optim_args`; a ValueError names what is wrong in it."""
    options: dict[str, Any] = {}
    for part in _COMMA_OUTSIDE_BRACKETS.split((args.optim_args or "").replace(" ", "")):
        if not part:
            continue
        name, equals, text = part.partition("=")
        if not equals:
            raise ValueError(f"optim_args has {part!r}, which is not of the form name=value: {args.optim_args!r}.")
        if name not in known:
            raise ValueError(
                f"optim_args has {name!r}, which {args.optim} does not take: it takes "
                f"{', '.join(sorted(known)) or 'none'}.{did_you_mean(name, known)}"
            )
        try:
            options[name] = known[name](text)
        except ValueError as error:
            raise ValueError(f"optim_args has {part!r}: {error}.") from error
    return options


def import_optimizers(args: TrainingArguments, module: str, package: str) -> Any:
    """A module of an optional package; an ImportError that says what to install, or why it does not load."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"optim={str(args.optim)!r} needs the package {package}, which cannot be imported ({error}): "
            f"pip install {package}, or choose another optimizer."
        ) from error
