"""Runs with DeepSpeed in the ranks of these tests, and what they leave."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import Noting, Rows, Stopping, Tagger, arguments
from kunren import Trainer

ADAMW = {
    "optim": "adamw_torch",
    "weight_decay": 0.1,
    "learning_rate": 0.01,
    "warmup_steps": 2,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0.5,
}
STAGES = (1, 2, 3)


def config_of(stage: int, **more: Any) -> dict[str, Any]:
    section = {"stage": stage, **more.pop("zero", {})}
    return {"zero_optimization": section, "train_batch_size": "auto", "gradient_clipping": "auto", **more}


def divided(folder: Path, deepspeed: Any, **options: Any) -> dict[str, Any]:
    """A run, what it leaves, and how much of it lies in this process."""
    resume, evaluates = options.pop("resume", None), options.pop("evaluates", 0)
    data, noting = Rows(options.pop("rows", 50), options.pop("ragged", True)), Noting()
    callbacks = [Stopping(step)] if (step := options.pop("stop_at", None)) else []
    if options.pop("empty_rank", False):
        options["train_sampling_strategy"] = "sequential"
        data.without_labels = {row for row in range(len(data)) if row % 8 >= 4 and row < 32}
    trainer = Trainer(
        Tagger(dropout=options.pop("dropout", 0.0)),
        arguments(folder, deepspeed=deepspeed, **options),
        train_dataset=data,
        eval_dataset=Rows(evaluates) if evaluates else None,
        callbacks=[noting, *callbacks],
    )
    output = trainer.train(resume_from_checkpoint=resume)
    engine = trainer.engine
    here = sum(getattr(weight, "ds_tensor", weight).numel() for weight in trainer.model.parameters())
    result = {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "evaluations": [log["eval_loss"] for log in noting.logs if "eval_loss" in log],
        "rates": [log["learning_rate"] for log in noting.logs if "learning_rate" in log],
        "reported": [],
        "weights": whole_weights(trainer),
        "numbers_in_optimizer": numbers_in(engine.optimizer.state if deepspeed else trainer.optimizer.state),
        "numbers_in_model": here,
        "train_loss": output.training_loss,
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "best": trainer.state.best_model_checkpoint,
    }
    if evaluates:
        result["predictions"] = trainer.predict(Rows(evaluates)).predictions
    trainer.save_model(str(folder / "model"))
    return result


def whole_weights(trainer: Any) -> list[Any]:
    weights = list(trainer.model.parameters())
    if hasattr(weights[0], "ds_id"):
        with importlib.import_module("deepspeed").zero.GatheredParameters(weights):
            return [weight.detach().float().clone().numpy() for weight in weights]
    return [weight.detach().float().clone().numpy() for weight in weights]


def numbers_in(state: Any) -> int:
    """In moments; counts of steps are single."""
    values = [value for one in state.values() for value in one.values() if isinstance(value, torch.Tensor)]
    return sum(value.numel() for value in values if value.numel() > 1)


def each(tasks: list[Callable[[], Any]]) -> list[Any]:
    """Several runs in the same processes: DeepSpeed takes seconds to import."""
    return [task() for task in tasks]


def divided_alone(folder: Path, **options: Any) -> dict[str, Any]:
    """In one process without DeepSpeed."""
    result: dict[str, Any] = run_ranks(partial(divided, folder, None, **options), ranks=1)[0]
    return result
