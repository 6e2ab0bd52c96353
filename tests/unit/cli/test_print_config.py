"""`kunren train --print_config`: all that a run is told, and the same run when it is read back."""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.arguments import TrainingArguments
from kunren.arguments.effective import default_values, effective_values
from kunren.arguments.help_texts import help_sections
from kunren.cli.arguments_help import sections
from kunren.cli.main import main
from kunren.cli.print_config import config_text
from kunren.cli.run_config import OWN_KEYS, read_config
from kunren.cli.yaml_text import yaml_text

ENTRIES = {entry.name: entry for _, entries in help_sections("en") for entry in entries}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
# Of whose values more is asked than their type tells, or which say what another one says.
PARTICULAR = {"deepspeed", "fsdp_config", "fsdp", "accelerator_config", "parallelism_config", "profile_steps"}
PARTICULAR |= {"optim_args", "parameter_groups", "debug", "include_for_metrics", "optim_target_modules"}


def values_of(entry: Any) -> st.SearchStrategy[Any]:
    """What an argument may be, as a file says it; some of it is refused."""
    kinds = {
        "int": st.integers(1, 9) | st.just("7"),
        "float": st.sampled_from([0.25, 1e-5, 3.0, 2, "1e-3", ".5"]),
        "bool": st.booleans() | st.sampled_from(["yes", "off"]),
        "dict": st.dictionaries(st.sampled_from(["a", "b c", "no", "1"]), st.integers() | st.floats(0, 1) | TEXTS),
        "list": st.lists(st.sampled_from(["labels", "no", "5e-5"]), max_size=2),
        "str": TEXTS.filter(bool),
    }
    if entry.choices:
        return st.sampled_from(entry.choices)
    if entry.name == "report_to":
        return st.sampled_from(["none", "tensorboard", ["tensorboard", "wandb"], "all", []])
    return st.one_of([kinds[kind] for kind in entry.kinds if kind in kinds])


def same(given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments that these values give; None where they are refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return TrainingArguments(**given).to_dict()
    except (TypeError, ValueError):
        return None


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    """Values of a few arguments, none of which is refused."""
    names = draw(st.lists(st.sampled_from(sorted(ENTRIES.keys() - PARTICULAR)), max_size=8, unique=True))
    found: dict[str, Any] = {}
    for name in names:
        value = draw(values_of(ENTRIES[name]))
        if same(found | {name: value}) is not None:
            found[name] = value
    return found


@settings(max_examples=60, deadline=None)
@given(configurations())
def test_what_is_printed_gives_the_same_arguments(values: dict[str, Any]) -> None:
    expected = TrainingArguments(**values).to_dict()
    assert hidden(effective_values(values)) == hidden(expected)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")
        for only_changed in (False, True):
            path.write_text(config_text(values, only_changed, "en"), encoding="utf-8")
            if yaml.safe_load(path.read_text(encoding="utf-8")) is None:  # nothing differs, or only a secret does
                path.write_text("output_dir: trainer_output")
            found = {name: value for name, value in read_config(path).items() if name not in OWN_KEYS}
            assert hidden(TrainingArguments(**found).to_dict()) == hidden(expected)
            assert not only_changed or len(found) <= len(values) + 3  # twins, and what follows from others


def hidden(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.endswith("_token")}


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_values_of_every_kind_are_read_back(value: Any) -> None:
    text = f"run_name: {yaml_text(value)}"
    assert len(text.splitlines()) == 1
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.yaml")
        path.write_text(text, encoding="utf-8")
        assert typed(read_config(path)["run_name"]) == typed(value)
    assert typed(yaml.safe_load(text)["run_name"]) == typed(value)  # which is version 1.1


def typed(value: Any) -> Any:
    """`value`, such that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {name: typed(item) for name, item in value.items()}
    return [typed(item) for item in value] if isinstance(value, list) else (type(value), value)


SPECIAL = [
    "no",
    "5e-5",
    "1_000",
    "10:14",
    "2026-11-30",
    "~",
    "",
    " a",
    "a: b",
    "#",
    "- a",
    "\u2028",
    "\x85",
    "é",
    "=",
    "<<",
]


@pytest.mark.parametrize("text", [*SPECIAL, ".inf", "0x1f", "1e3", "a\nb", "\x00", "😀", "y", "off", "訓練", "..."])
def test_texts_that_look_like_something_else(text: str) -> None:
    assert yaml.safe_load(f"a: {yaml_text(text)}") == {"a": text}


def test_numbers_look_alike_in_both_versions() -> None:
    assert yaml_text(5e-5) == "5.0e-05" and yaml_text(math.inf) == ".inf" and yaml_text(1e300) == "1.0e+300"
    assert yaml_text(1.5e-7) == "1.5e-07" and yaml_text(0.1) == "0.1" and yaml_text(3) == "3"


# ---- the command


@pytest.fixture(autouse=True)
def english(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["train", *words]) == 0
    return capsys.readouterr().out


def test_every_field_with_a_comment_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "--print_config").splitlines()
    names = [line.partition(":")[0] for line in lines if line and not line.startswith("#")]
    assert sorted(names) == sorted([*OWN_KEYS, *ENTRIES])
    told = {entry.name for _, entries in sections("en") for entry in entries}
    for before, line in zip(lines, lines[1:], strict=False):
        if line.partition(":")[0] in told:
            assert before.startswith("# ") and not before.startswith("# ----") and len(before) <= 120
    for name, value in default_values().items():
        assert yaml.safe_load("\n".join(lines))[name] == value


def test_the_command_line_goes_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text("model: bert\nlearning_rate: 1e-3\narguments:\n  warmup_ratio: .1\n  seed: 1\n")
    text = printed(capsys, str(tmp_path / "run.yaml"), "--seed", "7", "--print-config=changed", "--no-bf16")
    assert yaml.safe_load(text) == {"model": "bert", "learning_rate": 1e-3, "warmup_steps": 0.1, "seed": 7}
    whole = printed(capsys, "--print_config", str(tmp_path / "run.yaml"), "--lang", "ja")
    assert "# ---- モデルとデータ" in whole and yaml.safe_load(whole)["learning_rate"] == 1e-3


def test_no_explanation_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--print_config=changed", "--task", "fill-mask")
    assert "…" not in text and all(len(line) <= 118 for line in text.splitlines())
    assert "multiple-choice or image-classification." in " ".join(line.lstrip("# ") for line in text.splitlines())


def test_of_the_defaults_nothing_has_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--print_config=changed") == "# Nothing differs from the defaults.\n"
    assert yaml.safe_load(printed(capsys, "--print_config=changed", "--max_steps", "5")) == {"max_steps": 5}


def test_secrets_are_not_printed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("push_to_hub_token: hf_one\nlr_scheduler_kwargs: {api_token: hf_two, a: 1}\n")
    for words in ([str(tmp_path / "run.yaml")], ["--hub_token", "hf_three"]):
        for form in ("--print_config", "--print_config=changed"):
            text = printed(capsys, *words, form)
            assert "hf_" not in text and "# hub_token: given, and not printed" in text
            assert "hub_token" not in (yaml.safe_load(text) or {})


def test_an_old_name_without_effect_stays(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "--print_config=changed", "--logging_dir", "my runs")
    assert yaml.safe_load(text) == {"logging_dir": "my runs"}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--learning_rate", "-1"], "learning_rate=-1 cannot work"),
        (["--learnin_rate", "1"], "Did you mean '--learning_rate'?"),
        (["nowhere.yaml"], "nowhere.yaml does not exist"),
        (["--evaluation_strategy", "epoch", "--eval_strategy", "steps"], "the first is an old name"),
    ],
)
def test_mistakes(words: list[str], answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--print_config", *words]) == 2
    assert answer in capsys.readouterr().err
    assert main(["train", "--print_config=some"]) == 2
    assert "choose all or changed" in capsys.readouterr().err
