"""The keys inside the sections of a DeepSpeed configuration, which DeepSpeed itself refuses in pydantic's words."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from kunren.base.names import did_you_mean

# Of DeepSpeed 0.19, so that no import of it is needed for a key that is there.
_ZERO = """
    allgather_bucket_size allgather_partitions allgather_sequential compute_grad_norm contiguous_gradients cpu_offload
    cpu_offload_param cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks
    gather_16bit_weights_on_model_save ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights
    log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear
    model_persistence_threshold module_granularity_threshold offload_optimizer offload_param overlap_comm
    override_module_apply param_persistence_threshold parameter_alignment pipeline_loading_checkpoint
    prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients save_muon_momentum_buffer_in_memory
    stage stage3_allgather_sequential stage3_gather_16bit_weights_on_model_save
    stage3_gather_fp16_weights_on_model_save stage3_max_live_parameters stage3_max_reuse_distance
    stage3_model_persistence_threshold stage3_module_granularity_threshold stage3_param_persistence_threshold
    stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size use_all_reduce_for_fetch_params
    use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size zero_quantized_gradients
    zero_quantized_nontrainable_weights zero_quantized_weights
"""
_BF16 = "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow enabled immediate_grad_update"
_SECTIONS = {
    "zero_optimization": _ZERO,
    "zero_optimization.offload_param": "buffer_count buffer_size device max_in_cpu nvme_path pin_memory",
    "zero_optimization.offload_optimizer": """
        buffer_count cpuadam_cores_perc device fast_init nvme_path pin_memory pipeline_read pipeline_write ratio
        super_offload
    """,
    "fp16": """
        auto_cast consecutive_hysteresis enabled fp16_master_weights_and_grads hysteresis initial_scale_power loss_scale
        loss_scale_window min_loss_scale
    """,
    "bf16": _BF16,
    "bfloat16": _BF16,
}
_MODELS = {
    "zero_optimization": "zero.config:DeepSpeedZeroConfig",
    "zero_optimization.offload_param": "zero.offload_config:DeepSpeedZeroOffloadParamConfig",
    "zero_optimization.offload_optimizer": "zero.offload_config:DeepSpeedZeroOffloadOptimizerConfig",
    "fp16": "precision_config:DeepSpeedFP16Config",
    "bf16": "precision_config:DeepSpeedBF16Config",
    "bfloat16": "precision_config:DeepSpeedBF16Config",
}


def check_keys(config: Mapping[str, Any], source: str) -> None:
    """ValueError for a key that its section does not have, with the nearest that it has. `source` begins it."""
    for section, words in _SECTIONS.items():
        held: Any = config
        for name in section.split("."):
            held = held.get(name) if isinstance(held, Mapping) else None
        if not isinstance(held, Mapping):
            continue
        known = set(words.split())
        for key in held:
            if key in known or key in (known := known | _of_installed(section)):
                continue
            hint = did_you_mean(str(key), sorted(known)) or f" Known are {', '.join(sorted(known))}."
            raise ValueError(f"{source}: {section}.{key} is no key of DeepSpeed's configuration.{hint}")


def _of_installed(section: str) -> set[str]:
    """The keys of the DeepSpeed that is installed, which may be newer; none where there is none, or it has moved."""
    if importlib.util.find_spec("deepspeed") is None:
        return set()
    module, _, name = _MODELS[section].partition(":")
    try:
        fields = getattr(importlib.import_module(f"deepspeed.runtime.{module}"), name).model_fields
    except (ImportError, AttributeError):
        return set()
    return {word for field, about in fields.items() for word in (field, about.alias) if word}
