"""What `generate` can be told, and what is told of what it cannot."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from kunren.base.names import did_you_mean
from kunren.model.signature import base_of

_BY_THE_TRAINER = frozenset({"self", "inputs", "input_ids", "attention_mask", "labels", "kwargs", "generation_config"})
_OF_MODES = ("tokenizer", "assistant_tokenizer", "trust_remote_code")


def with_defaults(given: Mapping[str, Any], args: Any) -> dict[str, Any]:
    """What was given, and of what was not, the arguments' `generation_max_length` and `generation_num_beams`."""
    options = dict(given)
    longest, beams = getattr(args, "generation_max_length", None), getattr(args, "generation_num_beams", None)
    if longest is not None and options.get("max_length") is None and options.get("max_new_tokens") is None:
        options["max_length"] = longest
    if beams is not None and options.get("num_beams") is None:
        options["num_beams"] = beams
    return options


def without_unset(options: Mapping[str, Any]) -> dict[str, Any]:
    """None for these says "as the model has it"; for others it may mean something."""
    unset = ("max_length", "max_new_tokens", "num_beams")
    return {name: value for name, value in options.items() if value is not None or name not in unset}


def check_options(model: nn.Module, options: Mapping[str, Any], config: Any = None) -> None:
    """TypeError for a name that the model's `generate` does not know, ValueError for what an evaluation cannot use."""
    known = known_options(model)
    for name in options if known is not None else ():
        if name not in known:  # type: ignore[operator]
            raise TypeError(
                f"{name!r} is no option of {type(base_of(model)).__name__}.generate.{did_you_mean(name, known or ())} "
                "What evaluate() and predict() are given beyond their own arguments goes to it."
            )
    for name in ("max_length", "max_new_tokens", "num_beams"):
        value = options.get(name)
        if isinstance(value, int) and value < 1:
            raise ValueError(f"{name}={value!r} cannot work: give 1 or more, or None for the model's own setting.")
    settings = config if config is not None else getattr(base_of(model), "generation_config", None)
    several = options.get("num_return_sequences", getattr(settings, "num_return_sequences", None))
    if several is not None and several > 1:
        raise ValueError(
            f"num_return_sequences={several} makes several texts for each row, and an evaluation compares one with its "
            "labels: leave it at 1, and call model.generate for more."
        )


def known_options(model: nn.Module) -> set[str] | None:
    """The names that `generate` takes; None where any may be one."""
    base: Any = base_of(model)
    parameters = inspect.signature(base.generate).parameters
    names = set(parameters)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        config = getattr(base, "generation_config", None)
        if config is None:
            return None
        names |= {name for name in vars(config) if not name.startswith("_")}
        names |= {*_OF_MODES, *inspect.signature(base.forward).parameters}
        prepare = getattr(base, "prepare_inputs_for_generation", None)
        names |= set(inspect.signature(prepare).parameters) if callable(prepare) else set()
    return names - _BY_THE_TRAINER


def check_can_generate(model: nn.Module) -> None:
    """ValueError for a model that predicts in another way."""
    base: Any = base_of(model)
    can = getattr(base, "can_generate", None)
    if callable(getattr(base, "generate", None)) and (not callable(can) or can()):
        return
    name = type(base).__name__
    raise ValueError(
        f"predict_with_generate=True, and {name} cannot generate: it has no head that writes tokens. Take a model such "
        "as one of AutoModelForSeq2SeqLM or AutoModelForCausalLM, or set predict_with_generate=False."
    )
