"""Texts in two languages: all there, filled in with the same, and Japanese where they are to be."""

from __future__ import annotations

import ast
import fnmatch
import re
from pathlib import Path

import pytest

import kunren
from kunren.report import bottleneck
from kunren.report.curves import GROUPS
from kunren.report.page import _WORDS_OF_SCRIPT
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
        if key not in ("of_steps", "last_is"):
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


def asked_for(code: str) -> set[str]:
    """What stands in brackets behind `text` or `words(...)`: keys, or, of f-strings, patterns of them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.Subscript):
            continue
        whose = node.value.func if isinstance(node.value, ast.Call) else node.value
        if getattr(whose, "attr", getattr(whose, "id", "")) not in ("text", "words"):
            continue
        for part in ast.walk(node.slice):
            if isinstance(part, ast.JoinedStr):
                found.add("".join(one.value if isinstance(one, ast.Constant) else "*" for one in part.values))
        if not isinstance(node.slice, ast.JoinedStr):
            texts = [part.value for part in ast.walk(node.slice) if isinstance(part, ast.Constant)]
            found |= {one for one in texts if isinstance(one, str)}
    return found


def test_every_text_that_is_asked_for_is_there() -> None:
    package = Path(kunren.__file__).parent
    files = [*(package / "report").glob("*.py"), *(package / "cli" / f"{name}.py" for name in ("report", "watch"))]
    files.append(package / "cli" / "summary.py")
    asked = {key for path in files for key in asked_for(path.read_text(encoding="utf-8"))}
    assert len(asked) > 80 and {"none", "*_per_second", "path_missing", "ctrl_c"} <= asked
    missing = [key for key in asked if not fnmatch.filter(words("en"), key)]
    assert not missing
    scripts = [path.read_text(encoding="utf-8") for path in (package / "report").glob("*.js")]
    script = [key for code in scripts for key in re.findall(r"\btext\.([a-z_]+)\b(?!\()", code)]
    assert len(script) > 20 and {*script} <= {*_WORDS_OF_SCRIPT} <= words("en").keys()


def test_what_is_asked_for_is_found() -> None:
    code = 'text["a"] + drawing.text[f"b_{x}"] + words(lang)["c"] + text["d" if x else "e"] + other["z"] + text[x]'
    assert asked_for(code) == {"a", "b_*", "c", "d", "e"}


def test_every_name_that_keys_are_made_of_has_a_text() -> None:
    remedies = {f"remedy_{phase}" for phase in bottleneck._SHARES}
    rows = {"threads", "script", "device", "processes", "platform"}
    notes = {"failed_note", "stopped_note", "interrupted_note", "no_matplotlib", "no_curve_to_draw"}
    assert remedies | rows | notes | {f"group_{group}" for group in GROUPS} <= words("ja").keys()
