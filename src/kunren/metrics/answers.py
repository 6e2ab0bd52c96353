"""A model's answers in one batch beside the right ones: flat, on the host, without the positions that are ignored.

What is asked is told by the shapes:

    logits (rows, ..., C), labels (rows, ...)        one of C classes; two of them: binary
    logits (rows, L), labels (rows, L) of 0 and 1    L labels, each of them there or not
    logits (rows, 1) or (rows,), labels (rows,)      one label, there or not; or a number, where numbers are compared
    logits (rows, C, height, width)                  one of C classes for each pixel
    whole numbers of the labels' shape               classes already

Only what a metric asks for is made, and no copy of the logits is: classes are taken on their device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.nn import functional

IGNORED_LABEL = -100
CLASSES, BINARY, MULTILABEL = "classes", "binary", "multilabel"


@dataclass(frozen=True)
class Task:
    """What the labels are: one of `size` classes, or `size` labels. `size` is None where nobody knows it."""

    kind: str
    size: int | None


@dataclass(frozen=True)
class Reading:
    """How a model's labels are to be read, beyond what shapes tell."""

    problem_type: str | None = None
    num_labels: int | None = None
    ignored: tuple[int, ...] = (IGNORED_LABEL,)

    @classmethod
    def of(cls, config: Any) -> Reading:
        """What the model's config says."""
        ignored = getattr(config, "semantic_loss_ignore_index", None)
        return cls(
            getattr(config, "problem_type", None),
            getattr(config, "num_labels", None),
            (IGNORED_LABEL,) if ignored is None else (IGNORED_LABEL, int(ignored)),
        )


class Answers:
    """`shifts`: position n answers label n + 1, as in causal language models."""

    def __init__(self, logits: Any, labels: Any, shifts: bool = False, reading: Reading | None = None) -> None:
        self._reading = reading or Reading()
        logits, labels = _the_logits(logits), _the_labels(labels)
        if logits.dim() == 2 and labels.shape == (len(logits), 1) and logits.shape[1] > 1:
            labels = labels[:, 0]  # one class a row, in a list
        self._labels: torch.Tensor = labels.to(logits.device)
        self._logits = _at_each_pixel(logits, labels)
        self._shifts = shifts and self._labels.dim() > 1

    @cached_property
    def task(self) -> Task:
        """ValueError where the labels are no classes, or do not belong to the logits."""
        logits, labels = self._logits, self._labels
        if self._reading.problem_type == "regression":
            raise ValueError("The labels are numbers (problem_type='regression'): choose mse, mae, r2, pearson, ...")
        if not logits.is_floating_point() and logits.shape == labels.shape:
            return Task(CLASSES, self._reading.num_labels)
        if self._is_single or (logits.shape == labels.shape and logits.dim() > 1):
            if not bool(((labels == 0) | (labels == 1)).all()):
                raise ValueError("The labels are numbers, not 0 and 1: choose mse, mae, r2, pearson, ...")
            return Task(BINARY, 2) if self._is_single else Task(MULTILABEL, logits.shape[-1])
        if logits.is_floating_point() and logits.shape[:-1] == labels.shape and not labels.is_floating_point():
            return Task(BINARY if logits.shape[-1] == 2 else CLASSES, logits.shape[-1])
        raise _do_not_match(logits, labels)

    @property
    def is_empty(self) -> bool:
        """Whether every label is ignored."""
        if self._labels.is_floating_point():
            return self._labels.numel() == 0
        return not bool(self._kept.any())

    @cached_property
    def labels(self) -> torch.Tensor:
        """(n,) class numbers, or (n, L) of 0 and 1. ValueError for a class that the model does not have."""
        if self.task.kind == MULTILABEL:
            return self._labels.reshape(-1, self._labels.shape[-1]).long().cpu()
        labels = self._right.reshape(-1)[self._kept.reshape(-1)].long().cpu()
        size = self.task.size
        if size is not None and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < size:
            wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
            raise ValueError(f"A label is {wrong}: the model has {size} classes, 0 to {size - 1}.")
        return labels

    @cached_property
    def classes(self) -> torch.Tensor:
        """What the model answers, in the shape of `labels`."""
        if self.task.kind == MULTILABEL:
            return self._chosen.reshape(self.labels.shape).cpu()
        return self._flat(self._chosen)

    @cached_property
    def scores(self) -> torch.Tensor:
        """Probabilities: (n,) of class 1, (n, C) of each class, or (n, L) of each label."""
        logits = self._logits
        if not logits.is_floating_point():
            raise ValueError("auroc and average_precision need logits; the model's outputs are classes already.")
        if self.task.kind == MULTILABEL or self._is_single:
            scores = logits.float().sigmoid()
            return (self._flat(scores.reshape(self._labels.shape)) if self._is_single else scores.flatten(0, -2)).cpu()
        scores = self._flat(logits).float().softmax(-1)
        return scores[:, 1] if self.task.kind == BINARY else scores

    @cached_property
    def right(self) -> torch.Tensor:
        """(n,): where the whole answer is right; with several labels to a row, all of them have to be."""
        right = self.classes == self.labels
        return right.reshape(len(right), -1).all(-1)

    @cached_property
    def right_rows(self) -> torch.Tensor:
        """(rows,): where all answers of a row are right; rows in which nothing counts are left out."""
        if self.task.kind == MULTILABEL:
            return self.right
        wrong = (self._in_place(self._chosen) != self._right) & self._kept
        counting = self._kept.flatten(1).any(1) if self._kept.dim() > 1 else self._kept
        return ~(wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong)[counting].cpu()

    def among_best(self, count: int) -> torch.Tensor:
        """(n,): where the right class is among the `count` likeliest."""
        if self.task.kind == MULTILABEL or self._is_single or not self._logits.is_floating_point():
            raise ValueError(f"top_{count}_accuracy needs the logits of several classes.")
        best = self._logits.topk(min(count, self._logits.shape[-1]), dim=-1).indices
        return (self._flat(best) == self.labels[:, None]).any(-1)

    @cached_property
    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Predicted and right numbers, both (n, k), in double precision: sums of squares need it."""
        logits, labels = self._logits, self._labels
        problem = self._reading.problem_type
        if problem not in (None, "regression"):
            raise ValueError(f"The labels are classes (problem_type={problem!r}): choose accuracy, f1, auroc, ...")
        if not logits.is_floating_point() or logits.numel() != labels.numel():
            raise ValueError(
                f"It compares a predicted number with each label, and the logits have shape {tuple(logits.shape)}, the "
                f"labels {tuple(labels.shape)} ({labels.dtype}): for classes choose accuracy, f1, auroc, ..."
            )
        width = logits.shape[-1] if logits.dim() > 1 else 1
        return logits.cpu().double().reshape(-1, width), labels.cpu().double().reshape(-1, width)

    # ---- rows and positions

    @property
    def _is_single(self) -> bool:
        logits, labels = self._logits, self._labels
        return (
            logits.is_floating_point()
            and logits.numel() == labels.numel()
            and (logits.dim() == 1 or logits.shape[-1] == 1)
        )

    @cached_property
    def _chosen(self) -> torch.Tensor:
        """Classes in the labels' shape, before the shift."""
        logits = self._logits
        if not logits.is_floating_point():
            return logits
        if self.task.kind == MULTILABEL or self._is_single:
            return (logits > 0).long().reshape(self._labels.shape)
        return logits.argmax(-1)

    @property
    def _right(self) -> torch.Tensor:
        return self._labels[:, 1:] if self._shifts else self._labels

    @cached_property
    def _kept(self) -> torch.Tensor:
        kept = torch.ones_like(self._right, dtype=torch.bool)
        for label in self._reading.ignored:
            kept &= self._right != label
        return kept

    def _in_place(self, answers: torch.Tensor) -> torch.Tensor:
        return answers[:, :-1] if self._shifts else answers

    def _flat(self, answers: torch.Tensor) -> torch.Tensor:
        """(rows, positions, ...) to (n, ...): those that count, on the host."""
        return self._in_place(answers)[self._kept].cpu()


def _the_labels(labels: Any) -> torch.Tensor:
    if isinstance(labels, (tuple, list)) and len(labels) == 1:
        labels = labels[0]
    if not isinstance(labels, torch.Tensor):
        found = type(labels).__name__
        raise ValueError(f"metrics=[...] compares logits with a tensor of labels, not a {found}: use compute_metrics.")
    return labels


def _the_logits(outputs: Any) -> torch.Tensor:
    """The first of several outputs, as everywhere in the field."""
    while not isinstance(outputs, torch.Tensor):
        if isinstance(outputs, Mapping) and outputs:
            outputs = outputs.get("logits", next(iter(outputs.values())))
        elif isinstance(outputs, (tuple, list)) and outputs:
            outputs = outputs[0]
        else:
            raise ValueError(f"metrics=[...] found no logits, but a {type(outputs).__name__}: use compute_metrics.")
    return outputs


def _at_each_pixel(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(rows, C, height, width) to (rows, height, width, C) at the labels' size, as the losses of such models do it."""
    if logits.dim() != 4 or labels.dim() != 3 or logits.shape[:-1] == labels.shape:
        return logits
    if logits.shape[-2:] != labels.shape[-2:]:
        logits = functional.interpolate(logits, size=labels.shape[-2:], mode="bilinear", align_corners=False)
    return logits.movedim(1, -1)


def _do_not_match(logits: torch.Tensor, labels: torch.Tensor) -> ValueError:
    return ValueError(
        f"Logits of shape {tuple(logits.shape)} and labels of shape {tuple(labels.shape)} ({labels.dtype}) cannot be "
        "compared by metrics=[...]: use compute_metrics."
    )
