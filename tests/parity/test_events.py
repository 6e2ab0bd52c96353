"""The order of a run's events, pinned against what transformers 5.24 was observed to do.

One layer of GPT-2, 12 rows, batch 2, accumulation 2, one epoch; log every step, evaluate and save every second; then
`evaluate()` and `predict()`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import transformers

import kunren
from parity import models, rows
from parity.harness import DEFAULTS, assert_same_weights, train

HOOKS = (
    "on_init_end",
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_step_begin",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_substep_end",
    "on_step_end",
    "on_evaluate",
    "on_predict",
    "on_save",
    "on_log",
    "on_prediction_step",
    "on_push_begin",
)
ALWAYS = {"eval_dataloader", "lr_scheduler", "model", "optimizer", "processing_class", "train_dataloader"}
FLAGS = {
    "T": "should_training_stop",
    "E": "should_epoch_stop",
    "S": "should_save",
    "V": "should_evaluate",
    "L": "should_log",
}

# event, global step, epoch, flags set when it fires, keywords besides those that every event has
TRACE = """
    on_init_end            0  0
    on_train_begin         0  0
    on_epoch_begin         0  0
    on_step_begin          0  0
    on_substep_end         0  0
    on_pre_optimizer_step  0  0
    on_optimizer_step      0  0
    on_step_end            1  0.3333  L
    on_log                 1  0.3333  -    logs
    on_step_begin          1  0.3333
    on_substep_end         1  0.3333
    on_pre_optimizer_step  1  0.3333
    on_optimizer_step      1  0.3333
    on_step_end            2  0.6667  SVL
    on_log                 2  0.6667  SV   logs
    on_prediction_step     2  0.6667  SV
    on_log                 2  0.6667  SV   logs
    on_evaluate            2  0.6667  S    metrics
    on_save                2  0.6667
    on_step_begin          2  0.6667
    on_substep_end         2  0.6667
    on_pre_optimizer_step  2  0.6667
    on_optimizer_step      2  0.6667
    on_step_end            3  1       TSVL
    on_log                 3  1       TSV  logs
    on_prediction_step     3  1       TSV
    on_log                 3  1       TSV  logs
    on_evaluate            3  1       TS   metrics
    on_save                3  1       T
    on_epoch_end           3  1       T
    on_log                 3  1       T    logs
    on_train_end           3  1       T
    on_prediction_step     3  1       T
    on_log                 3  1       T    logs
    on_evaluate            3  1       T    metrics
    on_prediction_step     3  1       T
    on_predict             3  1       T    metrics
"""

SPEED = {"runtime", "samples_per_second", "steps_per_second"}
LOSS_KEYS = {"epoch", "grad_norm", "learning_rate", "loss", "step"}
EVAL_KEYS = {"epoch", "eval_loss", *(f"eval_{name}" for name in SPEED)}
TRAIN_KEYS = {"epoch", "train_loss", *(f"train_{name}" for name in SPEED)}
PREDICT_KEYS = {"test_loss", *(f"test_{name}" for name in SPEED)}
LOG_KEYS = [
    LOSS_KEYS,
    LOSS_KEYS,
    EVAL_KEYS | {"step"},
    LOSS_KEYS,
    EVAL_KEYS | {"step"},
    TRAIN_KEYS | {"step", "total_flos"},
    EVAL_KEYS | {"step"},
]

STATE_KEYS = {
    "best_global_step",
    "best_metric",
    "best_model_checkpoint",
    "epoch",
    "eval_steps",
    "global_step",
    "is_hyper_param_search",
    "is_local_process_zero",
    "is_world_process_zero",
    "log_history",
    "logging_steps",
    "max_steps",
    "num_input_tokens_seen",
    "num_train_epochs",
    "save_steps",
    "stateful_callbacks",
    "total_flos",
    "train_batch_size",
    "trial_name",
    "trial_params",
}
MODEL_FILES = {"config.json", "generation_config.json", "model.safetensors", "training_args.bin"}
RESUME_FILES = {"optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json"}


def expected_trace() -> list[tuple[str, int, float, str, set[str]]]:
    events = []
    for line in TRACE.strip().splitlines():
        name, step, epoch, flags, extra = [*line.split(), "-", "-"][:5]
        events.append((name, int(step), float(epoch), flags.strip("-"), {extra} - {"-"}))
    return events


def recorder(base: type, trace: list[Any]) -> Any:
    """A callback of the library's own base class that notes down every event."""

    def hook(name: str) -> Any:
        def note(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            flags = "".join(letter for letter, flag in FLAGS.items() if getattr(control, flag))
            trace.append((name, state.global_step, round(float(state.epoch), 4), flags, set(kwargs)))

        return note

    return type("Recorder", (base,), {name: hook(name) for name in HOOKS})()


class Run:
    """The observed run in one library, with everything that the tests below look at."""

    def __init__(self, library: Any, folder: Path) -> None:
        self.folder, self.trace = folder, []
        data = rows.tokens(12)
        arguments = library.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            num_train_epochs=1,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_steps=2,
            per_device_eval_batch_size=16,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = library.Trainer(
            model=models.gpt2(),
            args=arguments,
            train_dataset=data,
            eval_dataset=data,
            callbacks=[recorder(library.TrainerCallback, self.trace)],
        )
        self.result = trainer.train()
        self.evaluated = trainer.evaluate()
        self.predicted = trainer.predict(data).metrics
        trainer.save_metrics("train", self.result.metrics)
        trainer.save_state()
        trainer.save_model(str(folder / "final"))
        self.log = trainer.state.log_history

    def files(self, name: str = ".") -> set[str]:
        return {path.name for path in (self.folder / name).iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(kunren, tmp_path_factory.mktemp("kunren"))


def test_trace_is_that_of_the_transformers_that_is_installed(tmp_path: Path) -> None:
    """The pinned trace is kept honest: it must be what transformers does today."""
    assert Run(transformers, tmp_path).trace == [
        (name, step, epoch, flags, ALWAYS | extra) for name, step, epoch, flags, extra in expected_trace()
    ]


def test_names_and_order(ours: Run) -> None:
    assert [event[0] for event in ours.trace] == [event[0] for event in expected_trace()]


def test_steps_epochs_and_flags(ours: Run) -> None:
    assert [event[:4] for event in ours.trace] == [event[:4] for event in expected_trace()]


def test_keywords(ours: Run) -> None:
    for number, (got, wanted) in enumerate(zip(ours.trace, expected_trace(), strict=True)):
        # where the time of the logged steps went, and which set is evaluated
        more = {"on_log": {"account"}, "on_prediction_step": {"metric_key_prefix"}}.get(got[0], set())
        assert got[4] == ALWAYS | wanted[4] | more, f"event {number}, {got[0]}"


def test_keys_of_the_log(ours: Run) -> None:
    assert [set(entry) for entry in ours.log] == LOG_KEYS
    assert [entry["step"] for entry in ours.log] == [1, 2, 2, 3, 3, 3, 3]


def test_learning_rate_is_that_of_the_step_just_done(ours: Run) -> None:
    rates = [entry["learning_rate"] for entry in ours.log if "learning_rate" in entry]
    assert rates == [5e-05, 3.3333333333333335e-05, 1.6666666666666667e-05]


def test_keys_of_the_results(ours: Run) -> None:
    assert TRAIN_KEYS - {"epoch"} <= set(ours.result.metrics)
    assert set(ours.evaluated) == EVAL_KEYS
    assert set(ours.predicted) == PREDICT_KEYS


@pytest.mark.parametrize("step", [2, 3])
def test_files_of_a_checkpoint(ours: Run, step: int) -> None:
    files = ours.files(f"checkpoint-{step}")
    assert files >= MODEL_FILES | RESUME_FILES
    assert not {name for name in files if name.endswith((".tmp", ".part")) or name.startswith(".")}


def test_folders_and_files_of_the_run(ours: Run) -> None:
    folders = {path.name for path in ours.folder.iterdir() if path.is_dir()}
    assert {name for name in folders if re.fullmatch(r"checkpoint-\d+", name)} == {"checkpoint-2", "checkpoint-3"}
    assert ours.files() >= {"all_results.json", "train_results.json", "trainer_state.json"}
    assert ours.files("final") >= MODEL_FILES


def test_keys_of_the_saved_state(ours: Run) -> None:
    for path in ("checkpoint-3/trainer_state.json", "trainer_state.json"):
        state = json.loads((ours.folder / path).read_text())
        assert set(state) >= STATE_KEYS, path
        assert state["global_step"] == 3
    saved = json.loads((ours.folder / "checkpoint-2/trainer_state.json").read_text())
    assert [set(entry) for entry in saved["log_history"]] == LOG_KEYS[:3]


def test_saved_model_is_read_by_transformers(ours: Run) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(ours.folder / "final")
    assert type(model).__name__ == "GPT2LMHeadModel"


@pytest.mark.parametrize(
    ("first", "second"), [(transformers, kunren), (kunren, transformers)], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_either_library_goes_on_from_the_others_checkpoint(
    first: Any, second: Any, weight_decay: float, tmp_path: Path
) -> None:
    """The same files under the same names with the same contents lead to the same weights."""
    arguments = {"max_steps": 9, "save_strategy": "steps", "save_steps": 4, "weight_decay": weight_decay}
    whole = train(transformers, tmp_path / "whole", models.Points(0.3), rows.points(), arguments)
    train(first, tmp_path, models.Points(0.3), rows.points(), arguments)
    trainer = second.Trainer(
        model=models.Points(0.3),
        args=second.TrainingArguments(output_dir=str(tmp_path / "resumed"), **{**DEFAULTS, **arguments}),
        train_dataset=rows.points(),
    )
    trainer.train(resume_from_checkpoint=str(tmp_path / first.__name__ / "checkpoint-4"))
    assert trainer.state.global_step == 9
    assert_same_weights(whole.weights, dict(trainer.model.state_dict()))
