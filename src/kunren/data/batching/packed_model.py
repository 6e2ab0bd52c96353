"""A model in a packed run: its attention replaced, and padding taken out and put back where a batch has some."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, final

import torch
from torch import nn

from kunren.base.nested import map_tensors
from kunren.base.random_state import preserved
from kunren.data.batching.packed import (
    PACKED_INDICES,
    Packing,
    cannot_pack,
    encoder_in,
    flatten,
    packs_itself,
    positions,
)
from kunren.data.batching.packed_attention import NAME, RUNS, Boundaries, packed_attention
from kunren.losses.counting import PACKED_LENGTHS
from kunren.model.attention import attention_choices, choose_attention, register_attention
from kunren.model.signature import base_of, unwrap

Call: TypeAlias = tuple[Any, dict[str, Any]]  # what a module is called with


def pack_model(model: nn.Module, packing: Packing) -> Callable[[], None]:
    """Let the model train on packed batches; returns a function that puts everything back.

    ValueError if a few tokens, packed, do not give what they give in padded rows.
    """
    core, base = unwrap(model), base_of(model)
    if packs_itself(base):
        return core.register_forward_pre_hook(_without_lengths, with_kwargs=True).remove
    encoder = encoder_in(base)
    register_attention(NAME, packed_attention)
    run = PackedModel(core, encoder, packing)
    try:
        _try_out(run, encoder, type(base).__name__)
    except BaseException:
        run.undo()
        raise
    return run.undo


def _without_lengths(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Call:
    return args, {name: value for name, value in kwargs.items() if name != PACKED_LENGTHS}


@final
class PackedModel:
    """The hooks of one run.

    Which attention the layers use is decided whenever the model is called, and stays so until it is called again: with
    activation checkpointing they are called once more in the backward pass. Evaluation never meets packed attention.
    """

    def __init__(self, core: nn.Module, encoder: nn.Module, packing: Packing) -> None:
        self.core, self.encoder, self.packing = core, encoder, packing
        self.boundaries: Boundaries | None = None
        self.attention_calls = 0
        self.packs: bool | None = None  # None: while the model is trained
        self._is_in_call = self._is_flat = False
        self._hint: tuple[Any, list[int], torch.Tensor] | None = (
            None  # of which mask, and what the collator knows of it
        )
        self._layout: tuple[int, int, torch.Tensor] | None = None  # rows, length, where each token lies in them
        self._packs_inside = 0
        self._parameters = inspect.signature(encoder.forward).parameters
        self._choices = attention_choices(encoder)
        for config, _ in self._choices:
            RUNS[id(config)] = self
        handles = [
            core.register_forward_pre_hook(self._before_model, with_kwargs=True),
            encoder.register_forward_pre_hook(self._before_encoder, with_kwargs=True),
            encoder.register_forward_hook(self._after_encoder),
            core.register_forward_hook(self._after_model, always_call=True),
        ]
        layers = getattr(encoder, "encoder", None)
        if getattr(encoder, "pooler", None) is not None and isinstance(layers, nn.Module):
            handles.append(layers.register_forward_hook(self._after_layers))  # for the pooler that comes next
        self._handles = handles

    def undo(self) -> None:
        """Take the hooks away and put the model's own attention back."""
        self._switch_off()
        for handle in self._handles:
            handle.remove()
        for config, _ in self._choices:
            RUNS.pop(id(config), None)

    def _switch_on(self, lengths: list[int]) -> None:
        if self.boundaries is None:
            for config, _ in self._choices:
                choose_attention(config, NAME)
        self.boundaries = Boundaries(lengths)

    def _switch_off(self) -> None:
        if self.boundaries is not None:
            for config, own in self._choices:
                choose_attention(config, own)
        self.boundaries = None

    # ---- hooks

    def _before_model(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Call:
        kwargs = dict(kwargs)
        lengths, indices = kwargs.pop(PACKED_LENGTHS, None), kwargs.pop(PACKED_INDICES, None)
        self._is_in_call, self._packs_inside, self._hint = True, 0, None
        self._is_flat = lengths is not None and indices is None
        if self._is_flat:
            self._switch_on(lengths)
        elif lengths is not None and indices is not None:
            self._hint = (kwargs.get("attention_mask"), lengths, indices)
        return args, kwargs

    def _after_model(self, module: nn.Module, args: Any, output: Any) -> None:
        self._is_in_call = self._is_flat = False
        self._hint = self._layout = None

    def _before_encoder(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Call | None:
        if self._is_in_call and self._is_flat:
            return None
        self._layout = None
        given = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        tokens = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
        mask = given.get("attention_mask")
        is_training = self.core.training if self.packs is None else self.packs
        if not is_training or not isinstance(tokens, torch.Tensor) or not isinstance(mask, torch.Tensor):
            self._refuse_flat(tokens, mask, is_training)
            self._switch_off()
            return None
        if mask.dim() != 2 or mask.shape != tokens.shape[:2]:
            self._switch_off()
            return None
        lengths, indices = self._lengths(mask)
        self._note_call()
        self._switch_on(lengths)
        self._layout = (*mask.shape, indices)
        packed = {
            name: flatten(value, indices)
            if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[:2] == mask.shape
            else value
            for name, value in given.items()
            if name != "attention_mask"
        }
        if self.packing.takes_positions and packed.get("position_ids") is None:
            packed["position_ids"] = positions(lengths, self.packing.first_position, tokens.device)
        return (), packed

    def _lengths(self, mask: torch.Tensor) -> tuple[list[int], torch.Tensor]:
        if self._hint is not None and self._hint[0] is mask:
            return self._hint[1:]
        real = mask != 0
        lengths: list[int] = [length for length in real.sum(1).tolist() if length]
        return lengths, real.flatten().nonzero().squeeze(1)

    def _refuse_flat(self, tokens: Any, mask: Any, is_training: bool) -> None:
        if is_training and mask is None and isinstance(tokens, torch.Tensor) and tokens.shape[0] == 1:
            raise ValueError(
                f"{type(self.core).__name__} was called with one row of {tokens.shape[1]} tokens and not told where "
                f"sequences end in it: pass {PACKED_LENGTHS!r} of the batch on as well, or an attention_mask."
            )

    def _note_call(self) -> None:
        self._packs_inside += self._is_in_call
        if self._packs_inside > 1 and _recomputes(self.encoder):
            raise cannot_pack(
                type(self.core).__name__,
                "it calls its encoder several times, and gradient_checkpointing would repeat the last call's packing",
            )

    def _after_layers(self, module: nn.Module, args: Any, output: Any) -> Any:
        return None if self._layout is None else map_tensors(self._padded, output)

    def _after_encoder(self, module: nn.Module, args: Any, output: Any) -> Any:
        padded = self._after_layers(module, args, output)
        self._layout = None
        return padded

    def _padded(self, value: torch.Tensor) -> torch.Tensor:
        """(1, tokens, ...) to (rows, length, ...), zeros where there is padding; other shapes as they are."""
        assert self._layout is not None and self.boundaries is not None
        rows, length, indices = self._layout
        if value.dim() < 3 or value.shape[:2] != (1, self.boundaries.total):
            return value
        padded = value.new_zeros((rows * length, *value.shape[2:])).index_copy(0, indices, value[0])
        return padded.view(rows, length, *value.shape[2:])


def _recomputes(encoder: nn.Module) -> bool:
    now = getattr(encoder, "is_activation_checkpointing", None)  # the name in transformers 5.24; then the one before
    return bool(getattr(encoder, "is_gradient_checkpointing", False) if now is None else now)


def _try_out(run: PackedModel, encoder: nn.Module, name: str) -> None:
    """Compare what a few tokens give in padded rows with what they give packed. ValueError where that differs."""
    weights = next(encoder.parameters())
    tokens = torch.arange(3, 15, device=weights.device).view(3, 4)
    mask = torch.ones_like(tokens)
    mask[0, 2:] = mask[2, 3:] = 0
    modes = [(module, module.training) for module in encoder.modules()]
    outputs: list[list[torch.Tensor]] = []
    try:
        encoder.eval()
        with torch.no_grad(), preserved():
            for packs in (False, True):
                run.packs = packs
                outputs.append(_floats(encoder(input_ids=tokens, attention_mask=mask), mask))
    except Exception as error:
        if run.packs:
            raise cannot_pack(name, str(error)) from error
        raise
    finally:
        run.packs = None
        for module, mode in modes:
            module.training = mode
    if run.attention_calls == 0:
        raise cannot_pack(name, "its attention is not one that transformers' AttentionInterface replaces")
    padded, packed = outputs
    tolerance = 1e-3 if weights.dtype in (torch.float32, torch.float64) else 0.05
    is_same = [a.shape == b.shape and _distance(a, b) < tolerance for a, b in zip(padded, packed, strict=False)]
    if len(padded) != len(packed) or not padded or not all(is_same):
        raise cannot_pack(name, "a few tokens, packed, come out otherwise than in padded rows")


def _floats(output: Any, mask: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of an output that are numbers of tokens or of rows, without padding."""
    values = output.values() if isinstance(output, Mapping) else output
    found = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return [value[mask != 0] if value.shape[:2] == mask.shape else value for value in found]


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1e-6))
