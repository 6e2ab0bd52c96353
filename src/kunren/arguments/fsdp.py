"""FSDP settings: the older spellings, `fsdp="full_shard auto_wrap"`, turned into the one of today, and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from kunren.arguments.checks import from_json, refuse
from kunren.base.names import did_you_mean

SHARDING = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
POLICIES = ("transformer_based_wrap", "size_based_wrap", "no_wrap")
PREFETCHES = ("backward_pre", "backward_post", "no_prefetch")
_STATE_DICTS = ("full_state_dict", "sharded_state_dict")
_OPTIONS = (*SHARDING, "offload", "auto_wrap")
_ONLY_VERSION_1 = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")
DEFAULTS = {"min_num_params": 0, "xla": False, "xla_fsdp_v2": False, "xla_fsdp_grad_ckpt": False}
_FLAGS = (
    "activation_checkpointing",
    "cpu_offload",
    "cpu_ram_efficient_loading",
    "forward_prefetch",
    "limit_all_gathers",
    "sync_module_states",
    "use_orig_params",
    "xla",
    "xla_fsdp_grad_ckpt",
    "xla_fsdp_v2",
)
_NAMES = {"auto_wrap_policy": POLICIES, "backward_prefetch": PREFETCHES, "state_dict_type": _STATE_DICTS}
KEYS = (
    *_FLAGS,
    *_NAMES,
    "min_num_params",
    "reshard_after_forward",
    "transformer_layer_cls_to_wrap",
    "version",
    "xla_fsdp_settings",
)
_STRATEGY = "sharding_strategy"  # another spelling of reshard_after_forward: torch's and Accelerate's, for FSDP 1
_ELSEWHERE = {"offload_params": "cpu_offload"}  # what Accelerate's own configuration calls it


def options_in(fsdp: Any) -> list[str]:
    """The options of the older spelling, a string or a list; none for a bool or nothing."""
    if fsdp is None or isinstance(fsdp, bool):
        return []
    words = fsdp.replace(",", " ").split() if isinstance(fsdp, str) else [_plain(option) for option in fsdp]
    return [] if [word.lower() for word in words] in (["true"], ["false"], ["none"]) else words


def is_enabled(fsdp: Any) -> bool:
    """Whether any spelling switches FSDP on."""
    return fsdp is True or bool(options_in(fsdp)) or (isinstance(fsdp, str) and fsdp.strip().lower() == "true")


def read(fsdp_config: Any) -> Any:
    """The settings with their names checked, from a dict, JSON text or a file; what is no dict is left alone."""
    given = from_json("fsdp_config", fsdp_config, read_path=True)
    if not isinstance(given, Mapping):
        return given
    config: dict[str, Any] = {}
    known = (*KEYS, _STRATEGY)
    for spelt, value in given.items():
        key = str(spelt).removeprefix("fsdp_")
        if key not in known:
            nearest = _ELSEWHERE.get(key)
            hint = f" Did you mean '{nearest}'?" if nearest else did_you_mean(key, known)
            raise ValueError(f"fsdp_config has no setting {str(spelt)!r}: choose from {', '.join(sorted(KEYS))}.{hint}")
        if config.get(key, value) != value:
            raise ValueError(f"fsdp_config holds {key}={config[key]!r} and fsdp_{key}={value!r}: keep one of them.")
        config[key] = value
    strategy = config.pop(_STRATEGY, None)
    if strategy is not None:
        _take_strategy(strategy, config)
    return config


def _take_strategy(given: Any, config: dict[str, Any]) -> None:
    """Put a sharding strategy, a name or Accelerate's number from 1 on, where `reshard_after_forward` stands."""
    name = str(given.name if isinstance(given, Enum) else given).strip().lower().removeprefix("_")
    if name.isdigit() and 1 <= int(name) <= len(SHARDING):
        name = SHARDING[int(name) - 1]
    if name not in SHARDING:
        remedy = f"choose one of {', '.join(SHARDING)}, or 1 to {len(SHARDING)}.{did_you_mean(name, SHARDING)}"
        raise refuse(f"fsdp_config: {_STRATEGY}", given, remedy)
    version = _version("version", config.get("version") or 2)
    if version != 1 and name in _ONLY_VERSION_1:
        remedy = "only FSDP 1 has it. Add 'version': 1 to fsdp_config, or use 'full_shard'."
        raise refuse(f"fsdp_config: {_STRATEGY}", given, remedy)
    meant = _reshard(name, version)
    other = config.get("reshard_after_forward")
    if other is not None and _reshard_given(other, version) != meant:
        raise ValueError(
            f"fsdp_config holds {_STRATEGY}={given!r} and reshard_after_forward={other!r}, two names of one setting: "
            "keep one of them."
        )
    config["reshard_after_forward"] = meant


def settings_from(fsdp: Any, fsdp_config: Any) -> dict[str, Any]:
    """`fsdp_config` of an enabled FSDP, complete, with what the options in `fsdp` say."""
    config = read(fsdp_config or {})
    if not isinstance(config, Mapping):
        raise refuse("fsdp_config", fsdp_config, "give a dict, JSON text, or the path of a JSON file.")
    config = _checked(dict(config))
    for option in options_in(fsdp):
        if option not in _OPTIONS:
            raise refuse(
                "fsdp", fsdp, f"{option!r} is not one of {', '.join(_OPTIONS)}.{did_you_mean(option, _OPTIONS)}"
            )
        if option in SHARDING:
            config.setdefault("reshard_after_forward", _reshard(option, config.get("version")))
        elif option == "offload":
            config.setdefault("cpu_offload", True)
    return {**DEFAULTS, **config}


def _checked(config: dict[str, Any]) -> dict[str, Any]:
    """The settings with their values understood; ValueError for what is none, and for what contradicts itself."""
    config = {key: value for key, value in config.items() if value is not None}
    for key, value in config.items():
        if key in _FLAGS:
            config[key] = _flag(key, value)
        elif key in _NAMES:
            config[key] = _one_of(key, value, _NAMES[key])
        elif key in _READERS:
            config[key] = _READERS[key](key, value)
    if "reshard_after_forward" in config:
        config["reshard_after_forward"] = _reshard_given(config["reshard_after_forward"], config.get("version"))
    by_size, by_class = config.get("min_num_params", 0) > 0, bool(config.get("transformer_layer_cls_to_wrap"))
    policy = config.get("auto_wrap_policy")
    if by_size and by_class:
        raise ValueError(
            "fsdp_config: min_num_params wraps layers by their size and transformer_layer_cls_to_wrap by their class: "
            "keep one of them."
        )
    wanted = {"no_wrap": (False, False), "size_based_wrap": (True, False)}.get(str(policy))
    if (wanted is not None and wanted != (by_size, by_class)) or (policy == POLICIES[0] and by_size):
        raise ValueError(
            f"fsdp_config: auto_wrap_policy={policy!r} does not go with min_num_params="
            f"{config.get('min_num_params', 0)} and transformer_layer_cls_to_wrap="
            f"{config.get('transformer_layer_cls_to_wrap')}: 'size_based_wrap' takes the first, "
            "'transformer_based_wrap' the second, 'no_wrap' neither. Leave it out: the others say it all."
        )
    return config


def _plain(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _flag(key: str, value: Any) -> bool:
    """True and false, also as the words of a command line or of YAML."""
    words = {"true": True, "false": False}
    found = words.get(value.strip().lower()) if isinstance(value, str) else value
    if found not in (True, False):
        raise refuse(f"fsdp_config: {key}", value, "give true or false.")
    return bool(found)


def _one_of(key: str, value: Any, names: tuple[str, ...]) -> str:
    name = value.name if isinstance(value, Enum) else str(value)  # torch has enums of some
    if name.lower() not in names:
        raise refuse(
            f"fsdp_config: {key}", value, f"choose one of {', '.join(names)}.{did_you_mean(name.lower(), names)}"
        )
    return name.lower()


def _classes(key: str, value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, (list, tuple, set)) or not all(isinstance(name, str) for name in value):
        raise refuse(f"fsdp_config: {key}", value, "give names of classes, in a list, or in a string with commas.")
    return [name.strip() for name in value if name.strip()]


def _count(key: str, value: Any) -> int:
    found = int(value) if isinstance(value, str) and value.strip().isdigit() else value
    if isinstance(found, bool) or not isinstance(found, (int, float)) or found < 0 or found != int(found):
        raise refuse(f"fsdp_config: {key}", value, "give a number of parameters.")
    return int(found)


def _version(key: str, value: Any) -> int:
    if str(value) not in ("1", "2"):
        raise refuse(f"fsdp_config: {key}", value, "there are FSDP 1 and FSDP 2, which is the usual one.")
    return int(value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "transformer_layer_cls_to_wrap": _classes,
    "min_num_params": _count,
    "version": _version,
}


def _reshard_given(value: Any, version: Any) -> Any:
    """True and false for either version; the name of a strategy for FSDP 1; a number of processes for FSDP 2."""
    word = _plain(value).strip().lower()
    if word in ("true", "false"):
        return _reshard("full_shard" if word == "true" else "shard_grad_op", version)
    if version == 1 and word in SHARDING:
        return word
    if version != 1 and isinstance(value, int) and value > 1:
        return value
    remedy = (
        f"with version=1 choose one of {', '.join(SHARDING)}.{did_you_mean(word, SHARDING)}"
        if version == 1
        else "give true or false, or the number of processes that keep a layer together after the forward pass. The "
        "names of strategies are those of FSDP 1: fsdp_config={'version': 1}."
    )
    raise refuse("fsdp_config: reshard_after_forward", value, remedy)


def _reshard(option: str, version: Any) -> bool | str:
    """What `reshard_after_forward` is for a sharding option: FSDP 1 takes its name, FSDP 2 yes or no."""
    if version == 1:
        return option
    if option in _ONLY_VERSION_1:
        raise refuse("fsdp", option, "only FSDP 1 has it. Set fsdp_config={'version': 1}, or use 'full_shard'.")
    return option == "full_shard"
