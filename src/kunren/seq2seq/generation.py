"""One call of `generate` that leaves the model as it was: rows of new tokens, each as if it were alone in its batch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import nn

from kunren.base.registry import resolve
from kunren.model.signature import base_of
from kunren.seq2seq.prompts import Prompts

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Generation:
    """How to generate: `options` are those of `generate`; `config` stands in for the model's own, for the call only."""

    options: Mapping[str, Any]
    config: Any = None
    pad_token: int | None = None
    is_synced: bool = False  # each forward pass takes all processes, so that none may end before the others
    is_trial: bool = False  # one token, to see that there will be more
    is_strict: bool = True  # whether a prompt that leaves no room is an error; else nothing is generated for it


def generate(model: nn.Module, prompts: Prompts, how: Generation) -> torch.Tensor:
    """(rows, new tokens), the padding token behind what is shorter."""
    inputs, options = _inputs_for(model, prompts), dict(how.options)
    with _config_of_its_own(model, how) as config, torch.no_grad():
        room = None if config is None else _room_of_rows(prompts.lengths, options, config, how.is_strict)
        if how.is_trial and config is not None:
            config.max_length = config.min_length = config.min_new_tokens = None
            for name in ("max_length", "min_length", "min_new_tokens"):
                options.pop(name, None)
            options["max_new_tokens"] = 1
        if how.is_synced:
            options.setdefault("synced_gpus", True)
        produced = model.generate(**inputs, **options)  # type: ignore[operator]
        ends = options.get("eos_token_id", None if config is None else config.eos_token_id)
    tokens = _checked(produced, model, inputs)
    if prompts.lengths is not None:
        tokens = _without_prompts(tokens, inputs["input_ids"])
        if ends is not None and how.pad_token is not None:
            tokens = _ended(tokens, ends, how.pad_token)
    if room is not None:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        fill = how.pad_token if how.pad_token is not None else 0
        tokens = tokens.masked_fill(place >= room[:, None], fill)[:, : max(int(room.max()), 1)]
    return tokens


def _ended(tokens: torch.Tensor, ends: Any, fill: int) -> torch.Tensor:
    """Padding behind the first end token; where the padding token is 0, transformers' beams repeat the end token."""
    is_end = torch.isin(tokens, torch.tensor(ends if isinstance(ends, (list, tuple)) else [ends], device=tokens.device))
    return tokens.masked_fill(is_end.cumsum(1) > is_end.int(), fill)


def _checked(produced: Any, model: nn.Module, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The tokens. What is none would be left out of the evaluation without a word."""
    tokens = getattr(produced, "sequences", produced)
    rows = len(inputs["input_ids"]) if isinstance(inputs.get("input_ids"), torch.Tensor) else None
    if isinstance(tokens, torch.Tensor) and tokens.dim() == 2 and rows in (None, len(tokens)):
        return tokens
    shown = f"a tensor of shape {tuple(tokens.shape)}" if isinstance(tokens, torch.Tensor) else type(tokens).__name__
    raise TypeError(
        f"{type(base_of(model)).__name__}.generate returned {shown}: it has to return a tensor of tokens with a row "
        f"for each row that it is given{'' if rows is None else f', here {rows}'}."
    )


def _inputs_for(model: nn.Module, prompts: Prompts) -> dict[str, Any]:
    """What `generate` takes of them. A model that takes no mask gets none, and cannot tell padding from a prompt."""
    base: Any = base_of(model)
    accepted = inspect.signature(base.generate).parameters.values()
    if not any(one.kind is one.VAR_KEYWORD for one in accepted):
        names = {one.name for one in accepted}
        return {name: value for name, value in prompts.inputs.items() if name in names}
    parameters = inspect.signature(base.forward).parameters.values()
    takes_mask = any(one.name == "attention_mask" or one.kind is one.VAR_KEYWORD for one in parameters)
    if prompts.lengths is None or takes_mask:
        return prompts.inputs
    if len(set(prompts.lengths.tolist())) > 1:
        raise ValueError(
            f"{type(base_of(model)).__name__}.forward takes no attention_mask, so that prompts of different lengths "
            "cannot be in one batch: set per_device_eval_batch_size=1."
        )
    return {name: value for name, value in prompts.inputs.items() if name != "attention_mask"}


@contextmanager
def _config_of_its_own(model: nn.Module, how: Generation) -> Iterator[Any]:
    """The settings that the call may change as it likes, as transformers does; None for a model that has none."""
    base: Any = base_of(model)
    held = before = getattr(base, "generation_config", None)
    if before is None:
        if getattr(base, "config", None) is None or not hasattr(base, "generation_config"):
            yield None
            return
        before = resolve("kunren.hf.generation_config:generation_config_of")(base.config)
    base.generation_config = config = copy.deepcopy(before if how.config is None else how.config)
    for name in _TOKENS:  # settings that say nothing of them mean those of the model
        if getattr(config, name, None) is None:
            setattr(config, name, getattr(before, name, None))
    if config.pad_token_id is None and how.pad_token is not None:
        config.pad_token_id = how.pad_token
    try:
        yield config
    finally:
        base.generation_config = held


def _room_of_rows(
    lengths: torch.Tensor | None, options: dict[str, Any], config: Any, is_strict: bool
) -> torch.Tensor | None:
    """How many tokens each row may get where `max_length` counts its prompt as well, which padding must not change."""
    given = options.get("max_new_tokens", config.max_new_tokens)
    longest = options.get("max_length") or config.max_length
    if lengths is None or given is not None or longest is None:
        return None
    room: torch.Tensor = longest - lengths
    if is_strict and int(room.min()) < 1:
        raise ValueError(
            f"max_length={longest} counts prompt and answer, and a prompt alone has {int(lengths.max())} tokens: set "
            f"generation_max_length to {int(lengths.max()) + 1} or more, or pass max_new_tokens, which counts the "
            "answer only."
        )
    room = room.clamp(min=0)
    options["max_length"] = config.max_length = None
    options["max_new_tokens"] = max(int(room.max()), 1)
    if len(set(room.tolist())) > 1:
        options["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), _EndOfRows(room, int(lengths.max()))]
    return room


@final
class _EndOfRows:
    """A stopping criterion: each row ends where it would end alone. Beams come row by row."""

    def __init__(self, room: torch.Tensor, width: int) -> None:
        self._room, self._width = room, width

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        room = self._room.to(input_ids.device).repeat_interleave(len(input_ids) // len(self._room))
        return input_ids.shape[1] - self._width >= room


def _without_prompts(tokens: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """Models that were given embeddings return new tokens only; most begin with what they were given."""
    width = prompts.shape[1]
    repeats = tokens.shape[1] >= width and bool((tokens[:, :width] == prompts).all())
    return tokens[:, width:] if repeats else tokens


@contextmanager
def with_whole_weights(model: nn.Module, spread_by: str | None) -> Iterator[None]:
    """Inside, the weights that FSDP gathers in the forward pass of the whole are there for calls that go past it.

    `generate` goes past the wrapper of FSDP 1, and encoders are called by themselves. All processes have to be here.
    """
    if spread_by is None:
        yield
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            yield
    elif isinstance(model, FSDPModule):
        model.unshard()
        try:
            yield
        finally:
            model.reshard()
    else:
        yield
