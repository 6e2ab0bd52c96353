"""`kunren check`: each thing that would fail is named, and nothing is left behind."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from parity.tokenizer import make_tokenizer
from unit.cli.findings_of import failed, files_of, worst
from unit.cli.runs_of_tasks import RUNS, config_of
from unit.hf.tasks.runs import bert, gpt2, t5

from kunren.cli.check import checked
from kunren.cli.check_findings import Finding, Findings
from kunren.cli.check_words import BATCHES, NAMES, SENTENCES, TEXTS, WORDS
from kunren.cli.main import main
from kunren.report.text_width import columns_of

CONFIG = """\
model: {folder}/bert
task: text-classification
train_dataset: {folder}/train.jsonl
eval_dataset: {folder}/eval.jsonl
output_dir: {out}
per_device_train_batch_size: 4
num_train_epochs: 1
eval_strategy: epoch
disable_tqdm: true
use_cpu: true
"""
EXPECTED = {"arguments", "data", "model", "task", "tokenizer", "columns", "rows", "weights", "collator", "vocabulary"}
EXPECTED |= {"labels", "positions", "empty text", "truncation", "counted labels", "plan", "memory", "disk", "loss"}
EXPECTED |= {"gradients", "step", "evaluation", "saving"}
MODELS = {"bert": bert, "gpt2": gpt2, "t5": t5}
SIZE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def some_rows(count: int) -> list[dict[str, Any]]:
    return [{"text": " ".join(f"w{(n + m) % 40}" for m in range(2 + n % 5)), "label": n % 3} for n in range(count)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has weights, a tokenizer, and two files of data."""
    folder = tmp_path_factory.mktemp("made")
    transformers.set_seed(0)
    transformers.BertModel(transformers.BertConfig(vocab_size=55, max_position_embeddings=24, **SIZE)).save_pretrained(
        folder / "bert"
    )
    make_tokenizer().save_pretrained(folder / "bert")
    write_rows(folder / "train.jsonl", some_rows(18))
    write_rows(folder / "eval.jsonl", some_rows(25)[18:])
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of its own for each test, with run.yaml."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run.yaml").write_text(CONFIG.format(folder=made, out=tmp_path / "out"))
    return tmp_path


def found(folder: Path, *words: str) -> dict[str, Finding]:
    """What a check finds, by its name: of several of one name the worst."""
    return worst(checked(str(folder / "run.yaml"), words, "en"))


def test_a_sound_run_passes_everything_and_leaves_nothing(folder: Path, made: Path) -> None:
    before = files_of(folder), files_of(made), torch.get_rng_state()
    results = found(folder, "--metrics", "accuracy", "--metric_for_best_model", "accuracy")
    assert {name: one.verdict for name, one in results.items() if one.verdict != "ok"} == {}
    assert set(results) == EXPECTED | {"best model"}
    assert "eval_accuracy" in results["evaluation"].detail and results["best model"].detail.startswith("accuracy is")
    assert results["labels"].detail == "from 0 to 2; the head has 3 outputs"
    assert "rows" in results["memory"].detail and "equal after loading" in results["saving"].detail
    assert (files_of(folder), files_of(made)) == before[:2] and torch.equal(torch.get_rng_state(), before[2])


def test_checkpoints_that_are_there_stay_and_are_told(folder: Path) -> None:
    assert main(["train", str(folder / "run.yaml"), "--max_steps", "2", "--save_steps", "1", "--no-run-report"]) == 0
    before = files_of(folder)
    results = found(folder)
    assert results["resuming"].verdict == "warning" and "checkpoint-1, checkpoint-2" in results["resuming"].detail
    assert found(folder, "--resume")["resuming"].detail.endswith("checkpoint-2, which is whole")
    (folder / "out" / "checkpoint-2" / "model.safetensors").write_bytes(b"cut")
    path = str(folder / "out" / "checkpoint-2")
    assert "cannot be resumed from" in found(folder, "--resume", path)["resuming"].detail
    shutil.rmtree(folder / "out" / "checkpoint-2")
    assert [name for name in files_of(folder) if "checkpoint-2" not in name] == [
        name for name in before if "checkpoint-2" not in name
    ]


# ---- what breaks a run of a file, and the only check that says so


Breaks = Callable[[Path, Path], list[str]]  # changes a folder; the words that have it checked


def with_model(change: Callable[[Path], None]) -> Breaks:
    def broken(folder: Path, made: Path) -> list[str]:
        shutil.copytree(made / "bert", folder / "model")
        change(folder / "model")
        return ["--model", str(folder / "model")]

    return broken


def with_rows(change: Callable[[list[dict[str, Any]]], Any], name: str = "train") -> Breaks:
    def broken(folder: Path, made: Path) -> list[str]:
        rows = some_rows(18)
        change(rows)
        return [f"--{name}_dataset", str(write_rows(folder / f"{name}.jsonl", rows))]

    return broken


def _nan_weights(model: Path) -> None:
    made = transformers.BertModel.from_pretrained(model)
    made.encoder.layer[0].output.dense.weight.data[0, 0] = float("nan")
    made.save_pretrained(model)


def _no_tokenizer(model: Path) -> None:
    for path in model.glob("token*"):
        path.unlink()


def _larger_tokenizer(model: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(["w100"])
    tokenizer.save_pretrained(model)


def _broken_config(model: Path) -> None:
    (model / "config.json").write_text("{")


def _broken_weights(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"nothing")


BROKEN: dict[str, tuple[Breaks, str, str]] = {
    "an argument": (lambda *_: ["--learning_rate", "-1"], "arguments", "learning_rate=-1 cannot work"),
    "no task": (lambda *_: ["--task", "null"], "arguments", "task is not given"),
    "the task": (lambda *_: ["--task", "fill-mast"], "task", "Did you mean 'fill-mask'?"),
    "a metric": (lambda *_: ["--task", "fill-mask", "--metrics", "mse"], "arguments", "does not fit fill-mask"),
    "a model that is not there": (lambda *_: ["--model", "no/where"], "model", "no/where"),
    "its configuration": (with_model(_broken_config), "model", "has no configuration that can be read"),
    "its weights": (with_model(_broken_weights), "weights", ""),
    "a tokenizer without its files": (with_model(_no_tokenizer), "tokenizer", "has no tokenizer"),
    "a tokenizer": (lambda *_: ["--tokenizer", "no/where"], "tokenizer", "no/where has no tokenizer"),
    "a file of data": (lambda *_: ["--train_dataset", "nowhere.csv"], "data", "nowhere.csv does not exist"),
    "a column": (lambda *_: ["--text_column", "sentence"], "columns", "text_column='sentence' is no column"),
    "a label of the evaluation": (
        with_rows(lambda rows: rows[3].update(label=9), "eval"), "columns", "eval_dataset has labels",
    ),
    "an empty value": (with_rows(lambda rows: rows[7].update(text=None)), "rows", "is empty in some rows"),
    "tokens that the model has not": (
        with_rows(lambda rows: rows[17].update(text="w100")), "vocabulary", "row 17",
    ),
    "rows that are too long": (
        with_rows(lambda rows: rows[11].update(text="w1 " * 40)),
        "positions", "rows have up to 40 tokens, and the model has embeddings of 24",
    ),
    "weights that are no numbers": (with_model(_nan_weights), "loss", "is nan"),
    "the metric of the best model": (
        lambda *_: ["--metric_for_best_model", "f1", "--load_best_model_at_end", "--save_strategy", "epoch"],
        "best model", "choose one of",
    ),
    "a place to write": (
        lambda folder, _: ["--output_dir", str(folder / "run.yaml" / "out")], "disk", "nothing can be written",
    ),
    "a tracker": (lambda *_: ["--report_to", "wandbb"], "arguments", "'wandbb' is no tracker"),
    "the hub": (lambda *_: ["--push_to_hub", "--hub_model_id", "me/it"], "hub", "HF_HUB_OFFLINE"),
    "a checkpoint": (lambda *_: ["--resume", "out/checkpoint-9"], "resuming", "checkpoint-9"),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_named(what: str, folder: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    breaks, check, said = BROKEN[what]
    words = breaks(folder, made)
    words += ["--max_length", "40"] if check == "positions" else []
    if check == "vocabulary":
        shutil.copytree(made / "bert", folder / "larger")
        _larger_tokenizer(folder / "larger")
        words += ["--model", str(folder / "larger")]
    before = files_of(folder)
    results = found(folder, *words)
    assert failed(results) == sorted({check} | ({"evaluation"} if what == "weights that are no numbers" else set()))
    assert said in results[check].detail
    assert files_of(folder) == before


def test_one_mistake_fails_once(folder: Path) -> None:
    results = found(folder, "--task", "sentiment", "--metrics", "f1")
    assert failed(results) == ["arguments"] and "Did you mean 'text-classification'?" in results["arguments"].detail
    assert results["task"].verdict == "skipped" and results["task"].detail == "arguments failed"


def test_a_metric_that_is_not_computed_is_to_be_added(folder: Path) -> None:
    told = found(folder, "--metric_for_best_model", "f1")["best model"].detail
    assert told.endswith("returned: add 'f1' to metrics, or choose one of eval_accuracy, eval_loss.")
    told = found(folder, "--metric_for_best_model", "accurcy")["best model"].detail
    assert told.endswith("returned: choose one of eval_accuracy, eval_loss. Did you mean 'eval_accuracy'?")


def test_a_tokenizer_that_knows_nothing_is_told(folder: Path, made: Path) -> None:
    words = with_rows(lambda rows: [row.update(text="zz zz") for row in rows])(folder, made)
    told = found(folder, *words)["tokenizer"]
    assert told.verdict == "warning" and "unknown to it" in told.detail


WARNED: dict[str, tuple[Breaks, str, str]] = {
    "rows without text": (
        with_rows(lambda rows: rows[4].update(text="")),
        "empty text", "1 of 18 rows of train_dataset have no text (row 4)",
    ),
    "a tokenizer with more tokens": (
        with_model(_larger_tokenizer), "vocabulary", "the tokenizer has 56 tokens and the embedding 55",
    ),
    "rows that are cut": (
        lambda *_: ["--max_length", "4"], "truncation", "% of the rows of eval_dataset are cut to max_length=4",
    ),
    "the training set evaluated": (
        lambda _, made: ["--eval_dataset", str(made / "train.jsonl")],
        "shared rows", "18 of 18 rows of eval_dataset that were looked at are in train_dataset",
    ),
    "a run that is all warm-up": (lambda *_: ["--warmup_steps", "9"], "plan", "The whole run is warm-up"),
    "a model without weights": (
        with_model(lambda model: (model / "model.safetensors").unlink()), "weights", "starts from random ones",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", WARNED)
def test_what_is_probably_not_meant_is_a_warning(what: str, folder: Path, made: Path) -> None:
    breaks, check, said = WARNED[what]
    results = found(folder, *breaks(folder, made))
    assert failed(results) == []
    assert results[check].verdict == "warning" and said in results[check].detail + results[check].remedy


@pytest.mark.parametrize(
    "kind", ["tags", "answers", "next words", "masks", "texts that are generated", "choices", "an adapter"]
)
def test_every_task_passes(kind: str, tmp_path: Path) -> None:
    name, row, options = RUNS[kind]
    path = config_of(tmp_path, MODELS[name](tmp_path / name), row, options)
    before = files_of(tmp_path)
    results = worst(checked(str(path), ["--eval_strategy", "epoch"], "en"))
    assert failed(results) == [] and {"loss", "gradients", "step", "evaluation", "saving"} <= set(results)
    assert ("generation" in results) == ("generated" in kind)
    assert files_of(tmp_path) == before


# ---- the command


def test_the_command_prints_a_table_and_tells_its_status(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(folder / "run.yaml")
    assert main(["check", path, "--eval_strategy", "no"]) == 0
    shown = capsys.readouterr().out
    assert "check           verdict" in shown and "\nvocabulary      ok       the largest token" in shown
    assert "0 failed, 0 to look at" in shown and "nothing is left behind" in shown
    assert main(["check", "--lang", "ja", path, "--text_column", "nowhere"]) == 1
    shown = capsys.readouterr().out
    assert "確認項目" in shown and "列              失敗  text_column='nowhere' is no column" in shown
    assert main(["check", path, "--text_column", "nowhere", "--json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert [one["check"] for one in values if one["verdict"] == "failed"] == ["columns"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["nowhere.yaml"], "nowhere.yaml does not exist"),
        (["run.yaml", "--learnin_rate", "1"], "Did you mean '--learning_rate'?"),
        (["run.yaml", "--lang", "fr"], "choose en or ja"),
        (["nowhere.py:make"], "nowhere.py does not exist"),
        (["run.py:make", "--bf16"], "a script sets its arguments itself"),
    ],
)
def test_what_cannot_be_read(
    words: list[str], answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(["check", *words]) == 2
    assert answer in capsys.readouterr().err


def test_what_a_plan_says_is_said_in_both_languages(folder: Path, made: Path) -> None:
    rows = [{"text": "w1 " * (20 if n % 4 == 0 else 1), "label": n % 3} for n in range(18)]
    words = ["--train_dataset", str(write_rows(folder / "train.jsonl", rows)), "--warmup_steps", "9"]
    told = [one for one in checked(str(folder / "run.yaml"), words, "ja").found if one.check in ("plan", "memory")]
    shown = " ".join(one.detail for one in told)
    assert "がパディング" in shown and "全体がウォームアップ（5 ステップ中" in shown and "行、" in shown
    assert " rows" not in shown and " tokens" not in shown


def test_all_is_said_in_both_languages() -> None:
    for texts in (NAMES, TEXTS, BATCHES, SENTENCES):
        assert all(set(one) == {"en", "ja"} for one in texts.values())
    assert WORDS["en"].keys() == WORDS["ja"].keys()
    for name, texts in TEXTS.items():
        fields = [sorted(set(re.findall(r"{(\w+)", " ".join(pair)))) for pair in texts.values()]
        assert fields[0] == fields[1], name


@pytest.mark.parametrize("language", ["en", "ja"])
@pytest.mark.parametrize("width", [60, 90])
def test_the_table_fits(language: str, width: int) -> None:
    findings = Findings(language)
    for check in NAMES:
        findings.fail(check, "not writable", folder="a folder " * 9, error="no room " * 9)
    lines = findings.table(1.0, width).splitlines()
    assert [line for line in lines if columns_of(line) > width] in ([], lines[-1:])
    assert findings.status == 1
