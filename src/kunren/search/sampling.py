"""Suggestions that are the same again: after a restart as in a search that was never interrupted."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy

from kunren.base.random_state import mix

_DEEPEST = 4


def seeded_sampler(kind: Any, seed: int) -> Any:
    """A sampler like optuna's default `kind`, whose random numbers belong to seed, trial and hyperparameter.

    So a resumed study goes on as it would have, and of several processes that share one none repeats another.
    """
    optuna = importlib.import_module("optuna")

    class SeededSampler(optuna.samplers.BaseSampler):  # type: ignore[misc, name-defined]
        """Asks a new sampler, seeded, for each value."""

        def _for(self, trial: Any, what: str) -> Any:
            return kind(seed=mix(seed, trial.number, zlib.crc32(what.encode())) & 0xFFFFFFFF)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._for(trial, "").infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._for(trial, "").sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            return self._for(trial, param_name).sample_independent(study, trial, param_name, param_distribution)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            self._for(trial, "").after_trial(study, trial, state, values)

    return SeededSampler()


def random_state_of(sampler: Any) -> list[Any]:
    """The state of each random generator of a sampler that was given, as plain values."""
    states = []
    for generator in _generators(sampler):
        name, keys, position, has_gauss, gauss = generator.get_state()
        states.append([name, [int(key) for key in keys], int(position), int(has_gauss), float(gauss)])
    return states


def put_random_state(sampler: Any, states: list[Any]) -> bool:
    """Put back what `random_state_of` took; False where the sampler is another one."""
    generators = list(_generators(sampler))
    if len(generators) != len(states):
        return False
    for generator, (name, keys, *rest) in zip(generators, states, strict=True):
        generator.set_state((name, numpy.array(keys, dtype=numpy.uint32), *rest))
    return True


def _generators(held: Any, depth: int = 0, seen: set[int] | None = None) -> Iterator[Any]:
    """numpy's generators in an object of optuna, in the order of its attributes."""
    seen = set() if seen is None else seen
    if id(held) in seen or depth > _DEEPEST:
        return
    seen.add(id(held))
    generator = getattr(held, "rng", None)  # optuna makes it when it is first asked for
    if isinstance(generator, numpy.random.RandomState):
        yield generator
    elif type(held).__module__.startswith("optuna.") and hasattr(held, "__dict__"):
        for value in list(vars(held).values()):
            yield from _generators(value, depth + 1, seen)
