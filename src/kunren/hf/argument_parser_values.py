"""What the words after an option mean, by the type that a dataclass gives its field."""

from __future__ import annotations

import collections.abc
import functools
import json
import operator
import types
from argparse import ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

Reader = Callable[[str], Any]

_TRUE, _FALSE = ("yes", "true", "t", "y", "on", "1"), ("no", "false", "f", "n", "off", "0")
_NOTHING = ("none", "null")
_SEVERAL = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
}
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


@dataclass(frozen=True)
class Meaning:
    """How an option of one type is read: each word by `read`, several of them into one `collection`."""

    read: Reader
    placeholder: str  # what stands for the value in the help
    choices: tuple[Any, ...] = ()  # all that there are; empty if the words are free
    is_switch: bool = False  # may stand without a value
    is_optional: bool = False  # None is one of the values
    collection: Callable[[list[Any]], Any] | None = None
    length: int | None = None  # of the collection, where its type fixes it
    each: tuple[Reader, ...] = ()  # how each place is read, where a tuple's places have types of their own
    is_one_too: bool = False  # a single word stands for itself and makes no collection


def string_to_bool(v: str | bool) -> bool:
    """A switch from the words for it; an argparse.ArgumentTypeError for any other word."""
    word = str(v).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ArgumentTypeError(
        f"{v!r} is no switch: say true or false (yes, no, on, off, t, f, y, n, 1 and 0 do as well)."
    )


def meaning_of(annotation: Any) -> Meaning:
    """The meaning of a resolved annotation, whatever members it joins."""
    members = _members(annotation)
    is_optional = type(None) in members
    members = [member for member in members if member is not type(None)]
    several = [member for member in members if _origin(member) in _SEVERAL]
    single = [member for member in members if member not in several]
    if several:
        return _collected(several[0], single, is_optional)
    readers = _readers(single, is_optional)
    choices = _choices(single[0]) if len(single) == 1 else ()
    return Meaning(
        _first_that_fits(readers, " | ".join(_name(member) for member in single)),
        "|".join(dict.fromkeys(_name(member).upper() for member in single)),
        choices,
        is_switch=bool in single,
        is_optional=is_optional,
    )


def _collected(annotation: Any, single: list[Any], is_optional: bool) -> Meaning:
    """Several words, each of the type in brackets; where one value without brackets will do too, one word is that."""
    inner = get_args(annotation)
    is_fixed = _origin(annotation) is tuple and bool(inner) and inner[-1] is not Ellipsis
    kinds = [kind for kind in inner if kind is not Ellipsis] or [str]
    element = meaning_of(functools.reduce(operator.or_, single or kinds))
    is_mixed = is_fixed and not single and len(set(map(str, kinds))) > 1
    return Meaning(
        str if is_mixed else element.read,
        element.placeholder,
        () if is_mixed else element.choices,
        is_optional=is_optional,
        collection=_SEVERAL[_origin(annotation)],
        length=len(inner) if is_fixed else None,
        each=tuple(_place_of_tuple(kind) for kind in kinds) if is_mixed else (),
        is_one_too=bool(single),
    )


def _place_of_tuple(kind: Any) -> Reader:
    meaning = meaning_of(kind)

    def read(text: str) -> Any:
        try:
            value = meaning.read(text)
        except (TypeError, ValueError):
            raise ArgumentTypeError(f"{text!r} is no {_name(kind)}.") from None
        if meaning.choices and value not in meaning.choices:
            raise ArgumentTypeError(f"{text!r} is none of {', '.join(map(str, meaning.choices))}.")
        return value

    return read


def _members(annotation: Any) -> list[Any]:
    """What a union joins, flat; anything else alone. What only decorates a type is taken off."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):  # of a NewType
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            break
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in _members(part)]
    return [annotation]


def _origin(annotation: Any) -> Any:
    return get_origin(annotation) or annotation


def _name(annotation: Any) -> str:
    origin = _origin(annotation)
    if origin is Literal or _is_enum(annotation):
        return "name"
    if origin in _DICTS or is_dataclass(annotation):
        return "json"
    if annotation in (str, Any, object) or not isinstance(origin, type):
        return "text"
    return {bool: "true|false", int: "int", float: "number"}.get(origin, origin.__name__)


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if _origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(member.value for member in annotation) if _is_enum(annotation) else ()


def _readers(members: list[Any], is_optional: bool) -> list[Reader]:
    """The narrowest type first: text takes everything."""
    is_text = any(_name(member) == "text" for member in members)
    found: list[tuple[int, Reader]] = []
    if is_optional and all(_origin(member) in (int, float, bool, *_DICTS) for member in members):
        found.append((0, _nothing))
    for member in members:
        if _choices(member):
            found.append((1, _choice_among(_choices(member), is_open=len(members) > 1)))
        elif member in (int, float):
            found.append((2 if member is int else 3, member))
        elif member is bool:
            found.append((4, string_to_bool if members == [bool] and not is_optional else _switch_word))
        elif _origin(member) in _DICTS:
            found.append((5, _json_object_or_text if is_text else json_object))
        elif is_dataclass(member):
            found.append((5, _dataclass_reader(member)))
        elif not is_text:  # some class, which has to make something of the text
            found.append((6, _origin(member)))
    if is_text:
        found.append((7, str))
    return [read for _, read in sorted(found, key=lambda entry: entry[0])]


def _dataclass_reader(kind: Any) -> Reader:
    names = [field.name for field in fields(kind) if field.init]

    def read(text: str) -> Any:
        found = json_object(text)
        unknown = [name for name in found if name not in names]
        if unknown:
            raise ArgumentTypeError(f"{kind.__name__} has no field {unknown[0]!r}: there are {', '.join(names)}.")
        try:
            return kind(**found)
        except (TypeError, ValueError) as error:
            raise ArgumentTypeError(f"{text!r} makes no {kind.__name__}: {error}.") from None

    return read


def _first_that_fits(readers: list[Reader], kinds: str) -> Reader:
    if len(readers) == 1:
        return readers[0]

    def read(text: str) -> Any:
        for reader in readers:
            with suppress(TypeError, ValueError):
                return reader(text)
        raise ArgumentTypeError(f"{text!r} is none of {kinds}.")

    return read


def _switch_word(text: str) -> bool:
    """`string_to_bool` where something else may be meant as well."""
    try:
        return string_to_bool(text)
    except ArgumentTypeError as error:
        raise ValueError from error


def _nothing(text: str) -> None:
    if text.lower() not in _NOTHING:
        raise ValueError


def _choice_among(choices: tuple[Any, ...], is_open: bool) -> Reader:
    named = {str(choice): choice for choice in choices}

    def read(text: str) -> Any:
        if is_open and text not in named:
            raise ValueError
        return named.get(text, text)  # argparse compares it with the choices, and names them

    return read


def json_object(text: str) -> dict[str, Any]:
    """A dict from JSON; an argparse.ArgumentTypeError says where it ends to be JSON."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"{text!r} is not valid JSON: {error.msg}, at character {error.pos + 1}."
    else:
        if isinstance(found, dict):
            return found
        problem = f"{text!r} is no JSON object."
    raise ArgumentTypeError(f"""{problem} Write it as '{{"name": 1}}', with the quotes around it for the shell.""")


def _json_object_or_text(text: str) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        raise ValueError
    return json_object(text)
