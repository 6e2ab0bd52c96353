"""Every argument name that transformers has had and dropped: what it is called now, and how it still reads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kunren.arguments.conversion import to_bool, to_float

Translation = Callable[[Any, Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class LegacyName:
    """`default` is what the name had when nobody set it; `translate` gives today's keywords, None if there are none."""

    now: str
    default: Any = None
    translate: Translation | None = None
    read: Callable[[Any], Any] | None = None


def _renamed(new: str, default: Any = None) -> LegacyName:
    return LegacyName(new, default, lambda value, given: {new: value}, lambda args: getattr(args, new))


def _switch(name: str, now: str, keywords: Mapping[str, Any], read: Callable[[Any], Any]) -> LegacyName:
    return LegacyName(now, False, lambda value, given: keywords if to_bool(name, value) else {}, read)


def _entry(target: str, key: str, default: Any = None) -> LegacyName:
    """A name that has become a key of a dict."""
    return LegacyName(f"{target}={{'{key}': ...}}", default, lambda value, given: {target: {key: value}})


def _without_effect(reason: str, default: Any = None) -> LegacyName:
    return LegacyName(f"no effect: {reason}", default)


def _warmup_share(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    # As in transformers 4, a number of steps goes before a share.
    if to_float("warmup_steps", given.get("warmup_steps") or 0) > 0:
        return {}
    share = to_float("warmup_ratio", value)
    if not 0 <= share <= 1:
        raise ValueError(f"warmup_ratio={value!r} cannot work: it must be a share of the run, between 0 and 1.")
    # warmup_steps reads 1 as one step: the whole run is the share just below 1.
    return {"warmup_steps": math.nextafter(1.0, 0.0) if share == 1 else share}


def _repository(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The old pair of organisation and model, either of which may be missing, as one 'organisation/model'."""
    organisation = given.get("push_to_hub_organization")
    model = given.get("push_to_hub_model_id")
    if not organisation:
        return {"hub_model_id": model}
    output_dir = os.fspath(given.get("output_dir") or "trainer_output")
    model = model or given.get("hub_model_id") or os.path.basename(os.path.abspath(output_dir))
    return {"hub_model_id": model if "/" in model else f"{organisation}/{model}"}


def _sharded(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """fairscale's words: 'simple' and 'zero_dp_2' sharded all but the weights, 'zero_dp_3' the weights as well."""
    if value is False:
        return {}
    words = (value if isinstance(value, str) else "simple" if value is True else " ".join(value)).split()
    today = {"simple": "shard_grad_op", "zero_dp_2": "shard_grad_op", "zero_dp_3": "full_shard"}
    return {"fsdp": " ".join(today.get(word, word) for word in words)}


_LAUNCHER = "the launcher's environment says it"

LEGACY_NAMES: dict[str, LegacyName] = {
    "evaluation_strategy": _renamed("eval_strategy"),
    "no_cuda": _renamed("use_cpu", False),
    "per_gpu_train_batch_size": _renamed("per_device_train_batch_size"),
    "per_gpu_eval_batch_size": _renamed("per_device_eval_batch_size"),
    "push_to_hub_token": _renamed("hub_token"),
    "xpu_backend": _renamed("ddp_backend"),
    "push_to_hub_model_id": LegacyName("hub_model_id", None, _repository, lambda args: args.hub_model_id),
    "push_to_hub_organization": LegacyName("hub_model_id='organization/name'", None, _repository),
    "warmup_ratio": LegacyName(
        "warmup_steps, as a float below 1",
        None,
        _warmup_share,
        lambda args: args.warmup_steps if args.warmup_steps < 1 else 0.0,
    ),
    "group_by_length": _switch(
        "group_by_length",
        "train_sampling_strategy='group_by_length'",
        {"train_sampling_strategy": "group_by_length"},
        lambda args: args.train_sampling_strategy == "group_by_length",
    ),
    "adafactor": _switch(
        "adafactor", "optim='adafactor'", {"optim": "adafactor"}, lambda args: args.optim == "adafactor"
    ),
    "tpu_metrics_debug": _switch(
        "tpu_metrics_debug",
        "debug='tpu_metrics_debug'",
        {"debug": ["tpu_metrics_debug"]},
        lambda args: "tpu_metrics_debug" in args.debug,
    ),
    "include_inputs_for_metrics": _switch(
        "include_inputs_for_metrics",
        "include_for_metrics=['inputs']",
        {"include_for_metrics": ["inputs"]},
        lambda args: "inputs" in args.include_for_metrics,
    ),
    "include_tokens_per_second": _switch(
        "include_tokens_per_second",
        "include_num_input_tokens_seen='all'",
        {"include_num_input_tokens_seen": "all"},
        lambda args: args.include_num_input_tokens_seen != "no",
    ),
    "jit_mode_eval": _switch(
        "jit_mode_eval", "torch_compile=True", {"torch_compile": True}, lambda args: args.torch_compile
    ),
    "torchdynamo": LegacyName(
        "torch_compile_backend",
        None,
        lambda value, given: {"torch_compile_backend": value},
        lambda args: args.torch_compile_backend,
    ),
    "sharded_ddp": LegacyName("fsdp=True with fsdp_config", "", _sharded),
    "fsdp_min_num_params": _entry("fsdp_config", "min_num_params", 0),
    "fsdp_transformer_layer_cls_to_wrap": _entry("fsdp_config", "transformer_layer_cls_to_wrap"),
    "dispatch_batches": _entry("accelerator_config", "dispatch_batches"),
    "split_batches": _entry("accelerator_config", "split_batches"),
    "logging_dir": LegacyName("the tracker's own setting (TENSORBOARD_LOGGING_DIR); TensorBoard still reads it"),
    "save_safetensors": _without_effect("weights are always written as safetensors", True),
    "overwrite_output_dir": _without_effect("your script decides that; it can read args.overwrite_output_dir", False),
    "fp16_opt_level": _without_effect("apex is gone, fp16=True uses torch's autocast", "O1"),
    "fp16_backend": _without_effect("fp16 and bf16 use torch's autocast", "auto"),
    "half_precision_backend": _without_effect("fp16 and bf16 use torch's autocast", "auto"),
    "use_ipex": _without_effect("torch has these kernels itself", False),
    "use_mps_device": _without_effect("the device is found automatically; use_cpu=True avoids it", False),
    "tpu_num_cores": _without_effect(_LAUNCHER),
    "mp_parameters": _without_effect(_LAUNCHER, ""),
    "past_index": _without_effect("outputs are not carried over between batches", -1),
    "ray_scope": _without_effect("give scope= to hyperparameter_search", "last"),
    "tp_size": _without_effect("use parallelism_config", 0),
    "use_legacy_prediction_loop": _without_effect("there is one evaluation loop", False),
    "place_model_on_device": _without_effect("override the property place_model_on_device in a subclass", True),
}

# Assigning to one of these on finished arguments sets today's attribute.
RENAMED = {name: entry.now for name, entry in LEGACY_NAMES.items() if entry.now.isidentifier()}
