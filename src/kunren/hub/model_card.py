"""The card of a model that was trained: README.md in the output folder, from the run's own records."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from kunren.hub import card_facts, card_file
from kunren.hub.card_facts import DataSource
from kunren.hub.card_file import as_list
from kunren.hub.card_hyperparameters import hyperparameters
from kunren.hub.card_text import GENERATED_TAG, Card, metadata, record, summary
from kunren.hub.client import answering_within, is_offline

logger = logging.getLogger(__name__)

CARD_NAME = "README.md"
_LANGUAGE = re.compile(r"^([a-z]{2,3}(-[A-Za-z0-9]+)*|code|multilingual)$")
_LICENSE = re.compile(r"^[a-z0-9][a-z0-9.+-]*$")
_LICENSE_SECONDS = 5.0


def create_model_card(
    trainer: Any,
    language: str | list[str] | None = None,
    license: str | None = None,
    tags: str | list[str] | None = None,
    model_name: str | None = None,
    finetuned_from: str | None = None,
    tasks: str | list[str] | None = None,
    dataset_tags: str | list[str] | None = None,
    dataset: str | list[str] | None = None,
    dataset_args: str | list[str] | None = None,
) -> None:
    """Write the card, in the first process. A card that a person wrote keeps its text and its say in the metadata."""
    if not trainer.is_world_process_zero():
        return
    language = _checked("language", language, _LANGUAGE, "a code such as 'en' or 'ja'")
    license = next(iter(_checked("license", license, _LICENSE, "a word such as 'apache-2.0' or 'mit'")), None)
    path = Path(trainer._output_dir).expanduser() / CARD_NAME
    try:
        existing = card_file.read(path)
    except ValueError as error:
        logger.warning("%s is left as it is: %s.", path, error)
        return
    card = _card(
        trainer, language, license, as_list(tags), model_name, finetuned_from, as_list(tasks),
        _data_sources(trainer, as_list(dataset_tags), as_list(dataset), as_list(dataset_args)),
    )  # fmt: skip
    text = card_file.text_with(existing, card.name, {"summary": summary(card), "training": record(card)})
    if existing is not None and existing.is_of_a_person:
        logger.info("%s is yours: its text stays, and what its metadata lacks is added.", path)
    card_file.write(path, card_file.joined(existing, metadata(card)), text)


def _card(
    trainer: Any,
    language: list[str],
    license: str | None,
    tags: list[str],
    model_name: str | None,
    finetuned_from: str | None,
    tasks: list[str],
    data: list[DataSource],
) -> Card:
    model, history = trainer.model, trainer.state.log_history
    library = card_facts.library_of(model)
    base_model = finetuned_from or card_facts.base_model_of(model)
    if license is None and card_facts.is_repository(base_model):
        license = _license_of(str(base_model))
    inferred = card_facts.task_of(model) if not tasks else None
    evaluation = card_facts.evaluation_of_the_model(trainer)
    end = next((place for place, entry in enumerate(history) if "train_runtime" in entry), len(history))
    is_best = trainer.args.load_best_model_at_end and end < len(history)
    name = model_name or Path(trainer._output_dir).name
    return Card(
        name=" ".join(str(name).split()),  # a title is one line
        library=library,
        base_model=base_model,
        language=language,
        license=license,
        tags=list(dict.fromkeys([*map(str, tags), GENERATED_TAG])),
        tasks=[inferred] if inferred else [str(task) for task in tasks],
        data=data,
        evaluation=evaluation,
        history=card_facts.evaluations(history[:end]),
        hyperparameters=hyperparameters(trainer),
        versions=card_facts.versions(library),
        is_best=bool(is_best and evaluation is not None and evaluation.step == trainer.state.best_global_step),
    )


def _data_sources(trainer: Any, tags: list[Any], names: list[Any], configs: list[Any]) -> list[DataSource]:
    """What the caller names, or what the data set itself tells."""
    found = card_facts.data_source_of(trainer)
    if not tags and not names:
        return [] if found is None else [found]
    for number, tag in enumerate(tags or names):
        if not isinstance(tag, str):
            raise TypeError(f"dataset_tags[{number}]={tag!r}: a data set is named by a string.")
    if not tags:
        return [DataSource("", str(name)) for name in names]
    sources = []
    for place, tag in enumerate(tags):
        same = found is not None and found.tag == tag
        sources.append(
            DataSource(
                tag,
                str(names[place]) if place < len(names) else tag,
                str(configs[place]) if place < len(configs) else found.config if same and found else None,
                found.split if same and found else None,
            )
        )
    return sources


def _license_of(repository: str) -> str | None:
    """The licence of the model that this one began as; None where the hub does not say so within seconds."""
    try:
        if is_offline():
            return None
        with answering_within(_LICENSE_SECONDS) as api:
            tags = api.model_info(repository).tags or []
    except Exception as error:
        logger.debug("The licence of %s could not be asked for: %s", repository, error)
        return None
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None)


def _checked(name: str, given: Any, form: re.Pattern[str], advice: str) -> list[str]:
    """The values as a list; TypeError or ValueError for what the hub would turn down after everything is uploaded."""
    values = as_list(given)
    for value in values:
        if not isinstance(value, str):
            raise TypeError(f"{name}={given!r}: give {advice}, or a list of such.")
        if not form.match(value):
            raise ValueError(f"{name}={value!r}: give {advice}; the hub refuses a card with anything else.")
    return values
