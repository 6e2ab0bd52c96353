"""`kunren train --help`: all arguments or some, in two languages, as wide as asked for."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kunren.arguments import TrainingArguments
from kunren.arguments.help_texts import LANGUAGES, help_sections
from kunren.cli.arguments_help import UnknownName, details, language_of, overview
from kunren.cli.line_breaks import wrapped
from kunren.cli.main import main
from kunren.cli.run_config import OWN_KEYS
from kunren.report.text_width import columns_of

COMMAND = [sys.executable, "-m", "kunren.cli.main", "train", "--help"]
LANGUAGE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")


@pytest.fixture(autouse=True)
def no_language(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LANGUAGE_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("columns", [60, 80, 110])
def test_the_overview_has_every_argument_and_fits(language: str, columns: int) -> None:
    lines = overview(language, columns).splitlines()
    assert [line for line in lines if columns_of(line) > columns] == []
    heads = [line.split()[0].partition("[")[0] for line in lines if line.startswith("  --")]
    named = [item.name for item in dataclasses.fields(TrainingArguments)]
    own = [name for name in OWN_KEYS if name != "num_examples"]  # which only a plan has a use for
    assert sorted(heads) == sorted(f"--{name}" for name in ["resume", "print_config", "help", "lang", *own, *named])
    titles = [line.removesuffix(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    expected = [title for title, _ in help_sections(language)]
    assert titles[-len(expected) :] == expected


def test_the_types_stay_when_transformers_parser_has_written_over_them() -> None:
    pytest.importorskip("transformers").HfArgumentParser(TrainingArguments)
    assert "--eval_strategy str (default: no)" in details(["eval_strategy"], "en", 100)


def test_one_argument() -> None:
    text = details(["--eval-strategy"], "en", 100)
    for said in ("--eval_strategy str (default: no)", "choices: no, steps, epoch", "old names: evaluation_strategy"):
        assert said in text
    assert "group: Evaluation" in text
    text = details(["bf16"], "ja", 100)
    assert "--bf16 bool（既定値: False）" in text and "bfloat16 で計算" in text and "書き方: --bf16, --no-bf16" in text


def test_names_that_are_none_of_ours() -> None:
    assert "batch_size is called per_device_train_batch_size here." in details(["batch_size"], "en", 100)
    assert "Examples in one micro-batch" in details(["batch_size"], "en", 100)
    text = details(["warmup_ratio"], "ja", 100)
    assert "warmup_ratio は以前の名前" in text and "ウォームアップのステップ数" in text
    assert "no effect" in details(["use_ipex"], "en", 100)
    ddp = [line.split()[0] for line in details(["ddp"], "en", 100).splitlines() if line.startswith("  --")]
    assert len(ddp) == 6 and all(name.startswith("--ddp_") for name in ddp)
    with pytest.raises(UnknownName, match="no argument 'learnin_rate'. Did you mean 'learning_rate'?"):
        details(["learnin_rate"], "en", 100)


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "ja_JP.UTF-8"}, "ja"),
        ({"LANG": "ja"}, "ja"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "ja_JP"}, "ja"),
        ({"LANG": "fr_FR.UTF-8"}, "en"),
        ({"LANG": "jam_JM"}, "en"),
        ({"LANG": "ja_JP.UTF-8", "LC_ALL": ""}, "ja"),
    ],
)
def test_the_language_of_the_environment(environment: dict[str, str], language: str) -> None:
    assert language_of(environment) == language


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", "--help"]) == 0
    assert capsys.readouterr().out == overview("en", 80) + "\n"
    for words in (["--help", "--lang", "ja"], ["--lang=ja", "-h"], ["run.yaml", "--help", "--lang=ja"]):
        assert main(["train", *words]) == 0
        assert capsys.readouterr().out == overview("ja", 80) + "\n"
    monkeypatch.setenv("LANG", "ja_JP.UTF-8")
    assert main(["train", "--help", "seed", "bf16"]) == 0
    assert capsys.readouterr().out == details(["seed", "bf16"], "ja", 80) + "\n"
    assert main(["train", "--help=seed", "--lang", "en"]) == 0
    assert capsys.readouterr().out == details(["seed"], "en", 80) + "\n"


def test_what_cannot_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help", "sed_of_all"]) == 2
    assert capsys.readouterr().err.startswith("kunren: There is no argument 'sed_of_all'.")
    assert main(["train", "--help", "--lang", "fr"]) == 2
    assert capsys.readouterr().err == "kunren: --lang fr: choose en or ja.\n"


def test_help_is_quick_and_survives_a_reader_that_leaves() -> None:
    code = (
        "import sys; from kunren.cli.main import main; assert main(['train', '--help', '--lang', 'ja']) == 0;"
        "sys.exit([name for name in ('torch', 'transformers', 'datasets') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.strip() == "[]"
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # before anything is written
        assert process.stderr.read() == b"" and process.wait() == 0


def test_an_encoding_without_japanese() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([*COMMAND, "seed", "--lang", "ja"], capture_output=True, env=environment)
    assert result.returncode == 0 and b"--seed int" in result.stdout and result.stdout.isascii()


# ---- lines


def test_lines_of_japanese() -> None:
    assert wrapped("学習率の最大値。ウォーム", 14) == ["学習率の最大", "値。ウォーム"]
    assert wrapped("「学習」（learning）は", 10) == ["「学習」", "（learning）", "は"]
    assert wrapped("a b  c", 3, 1) == [" a", " b", " c"]
    assert wrapped("bb cc dd", 8, 4, first=0) == ["bb cc dd"]
    assert wrapped("bb cc dd", 7, 4, first=0) == ["bb cc", "    dd"]


@given(
    text=st.text(alphabet="学習率、。（）「」ーabc ,.(){}1", max_size=60),
    columns=st.integers(min_value=12, max_value=50),
    indent=st.integers(min_value=0, max_value=4),
)
def test_lines_keep_the_text_fit_and_begin_as_they_may(text: str, columns: int, indent: int) -> None:
    lines = wrapped(text, columns, indent)
    assert "".join("".join(lines).split()) == "".join(text.split())
    for number, line in enumerate(lines):
        said = line[indent:]
        assert line[:indent].isspace() or indent == 0
        if columns_of(line) > columns:  # only what may not be broken anywhere
            assert " " not in said
            assert all(b in "、。）」ー,.)}" or a in "（「({" or columns_of(a + b) == 2 for a, b in _pairs(said))
        if number and said and not text.count(" "):
            assert said[0] not in "、。）」ー,.)}"


def _pairs(text: str) -> list[tuple[str, str]]:
    return list(zip(text, text[1:], strict=False))
