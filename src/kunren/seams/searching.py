"""Search seams: trials with other hyperparameters. What they do is loaded on use, from `search/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kunren.base.registry import resolve
from kunren.seams.base import Seams


class SearchingSeams(Seams):
    """A search calls `train(trial=...)` for each trial; `call_model_init` is given the trial as well."""

    hp_search_backend: Any = None  # while a search is going on
    hp_name: Any = None
    compute_objective: Any = None

    def hyperparameter_search(
        self,
        hp_space: Callable[[Any], dict[str, Any]] | None = None,
        compute_objective: Callable[[dict[str, float]], float | list[float]] | None = None,
        n_trials: int = 20,
        direction: str | list[str] = "minimize",
        backend: Any = None,
        hp_name: Callable[[Any], str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """The best run of `n_trials` trainings, each of a new model from `model_init`; `kwargs` are the backend's."""
        search = resolve("kunren.search.run:hyperparameter_search")
        return search(self, hp_space, compute_objective, n_trials, direction, backend, hp_name, **kwargs)

    def _hp_search_setup(self, trial: Any) -> None:
        if self.hp_search_backend is not None:  # a trial may also be one of the user's own, for `model_init`
            resolve("kunren.search.trial:set_up")(self, trial)

    def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None:
        if self.hp_search_backend is not None:
            resolve("kunren.search.trial:report")(self, trial, step, metrics)
