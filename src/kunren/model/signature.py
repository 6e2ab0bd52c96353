"""Reading a model: through its wrappers, what `forward` takes, what its labels are called, whether it shifts them."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import nn

_WRAPPER_ATTRIBUTES = ("module", "_orig_mod")  # DistributedDataParallel and DataParallel; torch.compile
_CAUSAL_LOSSES = ("ForCausalLMLoss",)
_QUESTION_ANSWERING_LABELS = ("start_positions", "end_positions")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module, under data-parallel and `torch.compile` wrappers."""
    while True:
        candidates = (_wrapped(model, name) for name in _WRAPPER_ATTRIBUTES)
        inner = next((candidate for candidate in candidates if candidate is not None), None)
        if inner is None:
            return model
        model = inner


def _wrapped(model: nn.Module, name: str) -> nn.Module | None:
    # A user's own model may well have a child called `module`: only torch's wrappers, and ours, are looked through.
    inner = model.__dict__.get("_modules", {}).get(name)
    return inner if inner is not None and type(model).__module__.startswith(("torch.", "kunren.engine.")) else None


def base_of(model: nn.Module) -> nn.Module:
    """The model below adapters as well: the one whose `forward` names the inputs."""
    model = unwrap(model)
    get_base_model = getattr(model, "get_base_model", None)
    return unwrap(get_base_model()) if callable(get_base_model) else model


def is_pretrained(model: nn.Module) -> bool:
    """Whether the model saves and describes itself the way transformers' models do."""
    return hasattr(model, "save_pretrained") and hasattr(model, "config")


@dataclass(frozen=True)
class Signature:
    """What `forward` takes. `open_ended`: any column may be an input, so none may be dropped."""

    names: tuple[str, ...]
    takes_keywords: bool
    open_ended: bool
    label_names: tuple[str, ...]
    can_return_loss: bool

    @property
    def takes_count(self) -> bool:
        """Whether `num_items_in_batch` can be passed to `forward` at all; whether it is used shows at run time."""
        return self.takes_keywords or "num_items_in_batch" in self.names


def read_signature(model: nn.Module) -> Signature:
    """Inspect `forward` once, at set-up."""
    base = base_of(model)
    parameters = inspect.signature(base.forward).parameters
    named = tuple(name for name, item in parameters.items() if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL))
    takes_keywords = any(item.kind is item.VAR_KEYWORD for item in parameters.values())
    labels = [name for name in named if "label" in name]
    if "QuestionAnswering" in type(base).__name__:
        labels += [name for name in named if name in _QUESTION_ANSWERING_LABELS]
    return_loss = parameters.get("return_loss")
    return Signature(
        names=named,
        takes_keywords=takes_keywords,
        # transformers' models pass their keywords on as options, not as data: their named inputs are all there is.
        open_ended=takes_keywords and not (is_pretrained(base) and len(named) > 0),
        label_names=tuple(labels),
        can_return_loss=return_loss is not None and return_loss.default is True,
    )


def looks_at(model: nn.Module, names: Collection[str]) -> bool:
    """Whether `forward` reads one of these arguments, or its keywords: if not, it can make nothing of them."""
    forward = inspect.unwrap(base_of(model).forward)
    parameters = inspect.signature(forward).parameters.values()
    own = {item.name for item in parameters if item.name in names or item.kind is item.VAR_KEYWORD}
    code = getattr(forward, "__code__", None)
    if code is None or not own:
        return bool(own)
    reads = ("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")  # some of them read two names at once
    values = (item.argval for item in dis.get_instructions(code) if item.opname.startswith(reads))
    return any(own.intersection(value if isinstance(value, tuple) else (value,)) for value in values)


def shifts_labels(model: nn.Module) -> bool:
    """Whether the model's loss lets position n predict label n + 1, so that the first label of a row is not predicted.

    Decided by the loss that the model itself resolves to, never by its class name: subclasses, wrappers and models
    whose `loss_type` is unset (GPT-2) are right as well. Encoder-decoders compare their labels unshifted.
    """
    base = base_of(model)
    config = getattr(base, "config", None)
    if config is None or getattr(config, "is_encoder_decoder", False):
        return False
    loss_function: Any = getattr(base, "loss_function", None)
    if getattr(loss_function, "__name__", "") not in _CAUSAL_LOSSES:
        return False
    # Every transformers model has a `loss_function`, also one that computes its own loss, unshifted (Bart's decoder).
    return _calls_loss_function(base) and (getattr(base, "loss_type", None) is not None or _generates(base))


def _calls_loss_function(model: nn.Module) -> bool:
    """Whether some `forward` of the model's classes names `loss_function`: its own, one it inherits, or wraps."""
    for kind in type(model).__mro__:
        forward = kind.__dict__.get("forward")
        code = getattr(inspect.unwrap(forward), "__code__", None) if forward is not None else None
        if code is not None and "loss_function" in code.co_names:
            return True
    return False


def _generates(model: nn.Module) -> bool:
    can_generate = getattr(model, "can_generate", None)
    return bool(callable(can_generate) and can_generate())
