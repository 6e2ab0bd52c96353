"""Logits that are computed only if somebody asks for their values; a cross-entropy does not.

They have the shape, type and device of the logits and can be sliced, reshaped and converted like them;
`F.cross_entropy` of them is the chunked one. Every other operation computes the real logits, once, with a graph, and
goes on with those: whatever a model does with its logits (capping, sampling, a loss of its own) stays what it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_map_only

from kunren.losses.functions.chunked_cross_entropy import chunked_cross_entropy, product_dtype


@final
@dataclass(frozen=True)
class Linear:
    """The product that deferred logits stand for; each slice or shape of them has its own hidden states."""

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    versions: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "versions", self._versions())

    def _versions(self) -> tuple[int, ...]:
        tensors = (self.hidden, self.weight, self.bias)
        return tuple(one._version for one in tensors if one is not None and not one.is_inference())

    def check(self) -> None:
        """RuntimeError where the product would not be what it was."""
        if self._versions() != self.versions:
            raise RuntimeError(
                "These logits were never computed, and cannot be any more: the hidden states or the weight they are "
                "made of have been changed in place since. Read them earlier, or set chunked_loss='off'."
            )


@final
@dataclass(frozen=True, eq=False)
class _Step:
    """What was done to the logits while they were deferred, to be done to the real ones."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    with_graph: bool = field(default_factory=torch.is_grad_enabled)

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(self.with_graph):
            result: torch.Tensor = self.function(logits, *self.arguments, **self.keywords)
        return result


_Recipe = tuple[_Step, ...]


@final
class Source:
    """One call of the output layer. All that comes of it is computed together: views of one tensor stay that."""

    def __init__(self, linear: Linear, tell: Callable[[str], None]) -> None:
        self.linear, self.tell, self.dtype = linear, tell, product_dtype(linear.hidden)
        self.with_graph = torch.is_grad_enabled()
        self.is_computed = False
        self.members: list[weakref.ref[DeferredLogits]] = []

    def logits(self) -> DeferredLogits:
        hidden, classes = self.linear.hidden, self.linear.weight.shape[0]
        layout = torch.empty((*hidden.shape[:-1], classes), dtype=self.dtype, device="meta")
        return self.member(self.linear, layout, ())

    def member(self, linear: Linear, layout: torch.Tensor, recipe: _Recipe) -> DeferredLogits:
        logits: DeferredLogits = _Defer.apply(linear.hidden, linear.weight, linear.bias, (layout,), self.dtype)  # type: ignore[no-untyped-call]
        logits._linear, logits._source, logits._recipe, logits._layout = linear, self, recipe, layout
        self.members.append(weakref.ref(logits))
        return logits

    def product(self) -> torch.Tensor:
        self.linear.check()
        bias = self.linear.bias
        with torch.autocast(self.linear.hidden.device.type, enabled=False), torch.set_grad_enabled(self.with_graph):
            return F.linear(
                self.linear.hidden.to(self.dtype),
                self.linear.weight.to(self.dtype),
                bias.to(self.dtype) if bias is not None else None,
            )

    def compute(self, asker: str) -> None:
        """Give every member that is still in use its values."""
        self.tell(asker)
        self.is_computed = True
        made: dict[_Recipe, torch.Tensor] = {(): self.product()}
        for member in (reference() for reference in self.members):
            if member is not None:
                member._real = _follow(member._recipe, made)


def _follow(recipe: _Recipe, made: dict[_Recipe, torch.Tensor]) -> torch.Tensor:
    for length in range(1, len(recipe) + 1):
        if recipe[:length] not in made:
            made[recipe[:length]] = recipe[length - 1](made[recipe[: length - 1]])
    return made[recipe]


class _Defer(torch.autograd.Function):
    """Ties deferred logits to what they are made of, for operations that do not ask `__torch_function__`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        layout: tuple[torch.Tensor],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.dtype = dtype
        logits: torch.Tensor = torch.Tensor._make_wrapper_subclass(
            DeferredLogits, layout[0].shape, layout[0].stride(), dtype=layout[0].dtype, device=hidden.device
        )
        return logits

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        states = hidden.reshape(-1, hidden.shape[-1]).to(ctx.dtype)
        rows = incoming.reshape(-1, weight.shape[0])
        products = rows.to(ctx.dtype)
        return (
            (products @ weight.to(ctx.dtype)).view(hidden.shape).to(hidden.dtype) if ctx.needs_input_grad[0] else None,
            (products.t() @ states).to(weight.dtype) if ctx.needs_input_grad[1] else None,
            rows.sum(0).to(bias.dtype) if ctx.needs_input_grad[2] else None,
            None,
            None,
        )


@final
class DeferredLogits(torch.Tensor):
    """Logits (..., classes) of a linear layer that have not been computed; `_real` once they have been."""

    _linear: Linear
    _source: Source
    _recipe: _Recipe
    _layout: torch.Tensor  # shape, strides and type, without memory
    _real: torch.Tensor | None = None
    _has_classes_second: bool = False  # (batch, classes, tokens), as `F.cross_entropy` takes three dimensions

    def _computed(self, asker: str) -> torch.Tensor:
        if self._real is None:
            self._source.compute(asker)
        assert self._real is not None
        return self._real

    def _derived(self, step: _Step, layout: torch.Tensor, **changes: Any) -> DeferredLogits:
        """What `step` makes of these logits: of hidden states, weight or bias given in `changes`."""
        return self._source.member(replace(self._linear, **changes), layout, (*self._recipe, step))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        logits = args[0] if args else None
        if func in _IDENTITY or (isinstance(logits, cls) and logits._real is None and func in _QUERIES):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        is_swapped = isinstance(logits, cls) and logits._has_classes_second
        handler = _HANDLERS.get(func) if not is_swapped or func is F.cross_entropy else None
        alone = not any(isinstance(one, cls) for one in (*args[1:], *kwargs.values()))
        if handler is not None and alone and isinstance(logits, cls) and logits._real is None:
            result = handler(logits, _Step(func, args[1:], kwargs))
            if result is not NotImplemented:
                return result
        asker = torch.overrides.resolve_name(func) or getattr(func, "__name__", repr(func))
        args, kwargs = tree_map_only(DeferredLogits, lambda one: one._computed(asker), (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it without cls
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # Below autograd, which has its own record of these logits (`_Defer`): values are needed, not a graph.
        if func._schema.is_mutable:
            raise RuntimeError(f"{func} changes logits that are deferred: set chunked_loss='off' for this model.")
        args, kwargs = tree_map_only(DeferredLogits, lambda one: one._data_of(str(func)), (args, kwargs or {}))
        return func(*args, **kwargs)

    def _data_of(self, asker: str) -> torch.Tensor:
        if self._real is not None:
            return self._real.detach()
        self._source.tell(asker)
        with torch.no_grad():
            return _follow(self._recipe, {(): self._source.product()}).detach()


def _cross_entropy(logits: DeferredLogits, step: _Step) -> Any:
    """The chunked one, where it is just that: integer labels, no weights of classes, no smoothing, one number."""
    (target, *further), options = step.arguments, dict(step.keywords)
    further_names = ("weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
    options.update(zip(further_names, further, strict=False))
    ignore_index, reduction = options.get("ignore_index", -100), options.get("reduction", "mean")
    unset = all(options.get(name) is None for name in ("weight", "size_average", "reduce"))
    if not unset or options.get("label_smoothing") or reduction not in ("mean", "sum"):
        return NotImplemented
    if type(target) is not torch.Tensor or target.dtype is not torch.int64:
        return NotImplemented
    shape = (
        logits._layout.shape[:1] + logits._layout.shape[2:] if logits._has_classes_second else logits._layout.shape[:-1]
    )
    if (
        logits._layout.dim() != 2 + logits._has_classes_second
        or target.dtype is not torch.int64
        or target.shape != shape
    ):
        return NotImplemented
    hidden, dtype = logits._linear.hidden, logits._layout.dtype
    if torch.promote_types(dtype, logits._source.dtype) is not dtype or target.device != hidden.device:
        return NotImplemented  # rounded logits have another loss
    logits._linear.check()
    loss = chunked_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        logits._linear.weight,
        target.reshape(-1),
        logits._linear.bias,
        ignore_index=ignore_index,
        reduction=reduction,
        dtype=logits._source.dtype,
    )
    return loss if torch.is_autocast_enabled(hidden.device.type) else loss.to(dtype)


def _reshaped(logits: DeferredLogits, step: _Step) -> Any:
    layout = step(logits._layout)
    if layout.dim() == 0 or layout.shape[-1] != logits._layout.shape[-1] or layout.dtype != logits._layout.dtype:
        return NotImplemented
    hidden = logits._linear.hidden  # rows of classes are kept together, so rows of hidden states are in the same order
    return logits._derived(step, layout, hidden=hidden.reshape(*layout.shape[:-1], hidden.shape[-1]))


def _taken(logits: DeferredLogits, step: _Step) -> Any:
    """Some of the positions, with all their classes."""
    (index,) = step.arguments
    entries = index if isinstance(index, tuple) else (index,)
    known = (int, slice, torch.Tensor, type(None), type(...))
    if any(not isinstance(entry, known) or isinstance(entry, (bool, DeferredLogits)) for entry in entries):
        return NotImplemented
    is_whole = isinstance(entries[-1], slice) and entries[-1] == slice(None) if entries else True
    used = sum(entry.dim() if _is_mask(entry) else entry is not None for entry in entries if entry is not ...)
    if any(entry is ... for entry in entries):
        leaves_classes = entries[-1] is ... or is_whole
    else:
        leaves_classes = used < logits._layout.dim() or is_whole
    if not leaves_classes:
        return NotImplemented
    hidden = logits._linear.hidden[index]
    if any(isinstance(entry, torch.Tensor) for entry in entries):
        layout = logits._layout.new_empty((*hidden.shape[:-1], logits._layout.shape[-1]))
    else:
        layout = step(logits._layout)
    return logits._derived(step, layout, hidden=hidden)


def _is_mask(entry: Any) -> bool:
    return isinstance(entry, torch.Tensor) and entry.dtype in (torch.bool, torch.uint8)


_CONVERSIONS = {
    torch.Tensor.float: torch.float32,
    torch.Tensor.double: torch.float64,
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
}


def _converted(logits: DeferredLogits, step: _Step) -> Any:
    """Another floating-point type, on the same device."""
    wanted = [_CONVERSIONS[step.function]] if step.function in _CONVERSIONS else []
    options = dict(step.keywords)
    for value in (*step.arguments, options.pop("dtype", None), options.pop("device", None), options.pop("other", None)):
        if isinstance(value, torch.dtype):
            wanted.append(value)
        elif isinstance(value, torch.Tensor):
            wanted.append(value.dtype)
        device = value.device if isinstance(value, torch.Tensor) else value
        is_device = isinstance(device, (str, int, torch.device)) and not isinstance(device, bool)
        if is_device and torch.device(device) != logits._linear.hidden.device:
            return NotImplemented
    if options.keys() - {"non_blocking"} or any(value is True for value in step.arguments[2:]):
        return NotImplemented  # a copy, another memory format
    dtype = wanted[-1] if wanted else logits._layout.dtype
    if not dtype.is_floating_point:
        return NotImplemented
    return logits if dtype == logits._layout.dtype else logits._derived(step, logits._layout.to(dtype))


def _swapped(logits: DeferredLogits, step: _Step) -> Any:
    """(batch, tokens, classes) to (batch, classes, tokens); every operation but the cross-entropy computes that."""
    before, layout = logits._layout.stride(), step(logits._layout)
    if layout.dim() != 3 or layout.stride() != (before[0], before[2], before[1]):
        return NotImplemented
    swapped = logits._derived(step, layout)
    swapped._has_classes_second = True
    return swapped


def _detached(logits: DeferredLogits, step: _Step) -> Any:
    bias = logits._linear.bias
    return logits._derived(
        step,
        logits._layout,
        hidden=logits._linear.hidden.detach(),
        weight=logits._linear.weight.detach(),
        bias=bias.detach() if bias is not None else None,
    )


def _shifted(logits: DeferredLogits, step: _Step) -> Any:
    """One number added to each class, as Bart's relatives do: a bias."""
    other, *further = step.arguments
    classes = logits._layout.shape[-1]
    if further or step.keywords or type(other) not in (torch.Tensor, nn.Parameter):
        return NotImplemented
    if other.shape[-1:] != (classes,) or other.numel() != classes or other.dim() > logits._layout.dim():
        return NotImplemented
    bias = other.reshape(-1) if logits._linear.bias is None else logits._linear.bias + other.reshape(-1)
    return logits._derived(step, logits._layout.to(torch.result_type(logits._layout, other)), bias=bias)


_IDENTITY = {torch.Tensor.__hash__}
_ATTRIBUTES = (
    "shape ndim dtype device layout requires_grad is_leaf grad_fn is_cuda is_sparse is_quantized is_meta is_nested "
    "itemsize nbytes"
)
_METHODS = (
    "size dim ndimension numel nelement stride element_size is_contiguous is_floating_point is_complex get_device "
    "__len__"
)
_QUERIES = {
    *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES.split()),
    *(getattr(torch.Tensor, name) for name in _METHODS.split()),
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}
_HANDLERS: dict[Any, Callable[[DeferredLogits, _Step], Any]] = {
    F.cross_entropy: _cross_entropy,
    torch.Tensor.__getitem__: _taken,
    torch.Tensor.to: _converted,
    **dict.fromkeys(_CONVERSIONS, _converted),
    **{
        function: handler
        for names, handler in (
            ("view reshape flatten squeeze unsqueeze contiguous", _reshaped),
            ("transpose swapaxes swapdims permute", _swapped),
            ("detach", _detached),
            ("add", _shifted),
        )
        for name in names.split()
        for function in (getattr(torch.Tensor, name), getattr(torch, name, None))
        if function is not None
    },
}
