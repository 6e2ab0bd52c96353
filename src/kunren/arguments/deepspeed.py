"""DeepSpeed's configuration: read from any form, "auto" filled from the arguments, contradictions named all at once.

What the arguments say and the configuration says again has to be the same: neither wins in silence.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import from_json, refuse
from kunren.arguments.deepspeed_keys import check_keys
from kunren.arguments.deepspeed_sections import (
    Contradiction,
    optimizer_contradictions,
    scheduler_contradictions,
)
from kunren.base.names import closest_name

# Top-level names of DeepSpeed 0.19, which takes no notice of those that it does not know.
_TOP_LEVEL = """
    activation_checkpointing aio amp autotuning bf16 bfloat16 checkpoint comet comms_logger communication_data_type
    compile csv_monitor data_efficiency data_types dataloader_drop_last datastates_ckpt disable_allgather
    disable_python_gc dump_state expert_parallel flops_profiler fp16 gradient_accumulation_steps gradient_allreduce_op
    gradient_clipping gradient_predivide_factor hybrid_engine log_level managed_gradient_accumulation memory_breakdown
    optimizer pipeline prescale_gradients scheduler seq_parallel_communication_data_type sequence_parallel_size
    sparse_gradients steps_per_print tensor_parallel tensorboard timers torch_autocast train_batch_size
    train_micro_batch_size_per_gpu use_data_before_expert_parallelism wall_clock_breakdown wandb weight_quantization
    zero_allow_untested_optimizer zero_force_ds_cpu_optimizer zero_optimization
"""
_NAMES = _TOP_LEVEL.split()
_REFUSED = {  # what would change the run behind kunren's back, or needs DeepSpeed's own loop
    "autotuning.enabled": "DeepSpeed's autotuner starts scripts of its own",
    "compile.deepcompile": "the compiler takes DeepSpeed's own backward pass",
    "data_efficiency.enabled": "kunren reads the data, not DeepSpeed's loader",
    "expert_parallel.enabled": "kunren does not divide experts among processes",
    "hybrid_engine.enabled": "its engine is another one, for generating while training",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's, also on the CPU: set it to false, or take it out",
    "zero_optimization.zenflow": "its optimizer steps at moments of its own",
}
_SOLE_VALUES = {
    "gradient_allreduce_op": "mean",
    "managed_gradient_accumulation": True,
    "sequence_parallel_size": 1,
    "tensor_parallel.autotp_size": 1,
}
_OF_HIDDEN_SIZE: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
_OWN_AUTO = ("data_types", "autotuning", "pipeline")  # sections in which DeepSpeed itself knows "auto"
_STAGES = (0, 1, 2, 3)
AUTO = "auto"


@dataclass(frozen=True)
class _Link:
    """A key that says what an argument says."""

    key: str
    argument: str
    value: Callable[[Any], Any]


def read_config(value: Any) -> dict[str, Any]:
    """The configuration that a dict, JSON text or a path holds; ValueError for what is not one."""
    held = from_json("deepspeed", value, read_path=True)
    if not isinstance(held, dict):
        raise refuse("deepspeed", value, "give a dict, JSON text, or the path of a JSON file.")
    config = copy.deepcopy(held)
    is_path = isinstance(value, os.PathLike) or (isinstance(value, str) and not value.lstrip().startswith("{"))
    source = f"deepspeed={os.fspath(value)!r}" if is_path else "deepspeed"
    for name in config:
        nearest = closest_name(name, _NAMES)
        if name not in _NAMES and nearest is not None:
            raise ValueError(f"{source}: {name!r} is no key of DeepSpeed's configuration. Did you mean {nearest!r}?")
    check_keys(config, source)
    return config


@dataclass(frozen=True)
class DeepSpeedPlugin:
    """The configuration by the names under which Accelerate's plugin has it."""

    deepspeed_config: dict[str, Any]

    @property
    def zero_stage(self) -> int:
        return stage_of(self.deepspeed_config)


def launched_config() -> dict[str, Any] | None:
    """What `accelerate launch --use_deepspeed` asks for, where the arguments ask for nothing."""
    told = os.environ.get
    if told("ACCELERATE_USE_DEEPSPEED", "false").lower() not in ("true", "1", "yes"):
        return None
    path = told("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if path.lower() != "none":
        return read_config(path)
    section: dict[str, Any] = {"stage": int(told("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))}
    for part in ("optimizer", "param"):
        device = told(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part.upper()}_DEVICE", "none").lower()
        if device != "none":
            section[f"offload_{part}"] = {"device": device}
            path = told(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part.upper()}_NVME_PATH", "none")
            if device == "nvme" and path.lower() != "none":
                section[f"offload_{part}"]["nvme_path"] = path
    if told("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "false").lower() == "true":
        section["stage3_gather_16bit_weights_on_model_save"] = True
    return {"zero_optimization": section}


def stage_of(config: dict[str, Any]) -> int:
    """The ZeRO stage; ValueError for one that there is not."""
    section = config.get("zero_optimization", {})
    if isinstance(section, bool):  # an older spelling
        return int(section)
    if not isinstance(section, dict):
        raise ValueError(f"deepspeed: zero_optimization={section!r} cannot work: give an object with a stage.")
    stage = section.get("stage", 0)
    if isinstance(stage, bool) or stage not in _STAGES:
        raise ValueError(
            f"deepspeed: zero_optimization.stage={stage!r} cannot work: 1 divides the optimizer's state among the "
            "processes, 2 the gradients as well, 3 the weights as well, and 0 nothing."
        )
    return int(stage)


def filled(config: dict[str, Any], args: Any, rows_together: int, world_size: int) -> dict[str, Any]:
    """The configuration without "auto"; a ValueError that lists every contradiction with the arguments.

    `rows_together`: of a micro-batch of all processes. What depends on the model stays "auto".
    """
    config = copy.deepcopy(config)
    stage = stage_of(config)
    if not isinstance(config.get("zero_optimization"), dict):
        config["zero_optimization"] = {"stage": stage}
    found = [*_refusals(config)]
    for link in _links(rows_together, world_size):
        found += _match(config, link, args)
    found += optimizer_contradictions(config, args)
    found += scheduler_contradictions(config, args)
    found += _precision(config, args)
    if found:
        raise ValueError(
            "The DeepSpeed configuration and the arguments contradict each other; set a key to 'auto' to take the "
            "argument's value:\n" + "\n".join(f"- {one}" for one in found)
        )
    left = [key for key in _autos(config) if key.rpartition(".")[2] not in _OF_HIDDEN_SIZE]
    if left:
        raise ValueError(f"deepspeed: no argument fills 'auto' in {', '.join(left)}: give a value, or take it out.")
    return config


def filled_for_model(config: dict[str, Any], model_config: Any) -> dict[str, Any]:
    """The sizes that follow from the width of the model; DeepSpeed's defaults where it has none."""
    section = config.get("zero_optimization")
    if not isinstance(section, dict):
        return config
    hidden = _hidden_size(model_config)
    section = dict(section)
    for name, size in _OF_HIDDEN_SIZE.items():
        if section.get(name) == AUTO:
            if hidden is None:
                del section[name]
            else:
                section[name] = size(hidden)
    return {**config, "zero_optimization": section}


def _links(rows_together: int, world_size: int) -> list[_Link]:
    return [
        _Link(
            "train_micro_batch_size_per_gpu",
            "per_device_train_batch_size",
            lambda args: max(1, rows_together // world_size),
        ),
        _Link(
            "gradient_accumulation_steps", "gradient_accumulation_steps", lambda args: args.gradient_accumulation_steps
        ),
        _Link(
            "train_batch_size",
            "per_device_train_batch_size x gradient_accumulation_steps x processes",
            lambda args: rows_together * args.gradient_accumulation_steps,
        ),
        _Link("gradient_clipping", "max_grad_norm", lambda args: args.max_grad_norm or 0.0),
    ]


def _match(config: dict[str, Any], link: _Link, args: Any) -> list[Contradiction]:
    expected = link.value(args)
    given = config.setdefault(link.key, AUTO)
    if given == AUTO:
        config[link.key] = expected
        return []
    if isinstance(given, (int, float)) and math.isclose(given, expected, rel_tol=1e-9):
        return []
    return [Contradiction(link.key, given, link.argument, expected)]


def _precision(config: dict[str, Any], args: Any) -> list[Contradiction]:
    """Fill the sections of the half-width types, which are DeepSpeed's own precision."""
    found = []
    if "bfloat16" in config:
        config["bf16"] = config.pop("bfloat16")
    for name in ("fp16", "bf16"):
        wanted = bool(getattr(args, name))
        section = config.get(name)
        if section is None:
            if wanted:
                config[name] = {"enabled": True}
            continue
        if not isinstance(section, dict):
            raise ValueError(f'deepspeed: {name}={section!r} cannot work: give an object, {{"enabled": ...}}.')
        given = section.setdefault("enabled", AUTO)
        if given == AUTO:
            section["enabled"] = wanted
        elif bool(given) is not wanted:
            found.append(Contradiction(f"{name}.enabled", given, name, wanted))
        if not section["enabled"]:
            del config[name]  # with all that would be "auto" in it
            continue
        for key in [key for key, value in section.items() if value == AUTO]:
            del section[key]  # DeepSpeed's defaults
    return found


def _refusals(config: dict[str, Any]) -> Iterator[Contradiction]:
    for key, reason in _REFUSED.items():
        value = _at(config, key)
        if value not in (None, False, AUTO):
            yield Contradiction(key, value, reason=reason)
    for key, sole in _SOLE_VALUES.items():
        value = _at(config, key)
        if value not in (None, sole):
            yield Contradiction(key, value, reason=f"only {sole!r} works here")


def _at(config: dict[str, Any], key: str) -> Any:
    held: Any = config
    for name in key.split("."):
        held = held.get(name) if isinstance(held, dict) else None
    return held


def _autos(config: Any, prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if value == AUTO:
            yield prefix + name
        elif isinstance(value, dict) and (prefix or name not in _OWN_AUTO):
            yield from _autos(value, f"{prefix}{name}.")


def _hidden_size(model_config: Any) -> int | None:
    """The width of a model, or the largest of its parts'."""
    for config in (model_config, getattr(model_config, "text_config", None)):
        if isinstance(width := getattr(config, "hidden_size", None), int):
            return width
        if widths := getattr(config, "hidden_sizes", None):
            return int(max(widths))
    return None
