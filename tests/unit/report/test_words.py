"""Texts in two languages: all there, filled in with the same, and Japanese where they are to be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kunren
from kunren.report.run_files import OUTCOMES, PHASES
from kunren.report.words import duration, words


def test_both_languages_have_the_same_texts_with_the_same_gaps() -> None:
    english, japanese = words("en"), words("ja")
    assert english.keys() == japanese.keys()
    for key in english:
        gaps = [sorted(re.findall(r"{\w*}", text[key])) for text in (english, japanese)]
        assert gaps[0] == gaps[1], key


def test_japanese_is_japanese() -> None:
    for key, text in words("ja").items():
        if key != "of_steps":
            assert re.search(r"[\u3041-\u30ff\u4e00-\u9fff]", text), key
        assert not re.search(r"[\u4e00-\u9fff\u3041-\u30ff][,.:;]", text), f"{key}: western punctuation"
    assert not any(re.search(r"[\u3000-\u9fff]", text) for text in words("en").values())


def test_every_outcome_and_phase_has_a_name() -> None:
    assert {*OUTCOMES, *PHASES} <= words("en").keys()


def test_an_unknown_language() -> None:
    with pytest.raises(ValueError, match="en, ja"):
        words("de")


@pytest.mark.parametrize(
    ("seconds", "english", "japanese"),
    [
        (0.0123, "12.3 ms", "12.3 ミリ秒"),
        (5, "5 s", "5 秒"),
        (59.99, "60 s", "60 秒"),
        (61, "1 min 1 s", "1 分 1 秒"),
        (3600 * 3 + 61, "3 h 1 min", "3 時間 1 分"),
        (86400 * 3, "3 d 0 h", "3 日 0 時間"),
        (-3, "0 ms", "0 ミリ秒"),
    ],
)
def test_durations(seconds: float, english: str, japanese: str) -> None:
    assert (duration(seconds, words("en")), duration(seconds, words("ja"))) == (english, japanese)


def test_every_text_that_is_asked_for_is_there() -> None:
    package = Path(kunren.__file__).parent
    files = [*(package / "report").glob("*.py"), package / "cli" / "report.py"]
    asked = {key for path in files for key in re.findall(r'\btext\["(\w+)"\]', path.read_text(encoding="utf-8"))}
    assert len(asked) > 40 and asked <= words("en").keys()
