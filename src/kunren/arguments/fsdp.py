"""FSDP settings: the older spellings, `fsdp="full_shard auto_wrap"`, turned into the one of today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kunren.arguments.checks import from_json, refuse
from kunren.base.names import did_you_mean

_SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_OPTIONS = (*_SHARDING, "offload", "auto_wrap")
_ONLY_VERSION_1 = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")
_DEFAULTS = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}


def options_in(fsdp: Any) -> list[str]:
    """The options of the older spelling, a string or a list; none for a bool or nothing."""
    if fsdp is None or isinstance(fsdp, bool):
        return []
    words = fsdp.replace(",", " ").split() if isinstance(fsdp, str) else [str(option) for option in fsdp]
    return [] if [word.lower() for word in words] in (["true"], ["false"], ["none"]) else words


def is_enabled(fsdp: Any) -> bool:
    """Whether any spelling switches FSDP on."""
    return fsdp is True or bool(options_in(fsdp)) or (isinstance(fsdp, str) and fsdp.strip().lower() == "true")


def settings_from(fsdp: Any, fsdp_config: Any) -> dict[str, Any]:
    """`fsdp_config` of an enabled FSDP, complete, with what the options in `fsdp` say."""
    given = from_json("fsdp_config", fsdp_config or {}, read_path=True)
    if not isinstance(given, Mapping):
        raise refuse("fsdp_config", fsdp_config, "give a dict, JSON text, or the path of a JSON file.")
    config = {str(key).removeprefix("fsdp_"): value for key, value in given.items()}
    for option in options_in(fsdp):
        if option not in _OPTIONS:
            raise refuse(
                "fsdp", fsdp, f"{option!r} is not one of {', '.join(_OPTIONS)}.{did_you_mean(option, _OPTIONS)}"
            )
        if option in _SHARDING:
            config.setdefault("reshard_after_forward", _reshard(option, config.get("version")))
        elif option == "offload":
            config.setdefault("cpu_offload", True)
    wrapped = config.get("transformer_layer_cls_to_wrap")
    if isinstance(wrapped, str):
        config["transformer_layer_cls_to_wrap"] = [name.strip() for name in wrapped.split(",")]
    return {**_DEFAULTS, **config}


def _reshard(option: str, version: Any) -> bool | str:
    """What `reshard_after_forward` is for a sharding option: FSDP 1 takes its name, FSDP 2 yes or no."""
    if version == 1:
        return option
    if option in _ONLY_VERSION_1:
        raise refuse("fsdp", option, "only FSDP 1 has it. Set fsdp_config={'version': 1}, or use 'full_shard'.")
    return option == "full_shard"
