"""The keys of a file are told where they are declared, obeyed and explained: the same everywhere."""

from __future__ import annotations

import dataclasses
import re

import pytest

import kunren
from kunren.cli.run_keys import GENERATION_KEYS, REQUIRED, RUN_KEYS
from kunren.hf.tasks import all_tasks
from kunren.hf.tasks.request import GENERAL_KEYS, Request


def test_every_key_is_one_that_a_run_is_asked_for_with() -> None:
    assert {*RUN_KEYS} == {field.name for field in dataclasses.fields(Request)}
    assert {*REQUIRED} <= {*RUN_KEYS}


def test_every_key_has_a_task_that_obeys_it() -> None:
    obeyed = {key for task in all_tasks().values() for key in (*task.columns, *task.keys)}
    assert {*GENERAL_KEYS} | obeyed == {*RUN_KEYS} and not {*GENERAL_KEYS} & obeyed


def test_the_keys_of_generation_are_the_further_arguments() -> None:
    further = {field.name for field in dataclasses.fields(kunren.Seq2SeqTrainingArguments)}
    assert {*GENERATION_KEYS} == further - {field.name for field in dataclasses.fields(kunren.TrainingArguments)}


@pytest.mark.parametrize("name", RUN_KEYS | GENERATION_KEYS)
def test_texts_are_sentences_in_two_languages(name: str) -> None:
    english, japanese = (RUN_KEYS | GENERATION_KEYS)[name].texts
    assert english.endswith(".") and english.isascii()
    assert japanese.endswith("。") and re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", japanese)


def test_usual_names_of_columns_that_are_told_are_the_usual_names() -> None:
    for task in all_tasks().values():
        for key, usual in task.columns.items():
            assert any(name in RUN_KEYS[key].texts[0] for name in usual), (task.name, key)
