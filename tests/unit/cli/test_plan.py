"""`kunren plan`: from arguments alone, from a configuration with model and data, from a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import transformers
from parity.tokenizer import make_tokenizer

from kunren.cli.main import main
from kunren.cli.plan_config import ConfigError, _check_defined
from kunren.planning.units import human_rate, human_time

ARGUMENTS = "num_examples: 1000\nper_device_train_batch_size: 10\nuse_cpu: true\noutput_dir: {folder}\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def write(folder: Path, text: str, name: str = "run.yaml") -> str:
    path = folder / name
    path.write_text(text.format(folder=folder / "out"), encoding="utf-8")
    return str(path)


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["plan", "--json", *words]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 2
    return capsys.readouterr().err


def test_arguments_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, ARGUMENTS + "gradient_accumulation_steps: 4\nwarmup_steps: 0.1\nsave_steps: 30\n")
    values = planned(capsys, path)
    assert (values["max_steps"], values["warmup_steps"], values["samples"]) == (75, 8, 3000)
    assert values["effective_batch"] == 40 and values["checkpoints"]["saved"] == 3
    assert values["learning_rates"]["rates"][0] == 0.0 and values["learning_rates"]["steps"][-1] == 75
    for name in ("weights", "memory", "peak_bytes", "checkpoint_bytes", "seconds"):
        assert values[name] is None and values["unknown"][name] == "there is no model"
    assert not (tmp_path / "out").exists() and list((tmp_path / "here").iterdir()) == []


def test_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--ascii", write(tmp_path, ARGUMENTS)]) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    lines = [line.split("  ") for line in text.splitlines()]
    facts = {line[1]: line[-1].strip() for line in lines if len(line) > 2}
    assert facts["steps"] == "300, 100 in each pass over the data"
    assert facts["weights"] == "not known: there is no model"
    assert facts["rate"] == "5e-05 at first, 1.67e-07 at the last"
    assert "learning rate" in text and "step 300" in text


@pytest.mark.parametrize("form", ["top", "nested", "json"])
def test_where_arguments_may_stand(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"output_dir": "out", "max_steps": 7, "learning_rate": 0.1}
    content: Any = {"num_examples": 9, "arguments": values} if form == "nested" else {"num_examples": 9, **values}
    text = json.dumps(content) if form != "top" else "\n".join(f"{name}: {value}" for name, value in content.items())
    path = tmp_path / ("run.json" if form == "json" else "run.yaml")
    path.write_text(text)
    assert planned(capsys, str(path))["max_steps"] == 7


def test_the_command_line_goes_before_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--max-steps", "12", "--learning_rate=3e-4", "--warmup_steps", "0.5", "--bf16", "--num_examples", "20"]
    values = planned(capsys, write(tmp_path, ARGUMENTS), *words)
    assert (values["max_steps"], values["warmup_steps"], values["num_examples"]) == (12, 6, 20)
    assert max(values["learning_rates"]["rates"]) == 3e-4


MISTAKES = {
    "a key one letter off": ("learning_rat: 1\n", "'learning_rat'. Did you mean 'learning_rate'?"),
    "a value that cannot work": ("learning_rate: -1\n", "learning_rate=-1 cannot work"),
    "no number of examples": ("learning_rate: 1\n", "give num_examples, or max_steps"),
    "no number": ("num_examples: many\n", "num_examples is 'many'"),
    "a model without data": ("model: bert\n", "model is given, and train_dataset is not"),
    "a list": ("- 1\n", "`name: value` lines"),
    "no YAML": ("a: [1\n", "cannot be read"),
    "one argument twice": ("max_steps: 1\narguments:\n  max_steps: 2\n", "max_steps stands at the top and under"),
    "batches by length": ("num_examples: 5\nbatching: token_budget\ntoken_budget: 9\n", "depends on the lengths"),
    "an unknown task": ("model: bert\ntask: fill-mast\ntrain_dataset: x.csv\n", "Did you mean 'fill-mask'?"),
    "no task": ("model: bert\ntrain_dataset: x.csv\n", "give its task"),
    "data that is not there": ("model: bert\ntask: fill-mask\ntrain_dataset: no.csv\n", "no.csv does not exist"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_answered(mistake: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, answer = MISTAKES[mistake]
    assert answer in refused(capsys, write(tmp_path, text))


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere.yaml does not exist" in refused(capsys, "nowhere.yaml")
    assert "is not understood" in refused(capsys, write(tmp_path, ARGUMENTS), "max_steps")
    assert "nowhere.py does not exist" in refused(capsys, "nowhere.py:make_trainer")
    assert "no_such_module cannot be imported" in refused(capsys, "no_such_module:make")


# ---- a model and data by name


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    """A folder with a configuration and a tokenizer; no weights."""
    config = transformers.BertConfig(
        vocab_size=55, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    config.save_pretrained(tmp_path / "bert")
    make_tokenizer().save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def sentences(folder: Path, name: str = "train.csv", count: int = 24) -> Path:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 9, (count,), generator=generator).tolist()
    table = datasets.Dataset.from_dict(
        {
            "text": [" ".join(f"w{word}" for word in range(length)) for length in lengths],
            "label": [("bad", "good", "none")[row % 3] for row in range(count)],
            "spare": lengths,
        }
    )
    path = folder / name
    {".csv": table.to_csv, ".jsonl": table.to_json, ".parquet": table.to_parquet}[path.suffix](path)
    return path


@pytest.mark.parametrize("name", ["train.csv", "train.jsonl", "train.parquet"])
def test_a_model_and_a_file(name: str, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"model: {bert}\ntask: text-classification\ntrain_dataset: {sentences(tmp_path, name)}\n"
    values = planned(capsys, write(tmp_path, text + "use_cpu: true\noutput_dir: {folder}\n"))
    assert values["model"] == "BertForSequenceClassification"
    assert (values["num_examples"], values["max_steps"]) == (24, 9)
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig.from_pretrained(bert, num_labels=3)  # type: ignore[no-untyped-call]
    )
    count = sum(parameter.numel() for parameter in model.parameters())
    assert values["weights"]["count"] == count and values["memory"]["gradients"] == 4 * count
    assert values["tokens"]["is_exact"] and values["tokens"]["real"] < values["tokens"]["padded"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("task", "model"), [("fill-mask", "BertForMaskedLM"), ("AutoModelForMaskedLM", "BertForMaskedLM")]
)
def test_language_models(task: str, model: str, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "lines.txt"
    data.write_text("w1 w2 w3\n" * 20)
    text = f"model: {bert}\ntask: {task}\ntrain_dataset: {data}\nmax_length: 3\nuse_cpu: true\noutput_dir: {{folder}}\n"
    values = planned(capsys, write(tmp_path, text))
    assert values["model"] == model
    assert values["tokens"]["padded"] == 3 * 20 * 3
    values = planned(capsys, write(tmp_path, text), "--max_length", "2")
    assert values["num_examples"] == 40  # a text that is longer goes on in a further row


def test_rows_that_are_tokenized(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[5, 6, 7]] * 12, "labels": [[0, 1, 0]] * 12, "other": [1] * 12})
    rows.save_to_disk(tmp_path / "saved")
    text = f"model: {bert}\ntask: token-classification\ntrain_dataset: {tmp_path / 'saved'}\noutput_dir: {{folder}}\n"
    values = planned(capsys, write(tmp_path, text), "--use_cpu", "true", "--num_train_epochs", "1")
    assert values["tokens"] == {"padded": 36, "real": 36, "is_exact": True, "read_batches": 2}


def test_columns_that_are_not_there_are_answered_with_those_that_are(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = f"model: {bert}\ntask: text-classification\ntrain_dataset: {sentences(tmp_path)}\n"
    path = write(tmp_path, text)
    assert "text_column='sentense' is no column; the columns are: text, label, spare" in refused(
        capsys, path, "--text_column", "sentense"
    )
    assert "label_column='class' is no column; the columns are: text, label, spare" in refused(
        capsys, path, "--label_column", "class"
    )
    assert "'label' is both text and label" in refused(capsys, path, "--text_column", "label")
    assert "No column is called question; the columns are: text, label, spare" in refused(
        capsys, path, "--task", "question-answering"
    )


def test_a_model_that_is_not_there(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"task: text-classification\ntrain_dataset: {sentences(tmp_path)}\n"
    for name in ("models/nope", "/models/of/nobody", "nope"):
        answer = refused(capsys, write(tmp_path, f"{text}model: {name}\n"))
        assert f"model: there is no folder {name!r}" in answer and "connect" not in answer
    (tmp_path / "bert" / "config.json").write_text("{{")
    answer = refused(capsys, write(tmp_path, f"{text}model: {bert}\n"))
    assert f"the folder {bert} has no configuration that can be read" in answer


# ---- a script

SCRIPT = """
import torch
from kunren import Trainer, TrainingArguments
from beside import rows

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x, labels=None):
        return {{"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}}

def make_trainer():
    args = TrainingArguments("{folder}", use_cpu=True, per_device_train_batch_size=2, disable_tqdm=True)
    return Trainer(model=Model(), args=args, train_dataset=rows)

def make_nothing():
    pass

if __name__ == "__main__":
    raise SystemExit("the script was run")
"""
BESIDE = "import torch\nrows = [{'x': torch.ones(3), 'labels': n % 2} for n in range(10)]\n"


def test_a_function_of_a_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "beside.py").write_text(BESIDE)
    path = write(tmp_path, SCRIPT, "planned_script.py")
    for target in (path, f"{path}:make_trainer"):
        values = planned(capsys, target)
        assert values["max_steps"] == 15 and values["weights"]["count"] == 8 and values["seconds"] > 0
    assert "returned NoneType" in refused(capsys, f"{path}:make_nothing")
    assert "has no function 'make_model'" in refused(capsys, f"{path}:make_model")
    assert "sets its arguments itself" in refused(capsys, path, "--max_steps", "3")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["beside.py", "here", "planned_script.py"]


DEFINING = {
    "def make_trainer(): pass": True,
    "async def make_trainer(): pass": True,
    "from beside import make_trainer": True,
    "from beside import make as make_trainer": True,
    "from beside import *": True,
    "make_trainer = functools.partial(print)": True,
    "first, make_trainer = 1, print": True,
    "try:\n    import x\nexcept ImportError:\n    def make_trainer(): pass": True,
    "if 1:\n    pass\nelse:\n    make_trainer: object = print": True,
    "def __getattr__(name): pass": True,
    "if __name__ == '__main__':\n    pass\nelse:\n    def make_trainer(): pass": True,
    "if __name__ == '__main__':\n    def make_trainer(): pass": False,
    "def make():\n    def make_trainer(): pass": False,
    "class Makes:\n    def make_trainer(self): pass": False,
    "from beside import make_trainer as make": False,
    "print(make_trainer)": False,
    "trainer.train()": False,
}


@pytest.mark.parametrize("source", DEFINING)
def test_where_a_function_may_come_from(source: str, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(source)
    if DEFINING[source]:
        _check_defined(path, "script.py", "make_trainer")
        return
    with pytest.raises(ConfigError, match="script.py has no function 'make_trainer'"):
        _check_defined(path, "script.py", "make_trainer")


def test_a_script_without_the_function_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "here" / "trains_at_once.py"
    path.write_text("open('trained', 'w').close()\n")
    for target in (str(path), f"{path}:make", "trains_at_once:make"):
        assert "has no function 'make" in refused(capsys, target)
    assert "trains_at_once" not in sys.modules
    assert [file.name for file in path.parent.iterdir()] == ["trains_at_once.py"]


def test_units() -> None:
    times = (0.00035, 0.05, 2.14, 60.0, 600.0, 26400.0, 60 * 60 * 50.0)
    assert [human_time(time) for time in times] == [
        "0.35 ms",
        "50 ms",
        "2.1 s",
        "60 s",
        "10 min",
        "7 h 20 min",
        "2 days 2 h",
    ]
    assert [human_rate(rate) for rate in (5e-5, 0.001, 0.0)] == ["5e-05", "0.001", "0"]
