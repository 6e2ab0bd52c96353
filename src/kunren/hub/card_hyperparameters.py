"""The settings that made a model what it is, as a card lists them: what was used, not what was asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

# Listed where they differ from their defaults.
_IF_SET = (
    "optim_args",
    "lr_scheduler_kwargs",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "gradient_checkpointing",
    "torch_compile",
    "data_seed",
    "train_sampling_strategy",
    "batching",
    "tf32",
)


def hyperparameters(trainer: Any) -> dict[str, Any]:
    """Name and value, in the order in which they are shown; the names are those of transformers' cards."""
    args = trainer.args
    per_step = args.train_batch_size * trainer.engine.data_place[0] * args.gradient_accumulation_steps
    found = {
        **_learning_rate(trainer),
        "train_batch_size": args.train_batch_size,
        "eval_batch_size": args.eval_batch_size,
        "seed": args.seed,
        **_distribution(trainer),
    }
    if args.gradient_accumulation_steps > 1:
        found["gradient_accumulation_steps"] = args.gradient_accumulation_steps
    if per_step != args.train_batch_size:
        found["total_train_batch_size"] = per_step
    if args.eval_batch_size * trainer.engine.data_place[0] != args.eval_batch_size:
        found["total_eval_batch_size"] = args.eval_batch_size * trainer.engine.data_place[0]
    found |= {"optimizer": _optimizer(trainer), **_schedule(trainer)}
    if args.max_steps > 0:
        found["training_steps"] = args.max_steps
    else:
        found["num_epochs"] = args.num_train_epochs
    if args.fp16 or args.bf16:
        found["mixed_precision_training"] = "fp16" if args.fp16 else "bf16"
    defaults = {item.name: item.default for item in dataclasses.fields(args)}
    for name in _IF_SET:
        value = getattr(args, name, None)
        if value not in (None, "", False, {}, []) and value != defaults.get(name):
            found[name] = getattr(value, "value", value)
    return found


def _is_given(trainer: Any, what: str) -> bool:
    """Whether the optimizer, or the schedule, came from the script, so that the arguments do not describe it."""
    object_ = trainer.optimizer if what == "optimizer" else trainer.lr_scheduler
    return object_ is not None and not getattr(trainer, f"_made_{what}")


def _learning_rate(trainer: Any) -> dict[str, Any]:
    if _is_given(trainer, "optimizer"):
        groups = trainer.optimizer.param_groups
        rates = list(dict.fromkeys(group.get("initial_lr", group["lr"]) for group in groups if "lr" in group))
        return {"learning_rate": rates[0] if len(rates) == 1 else rates} if rates else {}
    return {"learning_rate": trainer.args.learning_rate}


def _optimizer(trainer: Any) -> str:
    args = trainer.args
    if _is_given(trainer, "optimizer"):
        return f"{type(trainer.optimizer).__name__}, given by the script"
    if trainer.optimizer_cls_and_kwargs is not None:
        kind, keywords = trainer.optimizer_cls_and_kwargs
        return (
            f"{kind.__name__} with {', '.join(f'{key}={value}' for key, value in keywords.items()) or 'its defaults'}"
        )
    name = str(getattr(args.optim, "value", args.optim))
    if "adam" in name:
        return f"{name} with betas=({args.adam_beta1},{args.adam_beta2}) and epsilon={args.adam_epsilon}"
    return name


def _schedule(trainer: Any) -> dict[str, Any]:
    args = trainer.args
    if _is_given(trainer, "scheduler"):
        return {"lr_scheduler_type": f"{type(trainer.lr_scheduler).__name__}, given by the script"}
    found = {"lr_scheduler_type": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))}
    return found | ({"lr_scheduler_warmup_steps": args.warmup_steps} if args.warmup_steps else {})


def _distribution(trainer: Any) -> dict[str, Any]:
    args, spread = trainer.args, trainer.engine.spread_by
    if args.world_size <= 1 and args.n_gpu <= 1:
        return {}
    kinds = {"sharded": "FSDP", "deepspeed": "DeepSpeed", None: "DDP" if args.world_size > 1 else "DataParallel"}
    return {
        "distributed_type": kinds.get(spread, str(spread)),
        "num_devices": max(args.world_size, args.n_gpu),
    }
