"""`kunren.hf.install()`: transformers' names give kunren's until `uninstall()`. Each test in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kunren

pytest.importorskip("transformers")

PACKAGE = Path(kunren.__file__).parent
SCRIPT = """
import sys
from transformers import Trainer, TrainingArguments
import beside
print(Trainer.__module__, TrainingArguments.__module__, beside.NAME, sys.argv[1:], __name__)
"""


def python(*words: str, folder: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package as it is here."""
    variables = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, cwd=folder, check=False)


def said_by(code: str, **environment: str) -> list[str]:
    """The lines that a piece of Python prints; it has to succeed."""
    result = python("-c", code, **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.splitlines()


def test_every_name_is_replaced_wherever_it_is_and_comes_back() -> None:
    said_by(
        """
import importlib
import transformers
from kunren.base.registry import resolve
from kunren.hf.replacements import REPLACEMENTS
import kunren.hf

def held(names):
    found = {}
    for module, replaced in names.items():
        try:
            module = importlib.import_module(module)
        except ImportError:
            assert module == "transformers.utils.notebook"  # no IPython here
            continue
        for name in replaced:
            found[module.__name__, name] = getattr(module, name)
            if name in dir(transformers):
                found["transformers", name] = getattr(transformers, name)
    return found

before = held(REPLACEMENTS)
assert ("transformers", "Trainer") in before and ("transformers", "Seq2SeqTrainer") in before
assert len(before) > 90, len(before)
assert not any(value.__module__.startswith("kunren") for value in before.values())
kunren.hf.install()
kunren.hf.install()
assert kunren.hf.is_installed()
now = held(REPLACEMENTS)
for (module, name), value in now.items():
    home = module if module != "transformers" else next(m for m in REPLACEMENTS if name in REPLACEMENTS[m])
    assert value is resolve(REPLACEMENTS[home][name]), (module, name, value)
    assert value.__module__.startswith("kunren"), value

# What holds the same things under other names, or in a list or a dict.
from transformers import data, integrations, trainer, trainer_seq2seq
assert trainer.TrainerState is kunren.TrainerState and trainer_seq2seq.Trainer is kunren.Trainer
assert data.DataCollatorWithPadding is kunren.DataCollatorWithPadding
assert integrations.WandbCallback is kunren.WandbCallback
assert trainer.DEFAULT_CALLBACKS == [kunren.DefaultFlowCallback]
assert integrations.integration_utils.INTEGRATION_TO_CALLBACK["tensorboard"] is kunren.TensorBoardCallback
assert kunren.get_linear_schedule_with_warmup in transformers.optimization.TYPE_TO_SCHEDULER_FUNCTION.values()

kunren.hf.uninstall()
kunren.hf.uninstall()
assert held(REPLACEMENTS) == before
assert trainer.DEFAULT_CALLBACKS == [before["transformers.trainer_callback", "DefaultFlowCallback"]]
assert issubclass(transformers.Seq2SeqTrainer, transformers.Trainer)
"""
    )


def test_the_names_of_the_top_level_are_those_that_the_facts_list() -> None:
    facts = Path(__file__).parents[4] / "shared" / "docs" / "api_facts.json"
    if not facts.exists():
        pytest.skip("the facts about transformers are not there")
    kept = said_by(
        f"""
import json
import kunren.hf
kunren.hf.install()
import transformers
from transformers import processing_utils  # executes the package once more
exports = json.load(open({str(facts)!r}))["top_level_exports"]
for names in exports.values():
    for name in names:
        if not getattr(transformers, name).__module__.startswith("kunren"):
            print(name)
"""
    )
    checks = {name for name in kept if name.startswith("is_") and name.endswith("_available")}
    assert set(kept) - checks == {"torch_distributed_zero_first"}  # no part of a Trainer


def test_nothing_of_transformers_is_made_in_a_training() -> None:
    said_by(
        """
import gc, tempfile
import kunren.hf
kunren.hf.install()
from kunren.hf import installation
from transformers import (AutoModelForSequenceClassification, BertConfig, DataCollatorWithPadding,
    EarlyStoppingCallback, Trainer, TrainingArguments)

size = dict(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
model = AutoModelForSequenceClassification.from_config(BertConfig(**size))
rows = [{"input_ids": [i, 2, 3], "labels": i % 2} for i in range(8)]
theirs = tuple(one for one, _ in installation._Installed.now.pairs if isinstance(one, type))
members = {id(item) for item in gc.get_objects() if isinstance(item, theirs)}  # of enumerations
folder = tempfile.mkdtemp()
args = TrainingArguments(folder, max_steps=4, per_device_train_batch_size=2, eval_strategy="steps", eval_steps=1,
    save_steps=2, load_best_model_at_end=True, save_strategy="steps", report_to="tensorboard", disable_tqdm=False)
trainer = Trainer(model=model, args=args, train_dataset=rows, eval_dataset=rows,
    callbacks=[EarlyStoppingCallback(9)])
trainer.train()
trainer.train(resume_from_checkpoint=True)
trainer.predict(rows)
made = [item for item in gc.get_objects() if type(item) in theirs and id(item) not in members]
assert len(theirs) > 30 and made == [], made
"""
    )


def test_records_and_checks_stay_where_others_look_for_them() -> None:
    lines = said_by(
        """
import logging, unittest
import kunren.hf
kunren.hf.install()
import transformers
from kunren.trackers.registry import tracker_names
from transformers.integrations import integration_utils

class Captured(unittest.TestCase):
    def runTest(self):
        with self.assertLogs("transformers.trainer", level="INFO") as caught:
            logging.getLogger("kunren.seams.saving").info("a record of the Trainer")
        assert caught.records[0].getMessage() == "a record of the Trainer"

assert unittest.TextTestRunner(stream=open("/dev/null", "w")).run(Captured()).wasSuccessful()

transformers.logging.set_verbosity_error()
assert not logging.getLogger("kunren.trainer").isEnabledFor(logging.WARNING)
transformers.logging.set_verbosity_info()
assert logging.getLogger("kunren.trainer").isEnabledFor(logging.INFO)

assert "tensorboard" in tracker_names(["all"])
original, integration_utils.is_tensorboard_available = integration_utils.is_tensorboard_available, lambda: False
assert "tensorboard" not in tracker_names(["all"])
integration_utils.is_tensorboard_available = original
kunren.hf.uninstall()
assert logging.getLogger("kunren").parent is logging.getLogger()
assert "tensorboard" in tracker_names(["all"])
print("done")
"""
    )
    assert lines == ["done"]


def test_too_late_is_told_with_the_names() -> None:
    result = python("-c", "from transformers import Trainer as Mine\nimport kunren.hf\nkunren.hf.install()")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "RuntimeError: kunren.hf.install() comes too late: __main__ (Mine) was imported" in last
    assert "python -m kunren.hf SCRIPT" in last


def test_classes_made_before_are_told_as_well() -> None:
    result = python(
        "-c", "import transformers\nclass Own(transformers.Trainer): ...\nimport kunren.hf\nkunren.hf.install()"
    )
    last = result.stderr.strip().splitlines()[-1]
    assert "comes too late: __main__ (Own) was imported with transformers' own classes" in last


@pytest.mark.parametrize("words", [["script.py"], ["-m", "script"]])
def test_a_script_or_module_is_run_as_it_is(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("NAME = 'found beside the script'")
    result = python("-m", "kunren.hf", *words, "--lr", "1", folder=tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    expected = "kunren.trainer kunren.arguments.training_arguments found beside the script ['--lr', '1'] __main__"
    assert result.stdout.splitlines()[-1] == expected


def test_a_script_from_another_folder_finds_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "script.py").write_text(SCRIPT)
    (tmp_path / "scripts" / "beside.py").write_text("NAME = 1")
    result = python("-m", "kunren.hf", "scripts/script.py", folder=tmp_path)
    assert result.stdout.split()[0] == "kunren.trainer", result.stderr[-2000:]


def test_a_command_line_that_names_nothing(tmp_path: Path) -> None:
    missing = python("-m", "kunren.hf", "nothing.py", folder=tmp_path)
    assert missing.returncode == 1 and "there is no file 'nothing.py'" in missing.stderr
    assert "Traceback" not in missing.stderr
    empty = python("-m", "kunren.hf")
    assert empty.returncode == 2 and "usage: python -m kunren.hf SCRIPT.py" in empty.stderr


@pytest.mark.parametrize(
    ("value", "home"), [("1", "kunren.trainer"), ("0", "transformers.trainer"), ("", "transformers.trainer")]
)
def test_the_variable_takes_the_names_over_at_the_import(value: str, home: str) -> None:
    """As the line in `kunren_install.pth` does at the start of Python; here the folder is read as a site's."""
    code = f"""
import site, sys
site.addsitedir({str(PACKAGE / "hf")!r})
assert "torch" not in sys.modules and "transformers" not in sys.modules  # nothing is loaded before its time
from transformers import Trainer
print(Trainer.__module__)
"""
    assert said_by(code, KUNREN_INSTALL=value)[-1] == home


def test_without_transformers_it_is_said_what_to_install() -> None:
    result = python("-c", "import sys; sys.modules['transformers'] = None; import kunren.hf; kunren.hf.install()")
    assert "needs transformers: pip install 'kunren[hf]'" in result.stderr


def test_arguments_stored_by_transformers_become_whole(tmp_path: Path) -> None:
    path = tmp_path / "training_args.bin"
    said_by(
        f"import torch, transformers\ntorch.save(transformers.TrainingArguments(seed=7, use_cpu=True), {str(path)!r})"
    )
    lines = said_by(
        f"""
import copy, dataclasses
import kunren.hf
kunren.hf.install()
import torch, transformers
args = torch.load({str(path)!r}, weights_only=False)
assert type(args) is transformers.TrainingArguments, type(args)
for same in (args, copy.deepcopy(args), dataclasses.replace(args, output_dir=".")):
    assert same.seed == 7 and same.to_dict().keys() == transformers.TrainingArguments().to_dict().keys()
print("whole")
"""
    )
    assert lines[-1] == "whole"


@pytest.mark.parametrize(
    ("words", "code", "shown"),
    [
        (["fails.py"], 1, ["Traceback (most recent call last):", '  File "fails.py", line 4, in <module>']),
        (["-m", "fails"], 1, ["Traceback (most recent call last):", '  File "{folder}/fails.py", line 4, in <module>']),
        (
            ["fails.py", "interrupt"],
            130,
            ["Traceback (most recent call last):", '  File "fails.py", line 3, in <module>'],
        ),
        (["no_python.py"], 1, ['  File "no_python.py", line 1', "    if"]),
        (["-m", "nothing.here"], 1, ["kunren: there is no module 'nothing.here'."]),
    ],
)
def test_an_error_shows_the_script_alone(words: list[str], code: int, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text(
        "import sys\nif sys.argv[1:]:\n    raise KeyboardInterrupt\nraise ValueError(1)\n"
    )
    (tmp_path / "no_python.py").write_text("if")
    stand_in = (
        "import sys, types\nsys.modules['kunren.hf.installation'] = types.SimpleNamespace(install=lambda: None)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(stand_in)  # transformers takes seconds, and does not matter here
    paths = os.pathsep.join([str(PACKAGE.parent), str(tmp_path)])
    result = python("-m", "kunren.hf", *words, folder=tmp_path, PYTHONPATH=paths)
    assert result.returncode == code, result.stderr
    assert result.stderr.splitlines()[: len(shown)] == [line.format(folder=tmp_path) for line in shown]


def test_several_threads_install_once() -> None:
    lines = said_by(
        """
import threading
import transformers
import kunren.hf
from kunren.arguments import construction
from kunren.trackers import registry
held = len(registry.checks_elsewhere), len(construction.when_built)
threads = [threading.Thread(target=kunren.hf.install) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert kunren.hf.is_installed()
assert (len(registry.checks_elsewhere), len(construction.when_built)) == (held[0] + 1, held[1] + 1)
kunren.hf.uninstall()
assert (len(registry.checks_elsewhere), len(construction.when_built)) == held
print(transformers.Trainer.__module__)
"""
    )
    assert lines[-1] == "transformers.trainer"


def test_the_variable_works_after_others_have_asked_whether_transformers_is_there() -> None:
    code = f"""
import importlib.util, site
site.addsitedir({str(PACKAGE / "hf")!r})
assert importlib.util.find_spec("transformers") is not None  # as accelerate and others do
import kunren.hf
kunren.hf.install()  # and a script may call it all the same
from transformers import Trainer
print(Trainer.__module__)
"""
    assert said_by(code, KUNREN_INSTALL="1")[-1] == "kunren.trainer"
