"""`kunren export-script`: the script trains as `kunren train` does, bit for bit, in every task."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from unit.cli.findings_of import failed, worst
from unit.cli.runs_of_tasks import RUNS, config_of
from unit.hf.tasks.runs import LEARNING, QUIET, bert, gpt2, t5

from kunren.cli.check import checked
from kunren.cli.main import main
from kunren.cli.python_text import COLUMNS, Literal, call_text, python_text

ROOT = Path(__file__).parents[3]
RUFF = [sys.executable, "-m", "ruff"]
Models = dict[str, Path]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    return {"bert": bert(folder / "bert"), "gpt2": gpt2(folder / "gpt2"), "t5": t5(folder / "t5")}


@pytest.mark.parametrize("kind", RUNS)
def test_the_script_trains_the_same_bit_for_bit(kind: str, models: Models, tmp_path: Path) -> None:
    name, row, options = RUNS[kind]
    path = config_of(tmp_path, models[name], row, options)
    assert main(["train", str(path)]) == 0
    script, other = tmp_path / "train.py", tmp_path / "by-script"
    assert main(["export-script", str(path), "--output", str(script), "--output_dir", str(other)]) == 0
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)  # which peft asks for
        runpy.run_path(str(script), run_name="__main__")
    mine, theirs = numbers_of(tmp_path / "out"), numbers_of(other)
    assert mine == theirs and {"train_loss", "eval_loss"} <= set(mine)
    assert ("test_loss" in mine) == ("test_dataset" in options)
    weights = [next(one.glob("*model.safetensors")) for one in (tmp_path / "out", other)]
    saved, made = (load_file(one) for one in weights)
    assert saved.keys() == made.keys() and all(torch.equal(saved[name], made[name]) for name in saved)
    assert_well_written(script)


def test_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    from unit.hf.tasks.test_image_classification import draw, save_vit

    model, pictures = save_vit(tmp_path / "vit"), draw(tmp_path / "pictures")
    options = {"task": "image-classification", "train_dataset": str(pictures), "eval_dataset": str(pictures)}
    values = {**LEARNING, **QUIET, "model": str(model), "output_dir": str(tmp_path / "out"), **options}
    path, script = tmp_path / "run.yaml", tmp_path / "train.py"
    path.write_text(yaml.safe_dump(values))
    assert failed(worst(checked(str(path), [], "en"))) == []
    assert main(["train", str(path)]) == 0
    assert main(["export-script", str(path), "--output", str(script), "--output_dir", str(tmp_path / "other")]) == 0
    runpy.run_path(str(script), run_name="__main__")
    assert numbers_of(tmp_path / "out") == numbers_of(tmp_path / "other")
    assert_well_written(script)


def numbers_of(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "all_results.json").read_text())
    return {name: value for name, value in values.items() if not name.endswith(("_runtime", "_per_second"))}


def assert_well_written(script: Path) -> None:
    for command in (["format", "--check", "--quiet"], ["check", "--quiet"]):
        done = subprocess.run(
            [*RUFF, *command, "--config", str(ROOT / "pyproject.toml"), "--no-cache", str(script)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + script.read_text()
    assert len(script.read_text().splitlines()) < 240


def test_only_what_differs_from_the_defaults_is_written(
    models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_of(tmp_path, models["bert"], RUNS["masks"][1], {"task": "fill-mask"})
    words = ["--gradient_checkpointing", "--load_best_model_at_end", "--eval_strategy", "epoch", "--save_strategy"]
    words += ["epoch", "--seed", "42", "--hub_token", "hf_secret", "--lr_scheduler_kwargs", "null"]
    assert main(["export-script", str(path), *words]) == 0
    shown = capsys.readouterr().out
    call = shown.partition("kunren.TrainingArguments(")[2].partition("\n    )\n")[0]
    named = {line.strip().partition("=")[0] for line in call.splitlines()[2:]}
    assert named == {
        "learning_rate", "num_train_epochs", "per_device_train_batch_size", "use_cpu", "disable_tqdm", "run_report",
        "gradient_checkpointing", "load_best_model_at_end", "eval_strategy", "save_strategy", "metrics",
    }  # fmt: skip
    assert "hf_secret" not in shown and "# hub_token is not written here" in shown


def test_a_model_without_weights_and_its_tokenizer_from_elsewhere(models: Models, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text((models["bert"] / "config.json").read_text())
    options = {"task": "fill-mask", "tokenizer": str(models["bert"]), "torch_dtype": "bfloat16", "num_train_epochs": 1}
    path = config_of(tmp_path, bare, RUNS["masks"][1], options)
    assert main(["train", str(path)]) == 0
    words = ["--output_dir", str(tmp_path / "other"), f"--output={tmp_path / 'train.py'}"]
    assert main(["export-script", str(path), *words]) == 0
    assert "AutoModelForMaskedLM.from_config(config" in (tmp_path / "train.py").read_text()
    runpy.run_path(str(tmp_path / "train.py"), run_name="__main__")
    assert numbers_of(tmp_path / "out") == numbers_of(tmp_path / "other")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["--learnin_rate", "1"], "Did you mean '--learning_rate'?"),
        (["--task", "fill-mast"], "Did you mean 'fill-mask'?"),
        (["--task", "null"], "does not say task"),
        (["--output", "no/where/train.py"], "No such file"),
    ],
)
def test_mistakes(
    words: list[str], answer: str, models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_of(tmp_path, models["bert"], RUNS["masks"][1], {"task": "fill-mask"})
    assert main(["export-script", str(path), *words]) == 2
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# ---- the layout

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_a_literal_is_the_value(value: Any) -> None:
    assert eval(python_text(value), {}) == value  # a literal, but for infinite numbers


@settings(max_examples=10, deadline=None)
@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=5), min_size=1, max_size=30))
def test_calls_are_laid_out_as_ruff_does(values: list[dict[str, Any]]) -> None:
    lines = []
    for given_values in values:
        keywords = {f"n{at}": Literal(list(pair)) for at, pair in enumerate(given_values.items())}
        lines.append(f"value = {call_text('dict', [], keywords, 8, 0)}")
    text = "\n".join(lines) + "\n"
    command = [*RUFF, "format", "--isolated", "--line-length", str(COLUMNS), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == text
