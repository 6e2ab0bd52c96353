"""One process that sees several GPUs, and divides each batch among them: torch's DataParallel, with the right loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.base.nested import to_device
from kunren.engine.backends.plain import PlainBackend
from kunren.losses.counting import counted_labels
from kunren.model.signature import shifts_labels

_COUNT = "num_items_in_batch"
_LEFT_OUT: Final = object()


@final
class DataParallelBackend(PlainBackend):
    """Copies the model to the other devices in every forward pass; gradients come together on the first."""

    def __init__(self, args: Any) -> None:
        if args.device.type == "cpu":
            raise ValueError(f"The arguments say that {args.n_gpu} GPUs are used, and the model trains on the CPU.")
        if args.torch_compile:
            raise ValueError(
                f"torch_compile=True and one process with {args.n_gpu} GPUs: what is compiled cannot be copied to the "
                f"others in every step. Start a process for each: torchrun --nproc-per-node={args.n_gpu}."
            )
        super().__init__(args)
        self._args = args

    def place(self, model: nn.Module) -> None:
        super().place(model)
        if _has_its_own_devices(model):
            self._args._n_gpu = 1  # from here on a batch is that of one device

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> nn.Module:
        model = super().prepare(model, optimizer)
        if self._args.n_gpu == 1:
            return model
        return DevicesTogether(model, list(range(self._args.n_gpu)), self._args.label_names or ["labels"])


def _has_its_own_devices(model: nn.Module) -> bool:
    places = getattr(model, "hf_device_map", None) or {}
    return len(set(map(str, places.values()))) > 1 or bool(getattr(model, "is_quantized", False))


@final
class DevicesTogether(nn.DataParallel[nn.Module]):
    """A model on several devices, which answers as on one: with the loss of the whole batch, and rows in order."""

    def __init__(self, model: nn.Module, devices: Sequence[int], label_names: Sequence[str]) -> None:
        super().__init__(model, list(devices))
        self._label_names, self._shifts_labels = label_names, shifts_labels(model)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        parts = divided(inputs, keywords, len(self.device_ids), self._label_names, self._shifts_labels)
        if len(parts) == 1:
            return self.module(*inputs, **keywords)
        devices = self.device_ids[: len(parts)]
        here = [
            to_device((part.inputs, part.keywords), torch.device(self.src_device_obj.type, device))
            for part, device in zip(parts, devices, strict=True)
        ]
        replicas = self.replicate(self.module, devices)
        outputs = self.parallel_apply(replicas, [one[0] for one in here], [one[1] for one in here])
        return joined(outputs, [part.weight for part in parts], self.src_device_obj)


@dataclass
class Part:
    """What one device is given of a batch, and the share of its labels in all of them."""

    inputs: tuple[Any, ...]
    keywords: dict[str, Any]
    weight: float


def divided(
    inputs: tuple[Any, ...],
    keywords: Mapping[str, Any],
    parts: int,
    label_names: Sequence[str] = ("labels",),
    shifts: bool = False,
) -> list[Part]:
    """A batch in at most so many parts, each with the rows that follow those of the one before; ValueError if it has
    none.

    With n_i labels of n in part i and a count N in the call, the part is handed N * n_i / n. A loss that is a sum over
    labels by the count is then, weighted by n_i / n and added up, the sum over all by N; and one that is a mean, the
    mean over all.
    """
    count = keywords.get(_COUNT)
    named = {key: value for key, value in keywords.items() if key != _COUNT}
    rows = _rows_of((*inputs, *named.values()))
    size = -(-rows // parts)
    found, counts = [], []
    for start in range(0, rows, size):
        part = slice(start, start + size)
        own = {key: _rows(value, part) for key, value in named.items()}
        unnamed = tuple(_rows(value, part) for value in inputs)
        found.append(Part(unnamed, own, 0.0))
        batch = {**{str(index): value for index, value in enumerate(unnamed)}, **own}
        counts.append(float(counted_labels(batch, shifts, label_names)))
    total = sum(counts)
    for one, of_part in zip(found, counts, strict=True):
        one.weight = of_part / total if total else 1 / len(found)
        if count is not None:
            one.keywords[_COUNT] = count * (one.weight or 1.0)  # without labels, anything that can be divided by
    return found


def _rows_of(values: Sequence[Any]) -> int:
    found = {value.shape[0] for value in values if isinstance(value, torch.Tensor) and value.dim() > 0}
    nested = [type(value).__name__ for value in values if isinstance(value, (Mapping, list, tuple)) and value]
    if nested or len(found) != 1:
        what = f"a {nested[0]}" if nested else f"tensors of {sorted(found)} rows"
        raise ValueError(
            f"This process sees several GPUs, and a batch with {what} cannot be divided among them: start a process "
            "for each with torchrun, or let it see one (CUDA_VISIBLE_DEVICES=0)."
        )
    return int(found.pop())


def _rows(value: Any, part: slice) -> Any:
    return value[part] if isinstance(value, torch.Tensor) and value.dim() > 0 else value


def joined(outputs: Sequence[Any], weights: Sequence[float], device: torch.device) -> Any:
    """The outputs of the parts of a batch as those of the whole: scalars as a weighted sum, rows behind each other.

    What cannot be joined (caches of keys and values) is left out of a dict.
    """
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        if first.dim() == 0:
            return _sum(outputs, weights, device)
        return torch.cat([output.to(device) for output in outputs])
    if isinstance(first, Mapping):
        named: dict[str, Any] = {}
        for key, value in first.items():
            values = [output[key] for output in outputs]
            is_loss = key == "loss" and isinstance(value, torch.Tensor) and value.numel() == 1
            whole = _sum(values, weights, device) if is_loss else joined(values, weights, device)
            if whole is not _LEFT_OUT:
                named[key] = whole
        return type(first)(**named)
    if isinstance(first, (tuple, list)):
        items = [joined(values, weights, device) for values in zip(*outputs, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
    return first if first is None or isinstance(first, (bool, int, float, str)) else _LEFT_OUT


def _sum(values: Sequence[torch.Tensor], weights: Sequence[float], device: torch.device) -> torch.Tensor:
    # A part without labels has a mean of 0 / 0, and NaN times 0 is NaN.
    counting = [value.to(device).reshape(()) * weight for value, weight in zip(values, weights, strict=True) if weight]
    return torch.stack(counting).sum()
