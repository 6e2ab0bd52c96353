"""HfArgumentParser with files that are not whole, and fields of types that are seldom on a command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kunren import HfArgumentParser


@dataclass
class Inner:
    x: int = 1


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    pair: tuple[int, str] = (1, "a")
    number: int = field(default=1, metadata={"help": 5})


def parse(*words: str, **options: Any) -> Any:
    return HfArgumentParser(Outer, **options).parse_args_into_dataclasses(list(words), look_for_args_file=False)[0]


def test_a_dataclass_within_is_made_of_json_and_a_tuple_of_its_types() -> None:
    found = parse("--inner", '{"x": 3}', "--pair", "2", "b")
    assert found == Outer(Inner(3), (2, "b"))
    assert parse() == Outer()
    assert "--pair" in HfArgumentParser(Outer).format_help()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--inner", "5"), "'5' is no JSON object"),
        (("--inner", '{"y": 3}'), "Inner has no field 'y': there are x"),
        (("--pair", "a", "b"), "'a' is no int"),
    ],
)
def test_a_word_of_another_type_is_refused(words: tuple[str, ...], said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*words)
    assert ended.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("kind", [int, "text", Inner(3), [Inner(3)]])
def test_what_is_no_dataclass_is_named(kind: Any) -> None:
    with pytest.raises(TypeError, match="is no dataclass: give HfArgumentParser a dataclass"):
        HfArgumentParser(kind)


@pytest.mark.parametrize("method", ["parse_json_file", "parse_yaml_file"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"x": 1, "x": 2}', "'x' stands twice"),
        (b'{"x": "\xfc"}', "is not UTF-8"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_file_that_is_not_clear_is_refused(method: str, text: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(text)
    with pytest.raises(ValueError, match="run") as refused:
        getattr(HfArgumentParser(Inner), method)(tmp_path / "run")
    assert said in str(refused.value)


def test_a_mark_of_an_editor_is_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b'\xef\xbb\xbf{"x": 2}')
    assert HfArgumentParser(Inner).parse_json_file(tmp_path / "run") == (Inner(2),)
    (tmp_path / "words").write_bytes(b"\xef\xbb\xbf--x 5")
    assert HfArgumentParser(Inner).parse_args_into_dataclasses([], args_filename=tmp_path / "words") == (Inner(5),)


def test_a_file_of_words_that_is_no_text_ends_in_status_2(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "words").write_bytes(b"--number\n\xfc")
    with pytest.raises(SystemExit) as ended:
        parse(f"@{tmp_path / 'words'}", fromfile_prefix_chars="@")
    assert ended.value.code == 2 and "is not UTF-8" in capsys.readouterr().err
