"""Attention within each of the sequences that lie one after the other in one long row; never a total x total mask."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "kunren_packed"

_UNKNOWN: Any = object()
_HALF = (torch.float16, torch.bfloat16)
_NOT_SUPPORTED = ("softcap", "s_aux", "position_bias", "block_sequence_ids")


@final
class Boundaries:
    """Where sequences of the given lengths begin and end in their row."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)
        self.total = sum(self.lengths)
        self.longest = max(self.lengths, default=0)
        self.are_alike = self.total == self.longest * len(self.lengths)
        self._cumulative: torch.Tensor | None = None

    def cumulative(self, device: torch.device) -> torch.Tensor:
        """(sequences + 1,), int32: 0, the end of the first sequence, the end of the second, ..."""
        if self._cumulative is None or self._cumulative.device != device:
            self._cumulative = torch.tensor([0, *itertools.accumulate(self.lengths)], dtype=torch.int32).to(
                device, non_blocking=True
            )
        return self._cumulative


class PackedRun(Protocol):
    """The run that a model is trained in: what its attention layers have to know."""

    boundaries: Boundaries | None
    attention_calls: int


# By the id of the configuration that a layer holds: the only thing that an attention function learns of its model.
RUNS: dict[int, PackedRun] = {}


def packed_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = _UNKNOWN,
    **further: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls in the place of its own attention.

    query: (1, heads, total, size); key and value may have fewer heads. Returns (1, total, heads, size).
    """
    run = RUNS.get(id(module.config))
    boundaries = run.boundaries if run is not None else None
    if run is None or boundaries is None or not query.shape[2] == key.shape[2] == boundaries.total:
        raise RuntimeError(
            f"{type(module).__name__} is set to packed training and was given {query.shape[0]} x {query.shape[2]} "
            "tokens that are not of a packed batch. Call the whole model, not a part of it, while it is trained."
        )
    if sliding_window is _UNKNOWN:
        sliding_window = None
        if getattr(module.config, "sliding_window", None) is not None:
            raise _cannot(module, "has a sliding window that only its mask is told of")
    if attention_mask is not None:
        raise _cannot(module, "has an attention mask of its own")
    for name in _NOT_SUPPORTED:
        if further.get(name) is not None:
            raise _cannot(module, f"uses {name}")
    run.attention_calls += 1
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    attend = _kernel(query, dropout, sliding_window)
    return attend(query, key, value, boundaries, dropout, scaling, causal, sliding_window), None


def _cannot(module: nn.Module, reason: str) -> ValueError:
    return ValueError(f"{type(module).__name__} {reason}, which packed attention cannot follow; batching='grouped' can")


Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, Boundaries, float, "float | None", bool, "int | None"], torch.Tensor
]


def _kernel(query: torch.Tensor, dropout: float, sliding_window: int | None) -> Kernel:
    if not query.is_cuda or query.dtype not in _HALF:
        return by_sequence
    if _has_flash_attention():
        return by_flash_attention
    fits_torch = dropout == 0 and sliding_window is None and query.shape[-1] % 8 == 0 and query.shape[-1] <= 256
    return by_torch_varlen if fits_torch and _has_torch_varlen(query.device) else by_sequence


@functools.cache
def _has_flash_attention() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


@functools.cache
def _has_torch_varlen(device: torch.device) -> bool:
    has_module = importlib.util.find_spec("torch.nn.attention.varlen") is not None
    return has_module and torch.cuda.get_device_capability(device) >= (8, 0)


def by_sequence(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: Boundaries,
    dropout: float,
    scaling: float | None,
    causal: bool,
    sliding_window: int | None,
) -> torch.Tensor:
    """One `scaled_dot_product_attention` for each sequence, on any device.

    Several sequences of one length are only taken together where all are: joining some of them takes longer than it
    saves (8.4 against 7.5 ms a layer for 32 sequences of 8 to 140 tokens, forward and backward on a CPU).
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (part.repeat_interleave(groups, dim=1) for part in (key, value))

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        window = _window_mask(query.shape[2], causal, sliding_window, query.device)
        is_causal = causal and window is None
        return scaled_dot_product_attention(query, key, value, window, dropout, is_causal, scale=scaling)

    lengths = boundaries.lengths
    if boundaries.are_alike:
        parts = [
            part[0].view(part.shape[1], len(lengths), boundaries.longest, -1).transpose(0, 1)
            for part in (query, key, value)
        ]
        return attend(*parts).transpose(1, 2).flatten(0, 1).unsqueeze(0)
    # `split`, not slices: its backward joins the pieces once, that of a slice fills a whole row with zeros.
    pieces = zip(*(torch.split(part, lengths, dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([attend(*piece).transpose(1, 2) for piece in pieces], dim=1)


def _window_mask(length: int, causal: bool, window: int | None, device: torch.device) -> torch.Tensor | None:
    """(length, length): what each token of one sequence sees; None where the window is no shorter than the sequence."""
    if window is None or length <= window:
        return None
    position = torch.arange(length, device=device)
    distance = position[:, None] - position  # of the query behind the key
    return (distance < window) & (distance > (-1 if causal else -window))


def by_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: Boundaries,
    dropout: float,
    scaling: float | None,
    causal: bool,
    sliding_window: int | None,
) -> torch.Tensor:
    """The package flash-attn (Dao 2023, arXiv:2307.08691): all sequences in one kernel."""
    flash_attn: Any = importlib.import_module("flash_attn")
    ends, longest = boundaries.cumulative(query.device), boundaries.longest
    left = -1 if sliding_window is None else sliding_window - 1
    out: torch.Tensor = flash_attn.flash_attn_varlen_func(
        *(part[0].transpose(0, 1) for part in (query, key, value)),
        cu_seqlens_q=ends,
        cu_seqlens_k=ends,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        dropout_p=dropout,
        softmax_scale=scaling,
        causal=causal,
        window_size=(left, 0 if causal and left >= 0 else left),
    )
    return out.unsqueeze(0)


def by_torch_varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    boundaries: Boundaries,
    dropout: float,
    scaling: float | None,
    causal: bool,
    sliding_window: int | None,
) -> torch.Tensor:
    """torch's own kernel for sequences of any length; without dropout and windows."""
    varlen: Any = importlib.import_module("torch.nn.attention.varlen")
    ends, longest = boundaries.cumulative(query.device), boundaries.longest
    out: torch.Tensor = varlen.varlen_attn(
        *(part[0].transpose(0, 1) for part in (query, key, value)),
        ends,
        ends,
        longest,
        longest,
        scale=scaling,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out.unsqueeze(0)
