"""The help of every argument, in English and in Japanese."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import pytest

from kunren.arguments import TrainingArguments
from kunren.arguments.help_texts import LANGUAGES, help_sections, help_texts, kinds_in
from kunren.arguments.legacy import LEGACY_NAMES

FIELDS = {item.name: item for item in dataclasses.fields(TrainingArguments)}
JAPANESE = help_texts("ja")
QUOTED = re.compile(r"'[^' ]+(?: [a-z_]+)?'")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OTHER_NAMES = re.compile(r"\b(?:[a-z0-9]+_[a-z0-9_]+|[A-Z]{2,}\w*|torch\.\w+)\b")


def test_every_argument_has_a_text_in_each_language_and_no_text_is_left_over() -> None:
    for language in LANGUAGES:
        assert help_texts(language).keys() == FIELDS.keys()
    assert help_texts("en") == {name: item.metadata["help"] for name, item in FIELDS.items()}


@pytest.mark.parametrize("name", FIELDS)
def test_the_japanese_text_says_what_the_english_one_does(name: str) -> None:
    english, japanese = help_texts("en")[name], JAPANESE[name]
    assert re.search(r"[ぁ-んァ-ヶ]", japanese) and japanese.endswith("。")
    assert not re.search(r"[、。] |[,.;:!?]$|[（）].*[()]|　", japanese), (
        "punctuation of one kind, and no blank after it"
    )
    missing = {
        said
        for pattern in (QUOTED, NUMBER, OTHER_NAMES)
        for said in pattern.findall(english)
        if said.removesuffix("s") not in japanese  # GPUs
    }
    assert not missing
    for word in ("None", "True"):
        assert (word in english) <= (word in japanese)


def test_each_argument_is_in_one_section() -> None:
    for language in LANGUAGES:
        sections = help_sections(language)
        names = [entry.name for _, entries in sections for entry in entries]
        assert sorted(names) == sorted(FIELDS) and len({title for title, _ in sections}) == len(sections)
        for entry in (entry for _, entries in sections for entry in entries):
            item = FIELDS[entry.name]
            default = item.default if item.default is not dataclasses.MISSING else []
            assert entry.default == default and entry.text == help_texts(language)[entry.name]
            assert entry.kinds and set(entry.kinds) <= {"str", "int", "float", "bool", "list", "dict", "object"}


def test_choices_are_those_that_are_accepted() -> None:
    entries = {entry.name: entry for _, entries in help_sections("en") for entry in entries}
    with_choices = {name: entry.choices for name, entry in entries.items() if entry.choices}
    assert {"optim", "lr_scheduler_type", "eval_strategy", "save_strategy", "batching"} <= with_choices.keys()
    companions = {"token_budget": {"token_budget": 9}, "best": {"eval_strategy": "steps"}}
    for name, choices in with_choices.items():
        for choice in choices:
            needed = {"eval_strategy": "epoch"} if name == "lr_scheduler_type" else companions.get(choice, {})
            if name == "dataloader_multiprocessing_context":
                needed = {"dataloader_num_workers": 1}
            assert getattr(TrainingArguments("out", **{name: choice, **needed}), name) == choice
        with pytest.raises(ValueError, match=name):
            TrainingArguments("out", **{name: "no-such-choice"})


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        ("bool", ("bool",)),
        ("float | None", ("float",)),
        ("None | str | list[str]", ("str", "list")),
        ("SchedulerType | str", ("str",)),
        ("list[dict[str, Any]] | str | None", ("list", "str")),
        ("str | None | Literal[False]", ("str", "bool")),
        ("Any | None", ("object",)),
    ],
)
def test_kinds(annotation: str, kinds: tuple[str, ...]) -> None:
    assert kinds_in(annotation) == kinds


def test_a_language_without_texts_is_refused() -> None:
    with pytest.raises(ValueError, match="There is no help in 'jp': choose en or ja"):
        help_texts("jp")


def test_no_text_names_an_argument_that_there_is_not() -> None:
    known = {*FIELDS, *LEGACY_NAMES}
    for language in LANGUAGES:
        said = {name for text in help_texts(language).values() for name in re.findall(r"(\w+)=", text)}
        assert {name for name in said if "_" in name} - known <= {"compute_result"}


def test_english_loads_neither_torch_nor_the_japanese_texts() -> None:
    code = (
        "import sys; from kunren.arguments.help_texts import help_sections; assert len(help_sections('en')) > 10;"
        "print([name for name in ('torch', 'transformers', 'kunren.arguments.help_ja') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
