"""The scripts of examples/tasks run as they are, learn something, and say what they say on transformers' Trainer."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kunren

pytest.importorskip("transformers")
pytest.importorskip("datasets")

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples" / "tasks"
SCRIPTS = [path.stem for path in sorted(TASKS.glob("run_*.py"))]
GENERATED = "/no/such/folder"

# What a few steps on generated data need; the numbers of the full runs are in FLOORS.
SHORT = {
    "run_glue": "--max_seq_length 16",
    "run_clm": "--block_size 32",
    "run_mlm": "--line_by_line --max_seq_length 16",
    "run_ner": "--max_seq_length 16",
    "run_qa": "--max_seq_length 32 --doc_stride 12 --pad_to_max_length false",
    "run_summarization": "--max_source_length 48 --max_target_length 12 --predict_with_generate",
    "run_translation": "--max_source_length 24 --max_target_length 12 --predict_with_generate",
}
QUICK = "--do_train --do_eval --max_train_samples 64 --max_eval_samples 8 --per_device_train_batch_size 4 --seed 3 "
QUICK += "--logging_steps 1 --report_to none --disable_tqdm true --use_cpu --learning_rate 1e-3 --save_strategy no"
PREDICTED = {
    "run_glue": "predict_results.txt",
    "run_ner": "predictions.txt",
    "run_qa": "predict_predictions.json",
    "run_summarization": "generated_predictions.txt",
    "run_translation": "generated_predictions.txt",
}
METRICS = {
    "run_glue": {"accuracy", "f1", "matthews_correlation"},
    "run_clm": set(),
    "run_mlm": set(),
    "run_ner": {"precision", "recall", "f1", "accuracy"},
    "run_qa": {"exact_match", "f1"},
    "run_summarization": {"rouge1", "rouge2", "rougeL", "gen_len"},
    "run_translation": {"bleu", "chrf", "gen_len"},
}


def environment(data: str | None) -> dict[str, str]:
    own = {
        "PYTHONPATH": str(ROOT / "src"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**os.environ, "OMP_NUM_THREADS": "1", **own, **({"KUNREN_DATA": data} if data else {})}


def run(library: str, orders: list[tuple[str, str]], data: str | None = GENERATED) -> dict[str, Any]:
    """What scripts return, one after the other in one process, and the losses of their steps."""
    told = json.dumps([[script, words.split()] for script, words in orders])
    command = [sys.executable, str(Path(__file__).with_name("run_scripts.py")), library]
    done = subprocess.run(command, input=told, capture_output=True, text=True, env=environment(data), timeout=1200)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def short(script: str, folder: Path, further: str = "") -> tuple[str, str]:
    return script, f"--output_dir {folder / script} --max_steps 3 {QUICK} {SHORT[script]} {further}"


def test_there_is_a_script_for_each_task() -> None:
    assert sorted(SHORT) == sorted(METRICS) == SCRIPTS
    said = (TASKS / "README.md").read_text(encoding="utf-8")
    assert all(f"`python {script}.py`" in said and f"\npython {script}.py --" in said for script in SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_is_short_and_one_line_away_from_transformers(script: str) -> None:
    import transformers

    text = (TASKS / f"{script}.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    imports = [
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module == "kunren"
    ]
    assert len(imports) == 1
    for name in (alias.name for alias in imports[0].names):
        assert hasattr(transformers, name) and hasattr(kunren, name)


def test_the_scripts_train_evaluate_and_predict(tmp_path: Path) -> None:
    """All of them in one process: most of the time goes into importing libraries."""
    predicting = dict.fromkeys(PREDICTED, "--do_predict --max_predict_samples 5")
    found = run("kunren", [short(script, tmp_path, predicting.get(script, "")) for script in SCRIPTS])
    for script, results, losses in zip(SCRIPTS, found["results"], found["losses"], strict=True):
        folder = tmp_path / script
        assert len(losses) == 3 and all(0 < loss < 12 for loss in losses), script
        assert {f"eval_{name}" for name in METRICS[script]} <= results.keys()
        assert {"train_loss", "eval_loss", "train_samples", "eval_samples"} <= results.keys()
        for name in ("train_results.json", "eval_results.json", "trainer_state.json", "config.json"):
            assert (folder / name).is_file(), script
        saved = json.loads((folder / "all_results.json").read_text())
        assert saved["eval_loss"] == results["eval_loss"] and saved["train_loss"] == results["train_loss"]
        if script in PREDICTED:
            predicted = (folder / PREDICTED[script]).read_text(encoding="utf-8")
            rows = json.loads(predicted) if script == "run_qa" else predicted.splitlines()
            assert len(rows) == 5 + (script == "run_glue")  # whose file has a head


@pytest.mark.slow  # a process for each line
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--train_file none.csv --do_train", "FileNotFoundError: There is no file none.csv."),
        ("--trian_file a.csv", "did you mean '--train_file'?"),
        ("none.json", "FileNotFoundError: The file of arguments none.json does not exist"),
        ("--task_name sst", "choose one of cola, sst2"),
        ("--max_train_samples 4", "nothing to do: give --do_train, --do_eval or --do_predict"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_told(words: str, error: str) -> None:
    with pytest.raises(AssertionError) as told:
        run("kunren", [("run_glue", words)])
    assert error in str(told.value)


@pytest.mark.slow
@pytest.mark.parametrize("script", [name for name in SCRIPTS if name != "run_mlm"])  # what is masked is drawn otherwise
def test_the_losses_are_those_of_transformers(script: str, tmp_path: Path) -> None:
    """Where transformers is right; and the scores of the evaluation, too."""
    ours, theirs = (run(library, [short(script, tmp_path / library)]) for library in ("kunren", "transformers"))
    if script == "run_clm":  # transformers divides by a label more for each row than the loss is a sum of: 32 for 31
        assert ours["losses"][0][0] * 31 / 32 == pytest.approx(theirs["losses"][0][0], rel=1e-6)
        return
    assert ours["losses"] == theirs["losses"]
    (mine,), (other,) = ours["results"], theirs["results"]
    names = {"train_loss", "eval_loss", *(f"eval_{name}" for name in METRICS[script])}
    assert {name: mine[name] for name in names} == pytest.approx({name: other[name] for name in names}, rel=1e-6)


# What a script reaches without arguments, on the data beside the checkout: the least and the most of one number.
REACHED = {
    "run_glue": ("eval_accuracy", 0.70, 1.0),
    "run_clm": ("perplexity", 1.0, 130.0),
    "run_mlm": ("perplexity", 1.0, 80.0),
    "run_ner": ("eval_f1", 0.60, 1.0),
    "run_qa": ("eval_f1", 80.0, 100.0),
    "run_summarization": ("eval_rouge1", 8.0, 100.0),
    "run_translation": ("eval_chrf", 10.0, 100.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_without_arguments_learns_something(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TASKS / f"{script}.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=environment(None),
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "***** train metrics *****" in done.stdout and "***** eval metrics *****" in done.stdout
    name, least, most = REACHED[script]
    found = json.loads((tmp_path / "runs" / script / "all_results.json").read_text())[name]
    print(f"\n{script}: {name} {found:.3f}")
    assert least <= found <= most


@pytest.mark.slow
def test_a_script_goes_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    words = "--save_strategy steps --save_steps 2 --lr_scheduler_type constant"
    whole = run("kunren", [short("run_glue", tmp_path / "whole", f"{words} --max_steps 6")])["losses"][0]
    orders = [short("run_glue", tmp_path / "part", f"{words} --max_steps {steps}") for steps in (2, 6)]
    first, second = run("kunren", orders)["losses"]
    assert (len(first), len(second)) == (2, 4)
    assert first + second == whole
