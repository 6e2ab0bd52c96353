"""A run that is resumed with other arguments: what takes effect, and what is refused because it cannot be done rightly.

Refused is what would go on without an error and give something that is neither the old run nor the new one: examples
seen twice, or moments of one optimizer read by another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kunren.arguments.dataloading import ORDERS_BY_LENGTH, row_order
from kunren.arguments.fsdp import DEFAULTS as FSDP_DEFAULTS
from kunren.base.text_table import text_table

# What leaves the numbers of training and what is kept of them as they are. Names that stand nowhere in this file (of a
# subclass of TrainingArguments, of another version) are reported: nobody here knows what they do.
_SILENT_NAMES = """
    output_dir run_name project report_to trackio_space_id trackio_bucket_id trackio_static_space_id disable_tqdm debug
    log_level log_level_replica log_on_each_node logging_first_step logging_nan_inf_filter run_report
    peak_tflops profile_steps include_num_input_tokens_seen
    skip_memory_metrics push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    do_train do_eval do_predict resume_from_checkpoint async_save save_on_each_node enable_jit_checkpoint
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    dataloader_multiprocessing_context per_device_eval_batch_size eval_accumulation_steps eval_do_concat_batches
    eval_use_gather_object prediction_loss_only include_for_metrics batch_eval_metrics metrics activation_checkpointing
    activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs use_cache
    torch_empty_cache_steps auto_find_batch_size nonfinite nonfinite_limit local_rank
    ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers
    ddp_static_graph ddp_backend ddp_timeout watchdog_minutes
"""
_SILENT = frozenset(_SILENT_NAMES.split())
_OF_STATE = frozenset({"optim", "optim_args", "optim_target_modules"})
_OF_GROUPS = frozenset({"parameter_groups", "layer_decay", "learning_rate", "weight_decay"})
_OF_OPTIMIZER = _OF_STATE | {
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "parameter_groups",
    "layer_decay",
}
_OF_SCHEDULE = frozenset({"learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps"})
# They choose among implementations of one algorithm, whose states are the same.
_SAME_OPTIMIZER = frozenset({"adamw_torch", "adamw_torch_fused", "adamw_torch_xla", "adamw_torch_npu_fused"})
# Where these stand depends on metrics and losses, not on the step alone.
_STATEFUL_SCHEDULES = frozenset({"reduce_lr_on_plateau", "greedy"})
_COUNTS_ONLY_WITH = {
    "save_steps": ("save_strategy", "steps"),
    "eval_steps": ("eval_strategy", "steps"),
    "logging_steps": ("logging_strategy", "steps"),
}
_STATE = (
    "the saved state of the optimizer or schedule belongs to the old value. Set it back, or begin a new run from these "
    "weights (load the model from the checkpoint, resume_from_checkpoint=False)"
)
_ORDER = (
    "in the middle of an epoch another order repeats some examples and leaves out others. Set it back, resume from the "
    "end of an epoch, or begin the epoch again with ignore_data_skip=True"
)
_NOTES = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "gradient_accumulation_steps"), "the epoch goes on at the next sample"
    ),
    **dict.fromkeys(("seed", "data_seed", "train_sampling_strategy"), "from the next epoch on"),
    "lr_scheduler_type": "the rate is that of the new schedule at this step",
    "ignore_data_skip": "the epoch begins again",
    "mixture_weights": "from the next epoch on",
}


@dataclass(frozen=True)
class Change:
    """One argument that differs. `refusal` is the reason why the run cannot be resumed with it, and the remedy."""

    name: str
    saved: Any
    now: Any
    refusal: str | None = None

    @property
    def effect(self) -> str:
        if self.refusal is not None:
            return f"refused: {self.refusal}"
        return "takes effect" + (f": {_NOTES[self.name]}" if self.name in _NOTES else "")


def compare(
    saved: Mapping[str, Any] | None,
    now: Mapping[str, Any],
    *,
    mid_epoch: bool = True,
    has_optimizer: bool = True,
    own_optimizer: bool = False,
    own_schedule: bool = False,
) -> list[Change]:
    """What differs between a checkpoint's arguments (None: nobody knows) and those of now, in the order of `now`.

    `mid_epoch`: the checkpoint stands inside an epoch. `has_optimizer`: its optimizer and schedule are restored.
    `own_optimizer`, `own_schedule`: the user made it, so the arguments that describe kunren's say nothing.
    """
    if saved is None:
        return []
    changes = []
    for name in now:
        if name not in saved or _same(saved[name], now[name]) or _without_effect(name, saved, now):
            continue
        if (own_optimizer and name in _OF_OPTIMIZER) or (own_schedule and name in _OF_SCHEDULE):
            continue
        refusal = None
        if mid_epoch and not now.get("ignore_data_skip") and _reorders(name, saved, now):
            refusal = _ORDER
        elif has_optimizer and _belongs_to_state(name, saved, now):
            refusal = _STATE
        changes.append(Change(name, saved[name], now[name], refusal))
    return changes


def table(changes: Iterable[Change]) -> str:
    """The changes in columns: argument, then, now, what comes of it. Of dicts, what differs in them."""
    rows = []
    for change in changes:
        both = change.saved, change.now
        if change.name == "fsdp_config":  # filled in with what nobody has asked for
            both = _without_defaults(change.saved), _without_defaults(change.now)
        rows.append((change.name, *map(repr, _apart(*both)), change.effect))
    return text_table(("argument", "checkpoint", "now", "effect"), rows)


def check(changes: Iterable[Change], checkpoint: str | Path) -> None:
    """ValueError that names every refused argument with its old value, its new one and the remedy."""
    refused = [change for change in changes if change.refusal is not None]
    if refused:
        listed = "; ".join(f"{one.name} was {one.saved!r} and is {one.now!r}: {one.refusal}" for one in refused)
        raise ValueError(f"{checkpoint} cannot be resumed with other arguments. {listed}.")


def _apart(saved: Any, now: Any) -> tuple[Any, Any]:
    """Two dicts without what they have in common; anything else as it is."""
    if not (isinstance(saved, Mapping) and isinstance(now, Mapping)):
        return saved, now
    differing = [
        name for name in {**saved, **now} if name not in saved or name not in now or not _same(saved[name], now[name])
    ]
    first, second = ({name: one[name] for name in differing if name in one} for one in (saved, now))
    return first, second


def _without_defaults(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    return {name: value for name, value in config.items() if name not in FSDP_DEFAULTS or value != FSDP_DEFAULTS[name]}


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # arrays and tensors do not answer with one truth value
        return repr(one) == repr(other)


def _without_effect(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if name in _SILENT:
        return True
    if name in _COUNTS_ONLY_WITH:
        switch, value = _COUNTS_ONLY_WITH[name]
        return bool(now.get(switch) != value)
    if name in ("seed", "data_seed"):  # the model's random numbers go on from the checkpoint, whatever the seed
        return bool(_data_seed(saved) == _data_seed(now))
    if name == "length_column_name":
        return _order(now) not in ORDERS_BY_LENGTH
    if name in ("batching", "train_sampling_strategy"):  # two names for the same thing
        return _order(saved) == _order(now) and "packed" not in (saved.get("batching"), now.get("batching"))
    if name == "num_train_epochs":
        return all(arguments.get("max_steps", 0) > 0 for arguments in (saved, now))
    return False


def _belongs_to_state(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if name in _OF_GROUPS and _division(saved) != _division(now):
        return True
    if name in ("lr_scheduler_type", "lr_scheduler_kwargs", "learning_rate"):
        return bool({saved.get("lr_scheduler_type"), now.get("lr_scheduler_type")} & _STATEFUL_SCHEDULES)
    return name in _OF_STATE and not (name == "optim" and {saved[name], now[name]} <= _SAME_OPTIMIZER)


def _division(arguments: Mapping[str, Any]) -> Any:
    """Which parameters the rules tell apart: the moments are saved group by group, whatever the numbers are."""
    rules = arguments.get("parameter_groups") or []
    if not rules and arguments.get("layer_decay") is None:
        return None
    rate, decay = arguments.get("learning_rate"), arguments.get("weight_decay")
    options = [(False, rate, decay), (False, rate, 0)]
    for rule in rules:
        own = rule.get("learning_rate")
        told = (own is not None and own != rate, rate if own is None else own)
        options += [(*told, rule.get("weight_decay", decay)), (*told, 0)]
    return (
        [rule["pattern"] for rule in rules],
        [options.index(one) for one in options],
        arguments.get("layer_decay") in (None, 1),
    )


def _reorders(name: str, saved: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    order = _order(now)
    if name == "per_device_train_batch_size":  # rows of like length are put together for batches of one size
        return order in ORDERS_BY_LENGTH
    if name == "gradient_accumulation_steps":
        return order == "batch_rebalance"
    if name in ("batching", "train_sampling_strategy"):
        return _order(saved) != order
    return name in ("seed", "data_seed", "length_column_name", "token_budget", "mixture_weights")


def _order(arguments: Mapping[str, Any]) -> str:
    return row_order(arguments.get("batching", "padded"), arguments.get("train_sampling_strategy", "random"))


def _data_seed(arguments: Mapping[str, Any]) -> Any:
    chosen = arguments.get("data_seed")
    return chosen if chosen is not None else arguments.get("seed")
