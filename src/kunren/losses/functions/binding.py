"""Calling any of these functions with what there is: the outputs of a model, what its batch holds, its config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

import torch
from torch import nn

from kunren.losses.counting import IGNORED_LABEL
from kunren.model.signature import Signature, is_pretrained

LABELS = ("labels", "start_positions", "end_positions")
_SHIFTED, _MEAN_OVER_ROWS = ("ForCausalLMLoss",), ("ForCTCLoss",)  # by name, as transformers has them too
_OUTPUT_NAMES = {"pooled_logits": "logits"}
_CONFIG_NAMES = {
    "blank_token_id": "pad_token_id",
    "reduction": "ctc_loss_reduction",
    "zero_infinity": "ctc_zero_infinity",
    "ignore_index": "semantic_loss_ignore_index",
}
# What needs no column and no output of its own: it follows from the rest.
_FOLLOWING = ("logits", "pooled_logits", "vocab_size", "device", "config", "num_items_in_batch", *_CONFIG_NAMES)


@final
class NamedLoss:
    """The loss that goes with a model's class name.

    `stands_in`: the model's forward cannot make a loss, as it does not look at labels, so that this is the model's loss
    whatever it returns. Otherwise it is only asked where a dict comes back without a loss.
    """

    def __init__(self, function: Callable[..., Any], model: nn.Module, signature: Signature, stands_in: bool) -> None:
        self.function, self.stands_in = function, stands_in
        self.model_name = type(model).__name__
        self.config = getattr(model, "config", None)
        parameters = inspect.signature(function).parameters.values()
        named = [item for item in parameters if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)]
        self.defaults = {item.name: item.default for item in named}
        self.takes_count = "num_items_in_batch" in self.defaults or len(named) < len(parameters)
        self.label_names = tuple(name for name in LABELS if name in self.defaults)
        self.apart: tuple[str, ...] = ()  # what the batch holds for the loss only
        if stands_in and not signature.takes_keywords:
            own = (*signature.names, *_FOLLOWING)
            self.apart = tuple(name for name in self.defaults if name not in own)
        name = getattr(function, "__name__", "")
        self.compares_unshifted = bool(getattr(self.config, "is_encoder_decoder", False))
        self.shifts_labels = stands_in and name in _SHIFTED and not self.compares_unshifted
        self.ignored_label: int | None = IGNORED_LABEL
        if stands_in or is_pretrained(model):
            self.ignored_label = None if name in _MEAN_OVER_ROWS else self._configured("ignore_index", IGNORED_LABEL)

    def _configured(self, name: str, otherwise: Any) -> Any:
        if name not in self.defaults:
            return otherwise
        return getattr(self.config, _CONFIG_NAMES.get(name, name), self.defaults[name])

    def joined_to(self, signature: Signature) -> Signature:
        """What the model and its loss take."""
        if not self.stands_in:
            return signature
        names = (*signature.names, *self.apart)
        return replace(signature, names=names, label_names=self.label_names or signature.label_names)

    def without(self, inputs: Any) -> Any:
        """The inputs that `forward` takes."""
        if not isinstance(inputs, Mapping):
            return inputs
        return {name: value for name, value in inputs.items() if name not in self.apart}

    def take_from(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What `forward` does not take, out of `inputs`."""
        return {name: inputs.pop(name) for name in self.apart if name in inputs}

    def is_asked(self, outputs: Any, inputs: Any) -> bool:
        """Whether the model left its loss to this function. `inputs`: those of `take_from` as well."""
        is_mapping = isinstance(outputs, Mapping)
        loss = outputs.get("loss") if is_mapping else getattr(outputs, "loss", None)
        if loss is not None or not (self.stands_in or is_mapping) or not isinstance(inputs, Mapping):
            return False
        labelled = all(inputs.get(name) is not None for name in self.label_names)
        return labelled or inputs.get("shift_labels") is not None

    def __call__(self, outputs: Any, inputs: Mapping[str, Any], count: Any) -> tuple[torch.Tensor, Any]:
        """The loss, and the outputs as models with a loss return them: it is the first of a tuple.

        `count`: the labels of the whole window, for functions that divide by it.
        """
        given = {**inputs, **self._by_name(outputs)}
        arguments = {name: self._argument(name, given) for name in self.defaults if name != "num_items_in_batch"}
        missing = [name for name, value in arguments.items() if value is inspect.Parameter.empty]
        if missing:
            self._refuse(missing, outputs, inputs)
        if self.takes_count and self.stands_in:
            arguments["num_items_in_batch"] = count
        loss = self.function(**arguments)
        loss = loss[0] if isinstance(loss, tuple) else loss
        if isinstance(outputs, torch.Tensor):
            return loss, (loss, outputs)
        return loss, (loss, *outputs) if isinstance(outputs, (tuple, list)) else outputs

    def _by_name(self, outputs: Any) -> dict[str, Any]:
        """The outputs that are there; those of a tuple take the names of what the function needs, in its order."""
        if isinstance(outputs, torch.Tensor):
            outputs = (outputs,)
        if isinstance(outputs, (tuple, list)):
            needed = [name for name, default in self.defaults.items() if default is inspect.Parameter.empty]
            own = [name for name in needed if name not in (*LABELS, "logit_lengths") and name not in _FOLLOWING[2:]]
            return {_OUTPUT_NAMES.get(name, name): value for name, value in zip(own, outputs, strict=False)}
        if isinstance(outputs, Mapping):
            return {str(name): value for name, value in outputs.items() if value is not None}
        names = (_OUTPUT_NAMES.get(name, name) for name in self.defaults)
        return {name: value for name in names if (value := getattr(outputs, name, None)) is not None}

    def _argument(self, name: str, given: Mapping[str, Any]) -> Any:
        key = _OUTPUT_NAMES.get(name, name)
        if given.get(key) is not None:
            return given[key]
        logits = given.get("logits")
        if name == "config":
            return self.config
        if name == "shift_labels" and self.compares_unshifted:
            return given.get("labels")
        if name == "labels" and given.get("shift_labels") is not None:
            return None
        if name == "blank_token_id" and self.config is None:
            return 0
        if isinstance(logits, torch.Tensor):
            if name == "vocab_size":
                return logits.shape[-1]
            if name == "logit_lengths":
                return _frames(logits, given.get("attention_mask"))
        if name == "device":
            return next((value.device for value in given.values() if isinstance(value, torch.Tensor)), None)
        return self._configured(name, inspect.Parameter.empty)

    def _refuse(self, missing: list[str], outputs: Any, inputs: Mapping[str, Any]) -> None:
        found = ", ".join(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise ValueError(
            f"{self.model_name} returned no loss, only: {found}. The loss that its name asks for, "
            f"{getattr(self.function, '__name__', self.function)}, also needs: {', '.join(missing)}. Let forward "
            f"return a dict with them, or with the key 'loss', or have them in the batch, which holds: "
            f"{', '.join(map(str, inputs))}."
        )


def _frames(logits: torch.Tensor, mask: Any) -> Any:
    """How many frames of each row count; nothing where that cannot be told."""
    rows, frames = logits.shape[:2]
    if mask is None:
        return torch.full((rows,), frames, dtype=torch.int64)
    return mask.sum(dim=-1) if mask.shape[-1] == frames else inspect.Parameter.empty
