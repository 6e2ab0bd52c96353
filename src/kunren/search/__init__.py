"""Hyperparameter search: many trainings of one Trainer, each with values that a search backend suggests."""

from __future__ import annotations

from kunren.base.registry import on_demand

# Name -> module of this package. Nothing is imported before it is asked for.
_HOMES = {
    "BestRun": "results",
    "HPSearchBackend": "backends",
    "SearchSummary": "results",
    "default_compute_objective": "objective",
    "default_hp_search_backend": "backends",
    "default_hp_space_optuna": "spaces",
    "default_hp_space_ray": "spaces",
    "default_hp_space_wandb": "spaces",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605

__getattr__ = on_demand(__name__, _HOMES)
