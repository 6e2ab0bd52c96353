"""The bottleneck that is named, and that its remedy names arguments that there are."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.arguments import TrainingArguments
from kunren.report.bottleneck import bottleneck
from kunren.report.run_files import PHASES
from kunren.report.words import LANGUAGES, words

COMPUTING = {"forward": 3.0, "backward": 6.0, "optimizer": 1.0}


@pytest.mark.parametrize("phase", [phase for phase in PHASES if phase not in ("forward", "backward")])
def test_the_phase_that_takes_most_is_named_with_a_remedy(phase: str) -> None:
    found = bottleneck({**COMPUTING, phase: 30.0}, {"device": "cuda:0"})
    assert found is not None and found.phase == phase and found.share > 0.7
    for language in LANGUAGES:
        assert words(language)[found.remedy_key]


def test_a_run_that_computes_has_none() -> None:
    assert bottleneck(COMPUTING, {}) is None
    assert bottleneck({}, {}) is None
    assert bottleneck({"transfer": 1.0, "forward": 1.0}, {"device": "cpu"}) is None


@given(st.dictionaries(st.sampled_from(PHASES), st.floats(0, 1e9)))
def test_the_share_is_one(seconds: dict[str, float]) -> None:
    found = bottleneck(seconds, {})
    assert found is None or 0 < found.share <= 1 + 1e-9


@pytest.mark.parametrize("language", LANGUAGES)
def test_remedies_name_arguments_that_there_are(language: str) -> None:
    known = {item.name for item in dataclasses.fields(TrainingArguments)} | {"adamw_torch_fused"}
    named = {
        name
        for key, text in words(language).items()
        if key.startswith("remedy_")
        for name in re.findall(r"[a-z]+(?:_[a-z]+)+", text)
    }
    assert len(named) > 8 and named <= known
