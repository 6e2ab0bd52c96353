"""What differs between two checkpoints: state, arguments, every tensor, and the optimizer. One tensor at a time."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kunren.checkpoint import layout
from kunren.checkpoint.formats import SHARDED_CONTENTS_NAME, SHARDED_OPTIMIZER_NAME, SHARDED_WEIGHTS_NAME
from kunren.checkpoint.parts import load_training_args
from kunren.checkpoint.store import MANIFEST_NAME
from kunren.cli.checkpoint_contents import Weights, files_of, mapped, state_of, weight_files

_CHUNK = 1 << 22
_COMPARED_ELSEWHERE = {
    MANIFEST_NAME,
    layout.TRAINER_STATE_NAME,
    layout.TRAINING_ARGS_NAME,
    layout.OPTIMIZER_NAME,
    layout.OPTIMIZER_NAME_BIN,
}
_IN_PARTS = (f"{SHARDED_WEIGHTS_NAME}/", f"{SHARDED_OPTIMIZER_NAME}/")
_ABSENT = "(absent)"


@dataclass(frozen=True)
class TensorDifference:
    """One tensor that both have. The numbers are None where the shapes differ; nan where a nan stands on one side."""

    name: str
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    dtypes: tuple[str, str]
    max_difference: float | None = None
    differing: int | None = None
    elements: int | None = None

    @property
    def form(self) -> str:
        one, other = (f"{list(shape)} {dtype}" for shape, dtype in zip(self.shapes, self.dtypes, strict=True))
        return one if one == other else f"{one} | {other}"

    @property
    def largest(self) -> str:
        return "" if self.max_difference is None else f"{self.max_difference:.3g}"

    @property
    def share(self) -> str:
        return "" if self.differing is None else f"{self.differing:,} of {self.elements:,}"

    @property
    def sort_key(self) -> tuple[int, float]:
        """Other shapes first, then nan, then from the largest difference down."""
        if self.max_difference is None:
            return (0, 0.0)
        return (1, 0.0) if math.isnan(self.max_difference) else (2, -self.max_difference)


@dataclass
class Difference:
    """Everything that differs; what is equal is only counted."""

    state: list[tuple[str, Any, Any]] = field(default_factory=list)
    arguments: list[tuple[str, Any, Any]] = field(default_factory=list)
    only_first: list[str] = field(default_factory=list)
    only_second: list[str] = field(default_factory=list)
    tensors: list[TensorDifference] = field(default_factory=list)
    equal_tensors: int = 0
    optimizer: str = "equal"
    optimizer_differs: bool = False
    files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        found = (self.state, self.arguments, self.only_first, self.only_second, self.tensors, self.files)
        return not any(found) and not self.optimizer_differs

    @property
    def values_are_equal(self) -> bool:
        """Whether a run would go on with the same numbers: logs, arguments and other files may differ."""
        state = [name for name, _, _ in self.state if name != "log_history"]
        return not (state or self.only_first or self.only_second or self.tensors or self.optimizer_differs)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what differs by name, with the values of both sides."""
        values = dataclasses.asdict(self)
        for name in ("state", "arguments"):
            values[name] = {key: {"first": one, "second": other} for key, one, other in values[name]}
        return {**values, "equal": self.is_empty, "values_are_equal": self.values_are_equal}


def compare(first: Path, second: Path) -> Difference:
    """ValueError for weights that cannot be read."""
    difference = Difference()
    difference.state = _state(state_of(first), state_of(second))
    _compare_arguments(first, second, difference)
    _compare_tensors(Weights(first), Weights(second), difference)
    difference.optimizer = _optimizer(first, second)
    difference.optimizer_differs = difference.optimizer not in ("equal", "none in either")
    difference.files = list(_other_files(first, second))
    return difference


def difference_of(one: Tensor, other: Tensor) -> tuple[float, int]:
    """Largest absolute difference and number of differing elements; two nans in one place are equal."""
    largest, differing = 0.0, 0
    flat, other_flat = one.reshape(-1), other.reshape(-1)
    for start in range(0, flat.numel(), _CHUNK):
        part, other_part = flat[start : start + _CHUNK], other_flat[start : start + _CHUNK]
        wide = torch.complex128 if part.is_complex() or other_part.is_complex() else torch.float64
        left, right = part.to(wide), other_part.to(wide)
        unequal = (left != right) & ~(left.isnan() & right.isnan())
        if part.dtype == other_part.dtype == torch.int64:
            unequal = part != other_part  # exact beyond the 53 bits of a double
        count = int(unequal.sum())
        if count:
            differing += count
            here = float((left[unequal] - right[unequal]).abs().max())
            largest = here if math.isnan(here) or here > largest else largest
    return largest, differing


def _state(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Run folders and wall-clock times differ between any two runs, so they do not count."""
    plain = [{**state, "log_history": None, "best_model_checkpoint": _best(state)} for state in (first, second)]
    rows = _differing(*plain)
    logs = [[_without_times(entry) for entry in state.get("log_history") or []] for state in (first, second)]
    if logs[0] != logs[1]:
        common = 0
        for one, other in zip(*logs, strict=False):
            if one != other:
                break
            common += 1
        texts = [f"{len(log)} entries, of which the first {common} are equal" for log in logs]
        rows.append(("log_history", texts[0], texts[1]))
    return rows


def _best(state: dict[str, Any]) -> str | None:
    best = state.get("best_model_checkpoint")
    return None if best is None else Path(best).name


def _without_times(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if not name.endswith(("_runtime", "_per_second"))}


def _differing(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    names = [*first, *(name for name in second if name not in first)]
    pairs = [(name, first.get(name, _ABSENT), second.get(name, _ABSENT)) for name in names]
    return [(name, one, other) for name, one, other in pairs if repr(one) != repr(other)]


def _compare_arguments(first: Path, second: Path, difference: Difference) -> None:
    arguments = []
    for side, folder in (("A", first), ("B", second)):
        loaded = load_training_args(folder)
        arguments.append(loaded)
        if loaded is None:
            there = (folder / layout.TRAINING_ARGS_NAME).is_file()
            reason = "are pickled, and reading them could run code" if there else "are not there"
            difference.notes.append(f"the arguments of {side} {reason}, so they are not compared")
    if arguments[0] is not None and arguments[1] is not None:
        difference.arguments = _differing(arguments[0], arguments[1])


def _compare_tensors(first: Weights, second: Weights, difference: Difference) -> None:
    difference.only_first, difference.only_second = _only_in(first, second), _only_in(second, first)
    for name in sorted(first.forms.keys() & second.forms.keys()):
        one, other = first.forms[name], second.forms[name]
        found = TensorDifference(name, (one.shape, other.shape), (one.dtype, other.dtype))
        if one.shape == other.shape:
            largest, differing = difference_of(first.read(name), second.read(name))
            if differing == 0 and one.dtype == other.dtype:
                difference.equal_tensors += 1
                continue
            found = dataclasses.replace(found, max_difference=largest, differing=differing, elements=one.elements)
        difference.tensors.append(found)


def _only_in(one: Weights, other: Weights) -> list[str]:
    """Names that only one has, but for further names of a tensor that both have: transformers writes one of a tie."""
    shared = {(form.path, form.stored_as) for name, form in one.forms.items() if name in other.forms}
    names = sorted(one.forms.keys() - other.forms.keys())
    return [name for name in names if (one.forms[name].path, one.forms[name].stored_as) not in shared]


def _optimizer(first: Path, second: Path) -> str:
    """One line on the optimizers: hyperparameters of the groups, and moments."""
    paths = [layout.optimizer_in(folder) for folder in (first, second)]
    if paths[0] is None and paths[1] is None:
        return "none in either"
    if paths[0] is None or paths[1] is None:
        return f"only in {'B' if paths[0] is None else 'A'}"
    try:
        one, other = _optimizer_state(paths[0]), _optimizer_state(paths[1])
        groups = [state["param_groups"] for state in (one, other)]
        states = [state["state"] for state in (one, other)]
    except (ValueError, KeyError, TypeError) as error:
        return f"not compared ({error})"
    parts = _groups(groups[0], groups[1]) + _moments(states[0], states[1])
    return "; ".join(parts) or "equal"


def _optimizer_state(path: Path) -> Any:
    if path.name != SHARDED_CONTENTS_NAME:
        return mapped(path)

    from kunren.checkpoint.formats import sharded_optimizer

    return sharded_optimizer.read(path)


def _groups(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[str]:
    if len(first) != len(second):
        return [f"{len(first)} and {len(second)} parameter groups"]
    found = []
    for one, other in zip(first, second, strict=True):
        found += [f"{name} {old!r} and {new!r}" for name, old, new in _differing(one, other) if name != "params"]
        if len(one["params"]) != len(other["params"]):
            found.append(f"groups of {len(one['params'])} and {len(other['params'])} parameters")
    return list(dict.fromkeys(found))


def _moments(first: dict[Any, Any], second: dict[Any, Any]) -> list[str]:
    shared = first.keys() & second.keys()
    found = [] if first.keys() == second.keys() else [f"states of {len(first)} and {len(second)} parameters"]
    differing, largest = 0, 0.0
    for index in shared:
        pairs = [(first[index].get(key), second[index].get(key)) for key in {*first[index], *second[index]}]
        unequal = False
        for one, other in pairs:
            if isinstance(one, Tensor) and isinstance(other, Tensor) and one.shape == other.shape:
                here, count = difference_of(one, other)
                largest = here if math.isnan(here) or here > largest else largest
                unequal = unequal or count > 0
            else:
                unequal = unequal or repr(one) != repr(other)
        differing += unequal
    if differing:
        found.append(f"states of {differing} of {len(shared)} parameters differ, by {largest:.3g} at most")
    return found


def _other_files(first: Path, second: Path) -> Iterator[str]:
    """Files that are not compared by content: which differ, by their bytes."""
    sides = []
    for folder in (first, second):
        ours = set(weight_files(folder))
        names = {path.relative_to(folder).as_posix() for path in files_of(folder) if path not in ours}
        sides.append({name for name in names - _COMPARED_ELSEWHERE if not name.startswith(_IN_PARTS)})
    for name in sorted(sides[0] | sides[1]):
        if name not in sides[1]:
            yield f"{name} only in A"
        elif name not in sides[0]:
            yield f"{name} only in B"
        elif _sha256(first / name) != _sha256(second / name):
            yield f"{name} differs"


def _sha256(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.digest()
