"""What test_trl_sft.py has both libraries do; nothing here knows on which of them it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerCallback, TrainingArguments
from trl import BEMACallback, RichProgressCallback, SFTConfig, SFTTrainer

from downstream.models import llama, tokenizer, words
from downstream.runner import digest, outcome

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_train_epochs": 2,
    "learning_rate": 5e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
}


def rows(kind: str, count: int = 24) -> Dataset:
    """Rows of unequal lengths: running text, prompt and completion, or conversations."""
    lengths = [(3 + index * 5 % 4, 2 + index * 3 % 7) for index in range(count)]
    pairs = [(words(index, ask), words(index + 1, answer)) for index, (ask, answer) in enumerate(lengths)]
    if kind == "text":
        return Dataset.from_list([{"text": f"{ask} {answer}"} for ask, answer in pairs])
    if kind == "completion":
        return Dataset.from_list([{"prompt": ask, "completion": " " + answer} for ask, answer in pairs])
    assert kind == "chat"
    return Dataset.from_list(
        [
            {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
            for ask, answer in pairs
        ]
    )


def trainer(folder: Path, kind: str = "text", dropout: float = 0.0, evaluates: bool = False, **settings: Any) -> Any:
    return SFTTrainer(
        model=llama(dropout),
        args=SFTConfig(output_dir=str(folder / "run"), **{**SETTINGS, **settings}),
        train_dataset=rows(kind),
        eval_dataset=rows(kind, 10) if evaluates else None,
        processing_class=tokenizer(),
    )


def train(folder: Path, **options: Any) -> Any:
    made = trainer(folder, **options)
    return outcome(made, made.train())


def resume(folder: Path, **options: Any) -> Any:
    """A training to its end, and one that goes on from the checkpoint in its middle."""
    return resumed(folder, trainer, **options)


def resumed(folder: Path, build: Any, **options: Any) -> Any:
    first = build(folder, save_strategy="epoch", **options)
    undisturbed = outcome(first, first.train())
    steps = first.state.global_step // 2
    torch.manual_seed(123)
    second = build(folder, save_strategy="epoch", **options)
    going_on = second.train(resume_from_checkpoint=str(folder / "run" / f"checkpoint-{steps}"))
    return {"undisturbed": undisturbed, "resumed": outcome(second, going_on), "steps": steps}


def best_model(folder: Path) -> Any:
    """The best checkpoint by a metric of TRL's own, loaded at the end, and what the folder then holds."""
    made = trainer(
        folder,
        evaluates=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        num_train_epochs=3,
        load_best_model_at_end=True,
        metric_for_best_model="eval_mean_token_accuracy",
        greater_is_better=True,
        save_total_limit=1,
    )
    result = outcome(made, made.train())
    card = (folder / "run" / "README.md").read_text()
    loaded = AutoModelForCausalLM.from_pretrained(str(folder / "run" / f"checkpoint-{made.state.best_global_step}"))
    return {
        **result,
        "card": [line for line in card.splitlines() if "generated_from" in line or "sft" in line],
        "loaded": {name: digest(value) for name, value in loaded.named_parameters()},
    }


def evaluate_rows(folder: Path) -> Any:
    """`evaluate()` before and after a training, of rows that TRL has to tokenise, of several sets, of one by name."""
    made = trainer(folder, kind="completion", evaluates=True)
    before = made.evaluate()
    made.train()
    sets = {"short": rows("completion", 4), "long": rows("completion", 12)}
    return {
        "before": before,
        "after": made.evaluate(),
        "given": made.evaluate(rows("completion", 7)),
        "several": made.evaluate(sets),
        "log": made.state.log_history,
        "is_training": made.model.training,
    }


def plain_arguments(folder: Path) -> Any:
    """transformers' TrainingArguments, which SFTTrainer makes its own of."""
    made = SFTTrainer(
        model=llama(),
        args=TrainingArguments(output_dir=str(folder / "run"), **SETTINGS),
        train_dataset=rows("text"),
        processing_class=tokenizer(),
    )
    return {**outcome(made, made.train()), "args": type(made.args).__name__, "max_length": made.args.max_length}


def stream(folder: Path, **settings: Any) -> Any:
    """Rows from an iterable data set, whose length nobody knows."""
    made = SFTTrainer(
        model=llama(),
        args=SFTConfig(output_dir=str(folder / "run"), **{**SETTINGS, "max_steps": 5, **settings}),
        train_dataset=rows("text").to_iterable_dataset(),
        processing_class=tokenizer(),
    )
    return outcome(made, made.train())


def with_callbacks(folder: Path) -> Any:
    """TRL's callbacks beside the training: what they have heard, and what they leave."""
    made = trainer(folder, evaluates=True, eval_strategy="epoch")
    bema = BEMACallback(update_freq=2, update_after=1)
    heard = Heard()
    for callback in (bema, RichProgressCallback(), heard):
        made.add_callback(callback)
    made.remove_callback(PrinterCallback)
    result = outcome(made, made.train())
    smoothed = AutoModelForCausalLM.from_pretrained(str(folder / "run" / "bema"))
    return {
        **result,
        "heard": heard.events,
        "bema": {name: digest(value) for name, value in smoothed.named_parameters()},
    }


class Heard(TrainerCallback):
    """The events of a run, with what an event is told beside arguments, state and control."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        self.events.append(["train_begin", state.global_step, told["model"].training, sorted(told)])

    def on_evaluate(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        named = sorted(name for name in told["metrics"] if not name.endswith(("_second", "_runtime")))
        self.events.append(["evaluate", state.global_step, told["model"].training, named])

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **told: Any) -> None:
        self.events.append(["log", state.global_step, "loss" in logs, "mean_token_accuracy" in logs])

    def on_train_end(self, args: Any, state: Any, control: Any, **told: Any) -> None:
        self.events.append(["train_end", state.global_step])


def json_arguments(folder: Path) -> Any:
    """Arguments as a command line gives them."""
    args = SFTConfig(
        output_dir=str(folder),
        model_init_kwargs='{"dtype": "float32", "attn_implementation": "eager"}',
        dataset_kwargs='{"skip_prepare_dataset": true}',
        lr_scheduler_kwargs='{"num_cycles": 2}',
        lr_scheduler_type="cosine_with_restarts",
        use_cpu=True,
    )
    read = (args.model_init_kwargs, args.dataset_kwargs, args.lr_scheduler_kwargs, args.bf16, args.logging_steps)
    return list(read)


def with_advice(folder: Path) -> Any:
    """Arguments that make TRL warn before it makes its Trainer, by a logger of Accelerate's that wants a state."""
    made = trainer(folder, model_init_kwargs={"dtype": "float32"})
    return outcome(made, made.train())
