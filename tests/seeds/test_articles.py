"""The scripts of the two articles that kunren started from: with the import of the Trainer changed, and as they are.

As they are they run under `kunren.hf.install()`, to the same numbers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification, BertTokenizer

SCRIPTS = Path(__file__).parent / "scripts"
IMPORT_OF_THE_TRAINER = re.compile(r"^from transformers (import .*\bTrainer\b.*)$", re.MULTILINE)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "a", "good", "bad", "very", "day", "film"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a tiny model to start from."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), initializer_range=0.1, **size))
    model.save_pretrained(tmp_path / "tiny-bert")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "tiny-bert")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(script: str) -> dict[str, Any]:
    """Run a script with its one line changed; what it defined is returned."""
    text, lines_changed = IMPORT_OF_THE_TRAINER.subn(r"from kunren \1", (SCRIPTS / script).read_text(encoding="utf-8"))
    assert lines_changed == 1
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, script, "exec"), names)
    assert names["Trainer"].__module__.startswith("kunren")
    return names


@pytest.mark.filterwarnings("ignore:.*evaluation_strategy.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*tokenizer.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*logging_dir.*:FutureWarning")
def test_the_second_article_fine_tunes_evaluates_saves_and_resumes(folder: Path) -> None:
    names = run("fine_tuning_basics.py")
    trainer = names["trainer"]
    assert names["train_output"].global_step == 60  # 48 rows in batches of 4, five times
    assert names["train_output"].training_loss > 0
    assert names["eval_results"]["eval_accuracy"] == 1.0
    evaluated_at = [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert evaluated_at[:6] == [10, 20, 30, 40, 50, 60]

    checkpoints = {path.name for path in (folder / "results").glob("checkpoint-*")}
    best = Path(trainer.state.best_model_checkpoint)
    assert len(checkpoints) == 2 and best.name in checkpoints  # the limit holds, and the best one is kept
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert trainer.state.best_metric == pytest.approx(min(losses))

    saved = AutoModelForSequenceClassification.from_pretrained(folder / "fine-tuned-model")
    from_best = AutoModelForSequenceClassification.from_pretrained(best)
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), from_best.parameters(), strict=True))
    assert (folder / "fine-tuned-model" / "tokenizer_config.json").exists()
    assert names["resumed_output"].global_step == 60  # nothing was left to do


@pytest.mark.filterwarnings("ignore:.*fp16_opt_level.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*local_rank.*:FutureWarning")
def test_the_first_article_steps_and_steers(folder: Path) -> None:
    names = run("inside_the_trainer.py")
    trainer, events = names["trainer"], names["events"]
    assert trainer.state.global_step == 5  # the callback's wish, not the 12 steps of the arguments
    assert trainer.steps_taken == 10  # the article's own step, twice per optimizer step
    assert [path.name for path in (folder / "results").glob("checkpoint-3")] == ["checkpoint-3"]
    state = json.loads((folder / "results" / "checkpoint-3" / "trainer_state.json").read_text())
    assert state["global_step"] == 3

    assert events[:3] == ["on_init_end", "on_train_begin", "on_epoch_begin"]
    assert events[-1] == "on_train_end"
    assert [events.count(name) for name in ("on_step_begin", "on_substep_end", "on_step_end")] == [5, 5, 5]
    assert events.count("on_evaluate") == 2 and events.count("on_save") == 1
    assert events.count("on_prediction_step") == 2  # eight rows are one batch
    assert names["weighted_output"].global_step == 12
    norms = [entry["grad_norm"] for entry in names["weighted"].state.log_history if "grad_norm" in entry]
    assert len(norms) == 12 and all(norm > 0 for norm in norms)


RUNS_IT = """
import json, runpy
import kunren.hf
kunren.hf.install()
names = runpy.run_path({script!r}, run_name="__main__")
trainers = [names[name] for name in {trainers!r}]
assert all(type(trainer).__mro__[-2].__module__.startswith("kunren") for trainer in trainers)
print(json.dumps([trainer.state.log_history for trainer in trainers]))
"""


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("script", "trainers"),
    [("fine_tuning_basics.py", ["trainer"]), ("inside_the_trainer.py", ["trainer", "weighted"])],
)
def test_under_install_an_article_runs_as_it_is_to_the_same_numbers(
    script: str, trainers: list[str], folder: Path
) -> None:
    code = RUNS_IT.format(script=str(SCRIPTS / script), trainers=trainers)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    installed = json.loads(result.stdout.splitlines()[-1])
    for path in ("results", "fine-tuned-model"):  # the other run begins where this one began
        shutil.rmtree(folder / path, ignore_errors=True)
    names = run(script)
    plain = [names[name].state.log_history for name in trainers]
    assert [numbers(history) for history in installed] == [numbers(history) for history in plain]
    assert len(plain[0]) > 5


def numbers(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A log without what a clock has measured."""
    timed = ("_runtime", "_per_second")
    return [{key: value for key, value in entry.items() if not key.endswith(timed)} for entry in history]
