"""README.md on the disk: what the run wrote is written anew, what a person wrote stays."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kunren.hub.card_facts import is_repository

logger = logging.getLogger(__name__)

_METADATA = re.compile(r"\A\ufeff?---[ \t]*\r?\n(?P<yaml>.*?)^---[ \t]*(?:\r?\n|\Z)", re.DOTALL | re.MULTILINE)
# What PEFT's `save_pretrained` leaves, and transformers' Trainer: written by a program, and meant to be replaced.
_OF_PROGRAMS = ("# Model Card for Model ID", "generated automatically according to the information the Trainer had")
_MARK = "<!-- kunren:{0} (written anew at each push; what stands outside is kept) -->\n{1}\n<!-- /kunren:{0} -->"
_PLACEHOLDER = "More information needed"
_SECTIONS = ("Model description", "Intended uses & limitations", "Training and evaluation data")
_ADAPTER_OF = "base_model:adapter:"
_LISTS = ("tags", "datasets", "metrics")  # joined; of everything else one side counts


@dataclass(frozen=True)
class Existing:
    """A card that is there: its metadata, and the text below."""

    metadata: dict[str, Any]
    text: str

    @property
    def is_of_a_person(self) -> bool:
        """Whether somebody wrote it, rather than a program."""
        return not (self.is_marked or any(words in self.text for words in _OF_PROGRAMS) or not self.text.strip())

    @property
    def is_marked(self) -> bool:
        """Whether it has a part that kunren writes."""
        return "<!-- kunren:" in self.text


def read(path: Path) -> Existing | None:
    """The card in a file, or None where there is none; ValueError for metadata that cannot be read."""
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = _METADATA.match(content)
    if found is None:
        return Existing({}, content)
    try:
        metadata = yaml.safe_load(found["yaml"]) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"the metadata at its top is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(metadata, dict):
        raise ValueError("the metadata at its top is not a list of names with values")
    return Existing(metadata, content[found.end() :])


def text_with(existing: Existing | None, name: str, parts: Mapping[str, str]) -> str:
    """The text of a card: the existing one with its generated parts renewed, or a new one."""
    marked = {part: _MARK.format(part, text) for part, text in parts.items()}
    if existing is not None and existing.is_of_a_person:
        return existing.text
    if existing is not None and existing.is_marked:
        text = existing.text
        for part, new in marked.items():
            place = re.compile(rf"<!-- kunren:{part} .*?<!-- /kunren:{part} -->", re.DOTALL)
            text = place.sub(lambda match, new=new: new, text, count=1)  # type: ignore[misc]
        return text
    sections = "\n\n".join(f"## {title}\n\n{_PLACEHOLDER}" for title in _SECTIONS)
    return f"\n# {name}\n\n{marked['summary']}\n\n{sections}\n\n{marked['training']}\n"


def joined(existing: Existing | None, new: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of both: lists are joined; in a person's card the person's word counts, but for results."""
    if existing is None:
        return dict(new)
    old = _without_paths(existing.metadata)
    first, second = (old, new) if existing.is_of_a_person else (new, old)
    found = {**first, **{key: value for key, value in second.items() if first.get(key) in (None, "", [])}}
    for key in _LISTS:
        values = [*as_list(new.get(key)), *as_list(old.get(key))]
        if values:
            found[key] = list(dict.fromkeys(map(str, values)))
    if new.get("model-index"):
        found["model-index"] = new["model-index"]
    return found


def _without_paths(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without base models that are folders of this machine, which PEFT notes: the hub refuses the whole upload."""
    models = as_list(metadata.get("base_model"))
    found = {**metadata, "base_model": [name for name in models if is_repository(name)]}
    if len(found["base_model"]) == len(models):
        found["base_model"] = metadata.get("base_model")
    tags = [tag for tag in as_list(metadata.get("tags")) if not _is_of_a_path(str(tag))]
    found |= {"tags": tags}
    return {name: value for name, value in found.items() if value not in (None, [])}


def _is_of_a_path(tag: str) -> bool:
    return tag.startswith(_ADAPTER_OF) and not is_repository(tag.removeprefix(_ADAPTER_OF))


def write(path: Path, metadata: Mapping[str, Any], text: str) -> None:
    """Write the card in one step: nobody ever sees half of it."""
    head = yaml.safe_dump(dict(metadata), sort_keys=False, allow_unicode=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(f"---\n{head}---\n{text}", encoding="utf-8")
    temporary.replace(path)


def as_list(value: Any) -> list[Any]:
    """None, one thing or several, as a list."""
    if value is None:
        return []
    return [value] if isinstance(value, str) or not isinstance(value, (list, tuple, set)) else list(value)
