"""HfArgumentParser: what transformers' parser makes of a command line, and right where that one is wrong."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kunren
from kunren.hf.argument_parser import HfArg, HfArgumentParser, string_to_bool

transformers = pytest.importorskip("transformers")


class Color(Enum):
    red = "red"
    green = "green"
    seven = 7


@dataclass
class Base:
    path: str = HfArg(default="here", aliases=["--place", "-p"], help="Where it is.")
    count: int = 3


@dataclass
class Many(Base):
    """One of each kind that both parsers read."""

    rate: float = 0.5
    name: str | None = None  # noqa: UP045
    limit: int | None = None
    share: Union[float, None] = None  # noqa: UP007
    is_on: bool = True
    is_off: bool = False
    maybe: bool | None = None
    color: Color = Color.red
    kind: Literal["left", "right", 3] = "left"
    side: Literal["up", "down"] | None = None
    words: list[str] = field(default_factory=lambda: ["a", "b"])
    numbers: list[int] | None = None
    strategy: Color | str = "red"
    folder: Path = Path("x")
    doubled: int = field(init=False)

    def __post_init__(self) -> None:
        self.doubled = 2 * self.count


@dataclass
class Needed:
    needed: str
    flag: bool
    rates: list[float] = field(default_factory=list)


def outcome(parser: Any, line: Sequence[str], **options: Any) -> Any:
    """The objects that a line gives, or what it ends in."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return parser.parse_args_into_dataclasses(list(line), look_for_args_file=False, **options)
        except SystemExit as error:
            return "exit", error.code
        except (TypeError, ValueError, ImportError, OSError) as error:
            return (type(error).__name__,)


def option(name: str, values: st.SearchStrategy[str], least: int = 1, most: int = 1) -> st.SearchStrategy[list[str]]:
    spelling = st.sampled_from([f"--{name}", f"--{name.replace('_', '-')}"])
    several = st.builds(lambda first, rest: [first, *rest], spelling, st.lists(values, min_size=least, max_size=most))
    joined = st.builds(lambda first, value: [f"{first}={value}"], spelling, values)
    return st.one_of(several, joined)


TEXTS = st.text("abcXY_.7/ ", min_size=1, max_size=6)
INTS = st.integers(-99, 99).map(str)
FLOATS = st.floats(0, 100).map(repr)
SWITCH = st.sampled_from(["true", "False", "yes", "n", "1", "0"])
OPTIONS = st.one_of(
    option("path", TEXTS),
    option("count", INTS),
    option("rate", FLOATS | INTS),
    option("name", TEXTS),
    option("limit", INTS),
    option("share", FLOATS),
    option("is_on", SWITCH, 0),
    option("is_off", SWITCH, 0),
    option("maybe", SWITCH),
    option("color", st.sampled_from(["red", "green", "7", "blue"])),
    option("kind", st.sampled_from(["left", "right", "3", "up"])),
    option("side", st.sampled_from(["up", "down", "none"])),
    option("words", TEXTS, 1, 3),
    option("numbers", INTS, 1, 3),
    option("strategy", st.sampled_from(["red", "green"])),
    option("folder", TEXTS.filter(lambda text: "/" not in text)),
    st.sampled_from([["--no_is_on"], ["--no-is-on"], ["-p", "there"], ["--place", "x"], ["--unknown", "1"]]),
    st.sampled_from([["--cou", "5"], ["--count", "x"], ["--rate"], ["--nam=q"], ["stray"], ["--is_o"]]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(OPTIONS, max_size=5))
def test_a_line_means_what_it_means_to_transformers(parts: list[list[str]]) -> None:
    line = [word for part in parts for word in part]
    ours, theirs = (outcome(make(Many), line) for make in (HfArgumentParser, transformers.HfArgumentParser))
    assert ours == theirs


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("arguments", [kunren.TrainingArguments, transformers.TrainingArguments])
def test_arguments_of_both_libraries_are_read_alike(arguments: Any, is_first: bool) -> None:
    line = shlex.split(
        "--output_dir out --learning-rate 1e-4 --do_train --bf16 false --max_steps 7 --eval_strategy steps "
        "--eval_steps 5 --save_strategy no --report_to none --lr_scheduler_type cosine --needed x --flag --rates 1 2.5 "
        "--no_remove_unused_columns --optim adamw_torch --label_names a b --logging_first_step "
        """--lr_scheduler_kwargs '{"num_cycles": 2}' --accelerator_config={}"""
    )
    types = (arguments, Needed) if is_first else (Needed, arguments)
    ours, theirs = outcome(HfArgumentParser(types), line), outcome(transformers.HfArgumentParser(types), line)
    assert [type(one) for one in ours] == list(types)
    mine, other = (found[0 if is_first else 1] for found in (ours, theirs))
    differing = {name for name in vars(mine) if vars(mine)[name] != vars(other)[name]}
    assert differing <= {"distributed_state", "deepspeed_plugin"}
    assert mine.lr_scheduler_kwargs == {"num_cycles": 2} and mine.learning_rate == 1e-4 and not mine.bf16
    assert not mine.remove_unused_columns
    assert ours[1 if is_first else 0] == Needed("x", True, [1.0, 2.5])


@pytest.mark.parametrize("arguments", [kunren.TrainingArguments, transformers.TrainingArguments])
def test_what_transformers_reads_of_any_argument_is_read_alike(
    arguments: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # transformers' arguments write into it
    caplog.set_level("ERROR", logger="transformers")
    ours, theirs = HfArgumentParser(arguments), transformers.HfArgumentParser(arguments)
    read = 0
    # `deepspeed` would start that package.
    for name in (one.name for one in dataclasses.fields(arguments) if one.name != "deepspeed"):
        for words in (["3"], ["x"], ["false"], ["a", "b"], []):
            line = ["--output_dir", "o", "--report_to", "none", f"--{name}", *words]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                found = outcome(theirs, line)
                if isinstance(found[0], arguments):
                    read += 1
                    assert plainly(outcome(ours, line)[0]) == plainly(found[0]), line
    assert read > 150


def plainly(arguments: Any) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(arguments).items() if name != "distributed_state"}


@pytest.mark.parametrize("make", [HfArgumentParser, transformers.HfArgumentParser])
def test_further_options_and_remaining_words(make: Any) -> None:
    parser = make([Base, Needed])
    parser.add_argument("--more", type=int, default=4)
    found = outcome(parser, ["--needed", "x", "--count", "9", "--left", "over"], return_remaining_strings=True)
    assert found == (Base(count=9), Needed("x", False), argparse.Namespace(more=4), ["--left", "over"])
    assert outcome(parser, []) == ("exit", 2)  # what is needed is missing
    assert [one.__name__ for one in parser.dataclass_types] == ["Base", "Needed"]


def test_files_of_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.with_suffix(".args").write_text("--count 1 --path beside\n")
    (tmp_path / "a.args").write_text("--count 2\n--path 'two words'")
    (tmp_path / "b.args").write_text('--count 3 --kwargs {"a":1}')
    monkeypatch.setattr(sys, "argv", [str(script), "--count", "5"])
    parser, theirs = HfArgumentParser(Base), transformers.HfArgumentParser(Base)
    assert parser.parse_args_into_dataclasses() == theirs.parse_args_into_dataclasses() == (Base("beside", 5),)
    named = ["--files", str(tmp_path / "a.args"), "--files", str(tmp_path / "b.args"), "--count", "4"]
    options = {"return_remaining_strings": True, "args_file_flag": "--files"}
    assert parser.parse_args_into_dataclasses(named, **options) == (Base("two words", 4), ["--kwargs", '{"a":1}'])
    assert parser.parse_args_into_dataclasses([], args_filename=tmp_path / "a.args") == (Base("two words", 2),)
    with pytest.raises(FileNotFoundError, match="none.args does not exist"):
        parser.parse_args_into_dataclasses([], args_filename=tmp_path / "none.args")
    monkeypatch.setattr(sys, "argv", [""])  # in an interactive Python
    assert parser.parse_args_into_dataclasses([]) == (Base(),)


def test_dicts_and_files(tmp_path: Path) -> None:
    values = {"needed": "x", "flag": True, "count": 7}
    paths = [tmp_path / "a.json", tmp_path / "a.yaml"]
    for path in paths:
        path.write_text(json.dumps(values))
    expected = (Base(count=7), Needed("x", True))
    for make in (HfArgumentParser, transformers.HfArgumentParser):
        parser = make([Base, Needed])
        assert parser.parse_dict(values) == expected
        assert parser.parse_dict({**values, "other": 1}, allow_extra_keys=True) == expected
        assert parser.parse_json_file(paths[0]) == parser.parse_yaml_file(str(paths[1])) == expected
        with pytest.raises(ValueError, match="cuont"):
            parser.parse_dict({**values, "cuont": 1})


@dataclass
class Wider:
    """What transformers' parser refuses, or reads wrongly."""

    options: dict[str, Any] | None = None
    settings: dict | str = "none"
    betas: tuple[float, float] = (0.9, 0.95)
    number: int | float | None = None
    trackers: str | list[str] | None = None
    resume: bool | str | None = None
    steps: int | str | None = None
    chosen: Literal["a", "b"] = field(default_factory=lambda: "a")
    rate: float = field(default=0.1, metadata={"help": "100% of it, 5%% or %(default)s", "yaml": "for others"})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["--options", '{"a": [1, null]}'], {"options": {"a": [1, None]}}),
        (["--options", "none"], {"options": None}),
        (["--settings", '{"a": 1}'], {"settings": {"a": 1}}),
        (["--settings", "file.json"], {"settings": "file.json"}),
        (["--betas", "0.8", "0.99"], {"betas": (0.8, 0.99)}),
        (["--number", "3"], {"number": 3}),
        (["--number", "-3e-5"], {"number": -3e-5}),
        (["--trackers", "one"], {"trackers": "one"}),
        (["--trackers", "one", "two"], {"trackers": ["one", "two"]}),
        (["--resume"], {"resume": True}),
        (["--resume", "false"], {"resume": False}),
        (["--resume", "folder"], {"resume": "folder"}),
        (["--steps", "12"], {"steps": 12}),
        (["--steps", "all"], {"steps": "all"}),
        (["--rate", "-1e-5"], {"rate": -1e-5}),
    ],
)
def test_types_that_transformers_does_not_read(line: list[str], expected: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        transformers.HfArgumentParser(Wider)
    (found,) = HfArgumentParser(Wider).parse_args_into_dataclasses(line, look_for_args_file=False)
    assert found == dataclasses.replace(Wider(), **expected)
    assert {name: type(value) for name, value in vars(found).items() if name in expected} == {
        name: type(value) for name, value in expected.items()
    }


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["--options", "{a: 1}"], ["is not valid JSON", "at character 2", "--options"]),
        (["--options", "[1]"], ["is no JSON object"]),
        (["--settings", "{a"], ["is not valid JSON"]),
        (["--betas", "0.8"], ["--betas", "2"]),
        (["--number", "x"], ["'x' is none of int | number"]),
        (["--chosen", "aa"], ["invalid choice: 'aa' (choose from a, b)"]),
    ],
)
def test_bad_values_are_told_in_a_line(line: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        HfArgumentParser(Wider, prog="x").parse_args_into_dataclasses(line, look_for_args_file=False)
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert all(word in said for word in words)
    assert said.startswith("usage: x [--name value ...]\n") and len(said.splitlines()) == 3


def test_the_nearest_name_is_told(tmp_path: Path) -> None:
    parser = HfArgumentParser((Base, kunren.TrainingArguments))
    for line, near in {
        "--learning_rte 1": "--learning_rate",
        "--batch-size=4": "--per_device_train_batch_size",
    }.items():
        with pytest.raises(ValueError, match=f"did you mean '{near}'"):
            parser.parse_args_into_dataclasses(line.split(), look_for_args_file=False)
    (tmp_path / "a.yaml").write_text("learning_rat: 1\nepochs: 3\n")
    with pytest.raises(ValueError, match="did you mean 'num_train_epochs'.*did you mean 'learning_rate'"):
        parser.parse_yaml_file(tmp_path / "a.yaml")
    choices = HfArgumentParser(Many)
    assert outcome(choices, ["--color", "gren"]) == ("exit", 2)


def test_yaml_numbers_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("rate: 1e-5\npath: 2026-11-30\ncount: 12\nname: 10:14\nis_on: no\n")
    expected = Many(rate=1e-5, path="2026-11-30", count=12, name="10:14", is_on=False)
    assert HfArgumentParser(Many).parse_yaml_file(tmp_path / "a.yaml") == (expected,)
    assert transformers.HfArgumentParser(Many).parse_yaml_file(tmp_path / "a.yaml")[0].rate == "1e-5"
    (tmp_path / "empty.yaml").write_text("")
    assert HfArgumentParser(Many).parse_yaml_file(tmp_path / "empty.yaml") == (Many(),)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        (None, FileNotFoundError, "does not exist"),
        ("{a", ValueError, "is not valid"),
        ("- 1\n- 2", ValueError, "is not valid|holds a list"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_files_that_cannot_be_read(text: str | None, error: type, words: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"settings.{kind}"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=f"settings.{kind}.*({words})"):
        getattr(HfArgumentParser(Base), f"parse_{kind}_file")(path)


@dataclass
class Data:
    seed: int = 42
    path: str = "data"


@dataclass
class OtherSeed:
    seed: str = "x"


@dataclass
class Grouped:
    _argument_group_name = "Things of data"
    rows: int = 3


def test_a_field_of_two_dataclasses() -> None:
    parser = HfArgumentParser((Data, Base, kunren.TrainingArguments))
    data, base, arguments = outcome(parser, ["--seed", "3", "--path", "x"])
    assert (data.seed, arguments.seed, data.path, base.path) == (3, 3, "x", "x")
    data, base, arguments = outcome(parser, [])
    assert (data.seed, arguments.seed, data.path, base.path) == (42, 42, "data", "here")  # each has its own default
    with pytest.raises(TypeError, match="Data and OtherSeed both have a field 'seed', of different types"):
        HfArgumentParser((Data, OtherSeed))


def test_defaults_belong_to_one_instance() -> None:
    parser = HfArgumentParser(Many)
    first, second = outcome(parser, [])[0], outcome(parser, [])[0]
    first.words.append("c")
    assert second.words == outcome(parser, [])[0].words == ["a", "b"]
    parser.set_defaults(words=["d"], count=8)
    assert outcome(parser, []) == (Many(words=["d"], count=8),)


def test_old_names_of_arguments_are_read() -> None:
    parser = HfArgumentParser(kunren.TrainingArguments)
    line = shlex.split(
        "--evaluation_strategy steps --eval_steps 3 --warmup-ratio 0.1 --no_cuda --per_gpu_train_batch_size=4"
    )
    with pytest.warns(FutureWarning, match="evaluation_strategy -> eval_strategy"):
        (arguments,) = parser.parse_args_into_dataclasses(line, look_for_args_file=False)
    assert (arguments.eval_strategy, arguments.warmup_steps, arguments.use_cpu) == ("steps", 0.1, True)
    assert arguments.per_device_train_batch_size == 4
    with pytest.warns(FutureWarning, match="evaluation_strategy -> eval_strategy"):
        assert parser.parse_dict({"evaluation_strategy": "epoch"})[0].eval_strategy == "epoch"
    assert "evaluation_strategy" not in parser.format_help()
    own = HfArgumentParser(kunren.TrainingArguments)
    own.add_argument("--warmup_ratio", type=float)
    assert outcome(own, ["--warmup_ratio", "0.5"])[1] == argparse.Namespace(warmup_ratio=0.5)
    assert outcome(own, ["--warmup-s", "5"])[0].warmup_steps == 5  # no old name makes an abbreviation ambiguous


def test_parsing_leaves_the_annotations_of_a_class_alone() -> None:
    before = {one.name: one.type for one in dataclasses.fields(Wider)}
    HfArgumentParser(Wider)
    assert {one.name: one.type for one in dataclasses.fields(Wider)} == before
    assert before["rate"] == "float"


def test_the_help_shows_every_argument_once_under_a_short_usage() -> None:
    arguments = HfArgumentParser((Needed, Wider, kunren.TrainingArguments), prog="x", conflict_handler="error")
    text = arguments.format_help()
    assert text.startswith("usage: x [-h] --needed ... [--name value ...]\n")
    assert "100% of it, 5% or 0.1" in text
    for name in {one.name for one in dataclasses.fields(kunren.TrainingArguments)}:
        assert sum(line.split()[:1] == [f"--{name}"] for line in text.splitlines()) == 1, name


def test_groups_of_the_help() -> None:
    parser = HfArgumentParser(Grouped)
    assert "\nThings of data:\n  --rows INT" in parser.format_help()
    assert outcome(parser, ["--rows", "4"]) == (Grouped(4),)


def test_an_annotation_that_cannot_be_resolved() -> None:
    class Local(Enum):
        a = 1

    @dataclass
    class WithLocal:
        one: Local = Local.a

    with pytest.raises(RuntimeError, match="WithLocal cannot be resolved.*'Local' is not defined"):
        HfArgumentParser(WithLocal)


@pytest.mark.parametrize("word", ["yes", "TRUE", "t", "1", True, "No", "f", "0", False])
def test_words_of_a_switch(word: Any) -> None:
    from transformers.hf_argparser import string_to_bool as theirs

    assert string_to_bool(word) is theirs(word)
    with pytest.raises(argparse.ArgumentTypeError):
        string_to_bool("perhaps")


def test_it_needs_no_transformers_and_no_torch() -> None:
    code = "import sys; from kunren.hf.argument_parser import HfArgumentParser; print(*sys.modules)"
    environment = {"PYTHONPATH": str(Path(kunren.__file__).parents[1])}
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert not {"transformers", "torch", "datasets"} & set(loaded.stdout.split())
