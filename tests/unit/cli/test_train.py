"""`kunren train`: the run that a file describes, and how mistakes in it are answered."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from parity.tokenizer import make_tokenizer

import kunren
from kunren.cli.main import main
from kunren.cli.run_config import ConfigError, command_to_resume, read_config, read_overrides

LABELS = ("bad", "good", "none")
CONFIG = """\
model: {folder}/bert
task: text-classification
train_dataset: {folder}/train.csv
eval_dataset: {folder}/eval.csv
output_dir: {folder}/out
learning_rate: 1e-2
per_device_train_batch_size: 8
num_train_epochs: 2
save_steps: 2
disable_tqdm: true
use_cpu: true
"""


def rows(count: int, seed: int) -> datasets.Dataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 3, (count,), generator=generator).tolist()
    texts = []
    for label in labels:
        words = torch.randint(15 * label, 15 * label + 15, (6,), generator=generator).tolist()
        texts.append(" ".join(f"w{word}" for word in words))
    return datasets.Dataset.from_dict({"text": texts, "label": [LABELS[label] for label in labels], "spare": labels})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has weights, a tokenizer, two files of data, and run.yaml."""
    folder = tmp_path_factory.mktemp("made")
    transformers.set_seed(0)
    config = transformers.BertConfig(
        vocab_size=55, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    make_tokenizer().save_pretrained(folder / "bert")
    rows(32, 0).to_csv(folder / "train.csv")
    rows(9, 1).to_csv(folder / "eval.csv")
    (folder / "run.yaml").write_text(CONFIG.format(folder=folder))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with nothing trained yet."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    shutil.rmtree(made / "out", ignore_errors=True)
    return made


def train(folder: Path, *words: str) -> int:
    return main(["train", str(folder / "run.yaml"), *words])


def results(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "all_results.json").read_text())
    return values


def test_the_run_is_that_of_a_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder, "--learning-rate", "3e-3", "--metrics", "accuracy", "--run_name=first") == 0
    out = folder / "out"
    found, shown = results(out), capsys.readouterr().out
    for said in (f"train_loss {found['train_loss']:.4f}", f"eval_accuracy {found['eval_accuracy']:.4f}"):
        assert said.rstrip("0") in " ".join(shown.split())
    assert f"The model is in {out}." in shown and f"The report is {out / 'report.html'}." in shown
    assert (out / "report.html").stat().st_size > 1000

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    sets = [
        data.map(
            lambda row: {**tokenizer(row["text"]), "labels": LABELS.index(row["label"])},
            remove_columns=data.column_names,
        )
        for data in (rows(32, 0), rows(9, 1))
    ]
    args = kunren.TrainingArguments(
        str(folder / "by-hand"),
        learning_rate=3e-3,
        num_train_epochs=2,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        run_report=False,
    )
    kunren.set_seed(args.seed)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "bert", num_labels=3)
    trainer = kunren.Trainer(model, args, train_dataset=sets[0], eval_dataset=sets[1], processing_class=tokenizer)
    assert trainer.train().training_loss == found["train_loss"]
    assert trainer.evaluate()["eval_loss"] == found["eval_loss"]
    saved = transformers.AutoModelForSequenceClassification.from_pretrained(out)
    assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in saved.state_dict().items())
    assert saved.config.id2label == dict(enumerate(LABELS))


def test_the_same_file_is_planned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", str(folder / "run.yaml"), "--eval_strategy", "epoch"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["max_steps"] == 8 and values["model"] == "BertForSequenceClassification"
    assert not (folder / "out").exists()


def test_a_model_without_a_token_for_padding_classifies(folder: Path, tmp_path: Path) -> None:
    config = transformers.GPT2Config(vocab_size=55, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    transformers.GPT2Model(config).save_pretrained(tmp_path / "gpt2")
    make_tokenizer(pad_token=None).save_pretrained(tmp_path / "gpt2")
    assert train(folder, "--model", str(tmp_path / "gpt2"), "--max_steps", "1", "--no-run-report") == 0
    assert results(folder / "out")["eval_loss"] > 0


def test_a_saved_model_goes_on_as_it_is(folder: Path) -> None:
    assert train(folder) == 0
    first = results(folder / "out")
    words = ["--model", str(folder / "out"), "--output_dir", str(folder / "more"), "--learning_rate", "0"]
    assert train(folder, *words, "--max_steps", "1", "--no-run-report") == 0
    assert results(folder / "more")["eval_loss"] == first["eval_loss"]
    assert not (folder / "more" / "report.html").exists()


def test_resuming_goes_on_where_the_run_was(folder: Path) -> None:
    assert train(folder, "--max_steps", "5") == 0
    whole = transformers.AutoModel.from_pretrained(folder / "out").state_dict()
    assert json.loads((folder / "out" / "trainer_state.json").read_text())["global_step"] == 5
    shutil.rmtree(folder / "out" / "checkpoint-4")
    for words in (["--resume"], ["--resume", str(folder / "out" / "checkpoint-2")]):
        assert train(folder, "--max_steps", "5", *words) == 0
        again = transformers.AutoModel.from_pretrained(folder / "out").state_dict()
        assert all(torch.equal(again[name], tensor) for name, tensor in whole.items())


def test_a_training_that_is_stopped_says_how_to_go_on(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "of mine"
    assert train(folder, "--max_minutes", "1e-6", "--output_dir", str(out), "--no-run-report") == 75
    assert [message for message in caplog.messages if "limit" in message] == [
        "The time limit of 6e-05 seconds is near: saving and stopping."
    ]
    assert "resume_from_checkpoint" not in caplog.text
    (command,) = re.findall(r"Stopped at step 1 of 8: `(.*)` goes on from there", capsys.readouterr().out)
    assert command == f"kunren train {folder}/run.yaml --max_minutes 1e-6 --output_dir '{out}' --no-run-report --resume"
    assert not (out / "model.safetensors").exists()
    assert main(shlex.split(command.replace("--max_minutes 1e-6", ""))[1:]) == 0
    assert json.loads((out / "trainer_state.json").read_text())["global_step"] == 8


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("run.yaml", "run.yaml --resume"),
        ("run.yaml --resume --bf16", "run.yaml --bf16 --resume"),
        ("--lang ja run.yaml --resume out/checkpoint-2 --bf16", "--lang ja run.yaml --bf16 --resume"),
        ("run.yaml --resume-from-checkpoint=true --seed 3", "run.yaml --seed 3 --resume"),
        ("run.yaml --lr_scheduler_kwargs {}", "run.yaml --lr_scheduler_kwargs '{}' --resume"),
    ],
)
def test_the_command_to_resume(words: str, command: str) -> None:
    assert command_to_resume(words.split()) == f"kunren train {command}"


def test_what_the_training_has_evaluated_is_not_evaluated_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate, measured = kunren.Trainer.evaluate, []

    def counting(trainer: kunren.Trainer, *values: Any, **named: Any) -> Any:
        measured.append((trainer.state.global_step, found := evaluate(trainer, *values, **named)))
        return found

    monkeypatch.setattr(kunren.Trainer, "evaluate", counting)
    words = ["--eval_strategy", "epoch", "--save_strategy", "epoch", "--no-run-report"]
    assert train(folder, *words) == 0
    assert [step for step, _ in measured] == [4, 8]
    last = measured[-1][1]
    found = json.loads((folder / "out" / "eval_results.json").read_text())
    assert found == {**last, "eval_samples": 9} or found == last
    assert f"{last['eval_loss']:.4f}".rstrip("0") in capsys.readouterr().out
    measured.clear()
    assert train(folder, *words, "--load_best_model_at_end", "--output_dir", str(folder / "best")) == 0
    assert [step for step, _ in measured] == [4, 8, 8]  # the weights may be others by now
    measured.clear()
    assert train(folder, *words, "--resume") == 0  # of a run that is done, perhaps with another evaluation set
    assert [step for step, _ in measured] == [8]


def test_random_weights_are_told_where_they_are_trained(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folder / "bert", tmp_path / "bare")
    (tmp_path / "bare" / "model.safetensors").unlink()
    for words, count in ((["--max_steps", "2"], 1), (["--resume", "--max_steps", "3"], 0)):
        caplog.clear()
        assert train(folder, "--model", str(tmp_path / "bare"), "--no-run-report", *words) == 0
        assert caplog.text.count("starts with random ones") == count


def test_a_file_has_no_bars_and_a_closed_pipe_ends_nothing(folder: Path) -> None:
    command = [sys.executable, "-m", "kunren", "train", str(folder / "run.yaml"), "--no-run-report"]
    # DeepSpeed, where it is installed, tells stdout on being imported which device it has found, unless it is told.
    environment = os.environ | {"DS_ACCELERATOR": "cpu"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    process.stdout.close()  # as `head` does
    _, told = process.communicate(timeout=100)
    assert b"\r" not in told and b"it/s" not in told and b"examples/s" not in told
    assert b"Traceback" not in told and b"Exception" not in told
    assert process.returncode == 0
    assert (folder / "out" / "all_results.json").exists()


def test_on_a_terminal_a_checkpoint_draws_no_bar_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kunren.hf.library_bars.is_terminal", lambda stream: True)
    assert train(folder, "--max_steps", "2", "--no-run-report") == 0
    told = capsys.readouterr().err
    assert "Tokenizing" in told and "Writing model shards" not in told
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_the_bars_of_libraries_come_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder, "--max_steps", "2", "--no-run-report") == 0
    assert "Tokenizing" not in capsys.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled() and not datasets.are_progress_bars_disabled()


def test_mistakes_in_japanese(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "ja_JP.UTF-8")
    for words, answer in (
        ([], "YAML または JSON のファイルを指定する"),
        (["--bf16"], "ファイルの位置に --bf16 がある"),
        (["run.py"], "それ自体で学習する: python run.py"),
        ([str(folder / "run.yaml"), "--model", "null"], "model の指定がない"),
        (["--help", "learnin_rate"], "引数 'learnin_rate' はない。'learning_rate' のことか。"),
    ):
        assert main(["train", *words]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "--help report_to --lang ja",
        "--help --lang ja report_to",
        "--lang ja --help report_to",
        "--help=report_to --lang=ja",
    ],
)
def test_help_in_any_order(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words.split()]) == 0
    shown = capsys.readouterr().out
    assert "--report_to" in shown and "既定値" in shown and "--learning_rate" not in shown


def test_without_an_evaluation_set_and_in_japanese(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(folder, "--eval_dataset", "null", "--max_steps", "1", "--lang", "ja") == 0
    shown = capsys.readouterr().out
    assert not [name for name in results(folder / "out") if name.startswith("eval_")]
    assert f"モデルの保存先: {folder / 'out'}" in shown and "eval_loss" not in shown
    assert 'lang="ja"' in (folder / "out" / "report.html").read_text(encoding="utf-8")


def test_masked_words_from_a_folder_of_files(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "train.txt").write_text("w1 w2 w3\n" * 20)
    (data / "validation.txt").write_text("w1 w2 w3 w4\n" * 20)
    (data / "notes.csv").write_text("a,b\n1,2\n")
    words = ["--task", "fill-mask", "--train_dataset", str(data), "--eval_dataset", str(data), "--max_steps", "2"]
    assert train(folder, *words, "--no-run-report") == 0
    assert transformers.AutoModelForMaskedLM.from_pretrained(folder / "out").config.vocab_size == 55
    assert results(folder / "out")["eval_loss"] > 0


MISTAKES: dict[str, tuple[list[str], str]] = {
    "a misspelt option": (
        ["--learnin_rate", "1"],
        "There is no option --learnin_rate. Did you mean '--learning_rate'?",
    ),
    "a name of other libraries": (["--lr", "1"], "There is no option --lr. Did you mean '--learning_rate'?"),
    "no value": (["--learning_rate"], "--learning_rate needs a value"),
    "a stray word": (["--bf16", "true", "no"], "'no' is not understood"),
    "a value that cannot work": (["--learning_rate", "-1"], "learning_rate=-1"),
    "no number": (["--max_steps", "many"], "max_steps='many'"),
    "broken JSON": (["--lr_scheduler_kwargs", '{"a": '], "it is not valid JSON: Expecting value, at character 7"),
    "no JSON": (["--lr_scheduler_kwargs", "{bad}"], "enclosed in double quotes, at character 2"),
    "no space in YAML": (["--lr_scheduler_kwargs", "{num_cycles:2}"], "at character 2. Give JSON"),
    "what the schedule does not take": (
        ["--lr_scheduler_kwargs", '{"num_cycles": 2}'],
        "lr_scheduler_kwargs has 'num_cycles', which 'linear' does not take: it takes none.",
    ),
    "what the optimizer does not take": (["--optim_args", "momentum=1"], "adamw_torch_fused does not take"),
    "a tracker that is none": (["--report_to", "wandbb"], "'wandbb' is no tracker"),
    "a tracker's package": (["--report_to", "neptune"], "run `pip install neptune`"),
    "a metric that is none": (["--metrics", "acuracy"], "Did you mean 'accuracy'?"),
    "numbers for text": (["--text_column", "spare"], "'spare' of train_dataset is no text but int, such as "),
    "a task that is none": (["--task", "fill-mast"], "Did you mean 'fill-mask'?"),
    "no model": (["--model", "null"], "does not say model"),
    "a column that is not there": (["--text_column", "txt"], "the columns are: text, label, spare"),
    "a misspelt column": (["--label_column", "lable"], "Set label_column. Did you mean 'label'?"),
    "a task by another name": (["--task", "NER"], "Did you mean 'token-classification'? There are: "),
    "a short name of an adapter's option": (["--peft", "{rank: 8}"], "has no option 'rank'. Did you mean 'r'?"),
    "data that is not there": (["--eval_dataset", "nowhere.csv"], "eval_dataset: nowhere.csv does not exist"),
    "nothing to evaluate on": (["--eval_strategy", "epoch", "--eval_dataset", "null"], "needs an evaluation set"),
    "nothing to resume": (["--resume"], "has no checkpoint that is whole"),
    "a checkpoint that is not there": (["--resume", "nowhere"], "nowhere"),
    "a hub out of reach": (["--push_to_hub"], "HF_HUB_OFFLINE=1 keeps everything off the hub"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_take_one_line(mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, answer = MISTAKES[mistake]
    assert train(folder, *words) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kunren: ")]
    assert len(told) == 1 and answer in told[0]
    assert not (folder / "out" / "model.safetensors").exists()


def test_what_stands_where_the_file_should(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, answer in (
        ([], "Give a YAML or JSON file"),
        (["--bf16"], "--bf16 stands where the file should"),
        (["nowhere.yaml"], "nowhere.yaml does not exist"),
        ([str(tmp_path)], "is a folder"),
        (["script.py"], "python script.py"),
        (["script.py:make"], "kunren train takes a YAML or JSON file; a script trains by itself: python script.py\n"),
    ):
        assert main(["train", *words]) == 2
        assert answer in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("model: a\nseed 1\nbf16: true\n", "line 2, cannot be read: could not find expected ':' (while scanning"),
        ("model: a\nmetrics: [b\nseed: 1\n", "(while parsing a flow sequence, which begins in line 2)."),
        ("model: a\n  seed: 1\n", "line 2, cannot be read: mapping values are not allowed here."),
        ("model: a\nmodel: b\n", "line 2, cannot be read: 'model' stands twice."),
    ],
)
def test_a_mistake_in_yaml_is_told_with_its_line(
    text: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.yaml").write_text(text)
    assert main(["train", str(tmp_path / "run.yaml")]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"kunren: {tmp_path / 'run.yaml'}, line ") and answer in told and told.count("\n") == 1
    assert main(["train", str(tmp_path / "rum.yaml")]) == 2
    assert f"give a YAML or JSON file. Did you mean '{tmp_path / 'run.yaml'}'?" in capsys.readouterr().err
    assert main(["train", str(tmp_path / "nowhere.yaml")]) == 2
    assert "Did you mean" not in capsys.readouterr().err


EARLY = ("what the schedule", "what the optimizer", "a tracker", "a metric", "no JSON", "broken JSON")


@pytest.mark.parametrize("mistake", [mistake for mistake in MISTAKES if mistake.startswith(EARLY)])
def test_names_are_checked_before_the_data_is_read(
    mistake: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, answer = MISTAKES[mistake]
    assert train(folder, *words, "--train_dataset", "nowhere.csv") == 2
    assert answer in capsys.readouterr().err


DATA: dict[str, tuple[str, str]] = {
    "eval_dataset has no column 'text', which is the text_column": ("txt,label\nw1,good\n", "--eval_dataset"),
    "eval_dataset has no column 'label', which is the label_column": ("text,class\nw1,good\n", "--eval_dataset"),
    "'text' is empty in some rows of eval_dataset": ("text,label\n,good\nw1,bad\n", "--eval_dataset"),
    "train.csv cannot be read": ('text,label\n"w1,good\n', "--train_dataset"),
    "No column is called text or": ("a,b\n1,2\n", "--train_dataset"),
}


@pytest.mark.parametrize("answer", DATA)
def test_mistakes_in_data_take_one_line(
    answer: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, option = DATA[answer]
    (tmp_path / "train.csv").write_text(text)
    assert train(folder, option, str(tmp_path / "train.csv")) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("kunren: ")]
    assert len(told) == 1 and answer in told[0]


def test_weights_that_are_broken_take_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(folder / "bert", tmp_path / "bert")
    (tmp_path / "bert" / "model.safetensors").write_bytes(b"no weights")
    assert train(folder, "--model", str(tmp_path / "bert")) == 2
    assert f"kunren: model: {tmp_path}/bert cannot be loaded: SafetensorError: " in capsys.readouterr().err


def test_an_error_amid_the_training_is_shown_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(trainer: kunren.Trainer, *values: Any, **named: Any) -> None:
        raise ValueError("of a step")

    monkeypatch.setattr(kunren.Trainer, "training_step", failing)
    with pytest.raises(ValueError, match="of a step"):
        train(folder, "--no-run-report")
    monkeypatch.undo()
    monkeypatch.setattr(kunren.Trainer, "evaluate", failing)
    with pytest.raises(ValueError, match="of a step"):
        train(folder, "--no-run-report", "--eval_strategy", "steps", "--eval_steps", "3", "--run_name", "5%s")
    command = f"kunren train {folder}/run.yaml --no-run-report --eval_strategy steps --eval_steps 3 --run_name 5%s"
    assert f"`{command} --resume`" in caplog.text and "train(resume" not in caplog.text


def test_labels_of_the_evaluation_set(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.csv").write_text("text,label\nw1,good\nw2,worse\n")
    assert train(folder, "--eval_dataset", str(tmp_path / "other.csv")) == 2
    assert "eval_dataset has labels that train_dataset has not: worse." in capsys.readouterr().err
    (tmp_path / "other.csv").write_text("text,label\nw1,good\nw2,\n")
    assert train(folder, "--train_dataset", str(tmp_path / "other.csv")) == 2
    assert "'label' is empty in some rows" in capsys.readouterr().err
    (tmp_path / "one.csv").write_text("text,label\nw1,0\nw2,1\n")
    (tmp_path / "two.csv").write_text("text,label\nw1,0\nw2,2\n")
    sets = ["--train_dataset", str(tmp_path / "one.csv"), "--eval_dataset", str(tmp_path / "two.csv")]
    assert train(folder, *sets) == 2
    assert "eval_dataset has labels that train_dataset has not: 2." in capsys.readouterr().err


WORDS = {
    "--learning_rate 3e-5": {"learning_rate": 3e-5},
    "--learning-rate=3e-5 --bf16": {"learning_rate": 3e-5, "bf16": True},
    "--no-async-save --no_bf16 --tf32 false": {"async_save": False, "bf16": False, "tf32": False},
    "--no_cuda": {"no_cuda": True},
    "--max_steps -1": {"max_steps": -1},
    "--run_name 2026 --hub_model_id none": {"run_name": "2026", "hub_model_id": None},
    "--report_to tensorboard wandb": {"report_to": ["tensorboard", "wandb"]},
    "--report_to none --metrics f1": {"report_to": "none", "metrics": "f1"},
    "--metrics [accuracy,f1]": {"metrics": ["accuracy", "f1"]},
    "--profile_steps 10:14": {"profile_steps": "10:14"},
    "--eval_strategy no --chunked_loss off": {"eval_strategy": "no", "chunked_loss": "off"},
    '--lr_scheduler_kwargs {"num_cycles":2,"min_lr":1e-6}': {"lr_scheduler_kwargs": {"num_cycles": 2, "min_lr": 1e-6}},
    "--lr_scheduler_kwargs {num_cycles:\xa02}": {"lr_scheduler_kwargs": {"num_cycles": 2}},
    "--accelerator_config settings.json": {"accelerator_config": "settings.json"},
    "--resume": {"resume_from_checkpoint": True},
    "--resume_from_checkpoint out/checkpoint-1": {"resume_from_checkpoint": "out/checkpoint-1"},
    "--resume-from-checkpoint true --fsdp": {"resume_from_checkpoint": True, "fsdp": True},
    "--text_column first second": {"text_column": ["first", "second"]},
    "--evaluation_strategy epoch": {"evaluation_strategy": "epoch"},
}


@pytest.mark.parametrize("words", WORDS)
def test_words(words: str) -> None:
    assert read_overrides([word.replace("\xa0", " ") for word in words.split(" ")]) == WORDS[words]


def test_numbers_and_text_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "learning_rate: 5e-5\nwarmup_steps: .1\nmax_steps: -1\nseed: 0x10\nprofile_steps: 10:14\nrun_name: 2026-11-30\n"
        "lr_scheduler_kwargs: {min_lr: 1e-6}\nmax_grad_norm: null\nbf16: yes\nlogging_steps: 1E1\nlayer_decay: 1.\n"
    )
    assert read_config(path) == {
        "learning_rate": 5e-5,
        "warmup_steps": 0.1,
        "max_steps": -1,
        "seed": 16,
        "profile_steps": "10:14",
        "run_name": "2026-11-30",
        "lr_scheduler_kwargs": {"min_lr": 1e-6},
        "max_grad_norm": None,
        "bf16": True,
        "logging_steps": 10.0,
        "layer_decay": 1.0,
    }
    path.write_text("lr: 1\n")
    with pytest.raises(ConfigError, match="There is no key 'lr'. Did you mean 'learning_rate'?"):
        read_config(path)
