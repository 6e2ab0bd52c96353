"""How examples become batches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from kunren.arguments.checks import at_least, from_json, one_of, refuse
from kunren.arguments.group import ArgumentGroup, explained

_CONTEXTS = ("fork", "spawn", "forkserver")
_SAMPLING = ("random", "sequential", "group_by_length", "batch_rebalance")
_BATCHING = ("padded", "grouped", "token_budget", "packed")
_BAD_SAMPLES = ("raise", "skip")

ORDERS_BY_LENGTH = ("grouped", "token_budget", "batch_rebalance")


def row_order(batching: str, strategy: str) -> str:
    """What the order of the rows follows, whichever of the two arguments says so; 'random' and 'sequential' too."""
    if batching in ("grouped", "token_budget"):
        return batching
    if strategy == "group_by_length":  # of arguments made by transformers; or packed, where there is no padding
        return "random" if batching == "packed" else "grouped"
    return strategy


@dataclass(init=False, repr=False, eq=False)
class Dataloading(ArgumentGroup):
    dataloader_drop_last: bool = explained(False, "Leave out the last batch if it is smaller than the others.")
    dataloader_num_workers: int = explained(0, "Processes that load data; 0 loads in the main process.")
    dataloader_pin_memory: bool = explained(True, "Load into pinned memory, where the device gains from it.")
    dataloader_persistent_workers: bool = explained(
        False, "Keep the loading processes between epochs: epochs begin faster, memory stays taken."
    )
    dataloader_prefetch_factor: int | None = explained(
        None, "Batches that each loading process prepares ahead; None: torch's default, 2."
    )
    dataloader_multiprocessing_context: str | None = explained(
        None, "How loading processes are started: 'fork', 'spawn' or 'forkserver'; None: as the system does.", _CONTEXTS
    )
    dataloader_in_order: bool = explained(True, "Return batches in order, whichever worker is ready first.")
    remove_unused_columns: bool = explained(True, "Leave out columns that the model's forward does not take.")
    label_names: list[str] | None = explained(None, "The inputs that are labels; found from the model if not given.")
    train_sampling_strategy: str = explained(
        "random",
        "The order of the training examples: 'random', 'sequential' as they stand, 'group_by_length' with"
        " like lengths together, or 'batch_rebalance' with the lengths of a step spread evenly over its "
        "batches.",
        _SAMPLING,
    )
    length_column_name: str = explained(
        "length", "The column that holds lengths, for batching by length; without it the inputs are counted."
    )
    batching: str = explained(
        "padded",
        "How rows become batches: 'padded', 'grouped' by length, padded under a 'token_budget', or 'packed' without "
        "any padding.",
        _BATCHING,
    )
    token_budget: int | None = explained(
        None,
        "With batching='token_budget': the most tokens in one batch on each device, padding included; "
        "per_device_train_batch_size is not used.",
    )
    bad_sample_policy: str = explained(
        "raise", "What becomes of an example that cannot be loaded: 'raise' its error, or 'skip' it.", _BAD_SAMPLES
    )
    bad_sample_limit: float = explained(
        0.01, "With bad_sample_policy='skip': the share of bad examples, up to 1, from which the run ends after all."
    )
    mixture_weights: dict[str, float] | str | None = explained(
        None,
        "With several training sets: how often each is drawn from, by name, as a dict or JSON text; None: by size.",
    )

    def normalise(self) -> None:
        names: Any = self.label_names
        self.label_names = [names] if isinstance(names, str) else names
        self.mixture_weights = from_json("mixture_weights", self.mixture_weights)
        if self.train_sampling_strategy == "group_by_length" and self.batching == "padded":
            self.batching = "grouped"  # its own name for the same thing

    def check(self) -> None:
        at_least(self, "dataloader_num_workers", 0, "0 loads in the main process.")
        at_least(self, "dataloader_prefetch_factor", 1, "give a number of batches, or None for torch's default.")
        if self.dataloader_num_workers == 0:
            for name, off in (("dataloader_prefetch_factor", None), ("dataloader_persistent_workers", False)):
                value = getattr(self, name)
                if value != off:
                    raise refuse(
                        name,
                        value,
                        f"dataloader_num_workers=0 starts no workers. Set that to 1 or more, or {name}={off}.",
                    )
        one_of(self, "dataloader_multiprocessing_context", _CONTEXTS)
        one_of(self, "train_sampling_strategy", _SAMPLING)
        one_of(self, "batching", _BATCHING)
        one_of(self, "bad_sample_policy", _BAD_SAMPLES)
        at_least(self, "token_budget", 1, "give a number of tokens.")
        if not 0 < self.bad_sample_limit <= 1:
            raise refuse(
                "bad_sample_limit", self.bad_sample_limit, "it is a share of the examples, above 0 and up to 1."
            )
        if (self.token_budget is None) is (self.batching == "token_budget"):
            remedy = "batching='token_budget' and token_budget, a number of tokens, are given together."
            raise refuse("token_budget", self.token_budget, remedy)
        if self.batching in ("grouped", "token_budget") and self.train_sampling_strategy in (
            "sequential",
            "batch_rebalance",
        ):
            remedy = f"batching={self.batching!r} has an order of its own; leave it at 'random'."
            raise refuse("train_sampling_strategy", self.train_sampling_strategy, remedy)
        for name in ("neftune_noise_alpha", "torch_compile") if self.batching == "packed" else ():
            if getattr(self, name, None):
                reasons = {"torch_compile": "the code would be compiled anew for every batch"}
                reason = reasons.get(name, "the noise is scaled by the length of padded rows")
                raise refuse(
                    "batching", "packed", f"{reason} ({name}={getattr(self, name)!r}). Use batching='grouped'."
                )
        self._check_mixture()

    def _check_mixture(self) -> None:
        weights: Any = self.mixture_weights
        if weights is None:
            return
        if not isinstance(weights, dict) or not weights:
            raise refuse("mixture_weights", weights, "give a dict from the names of the training sets to numbers.")
        for name, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, Real) or not 0 < float(weight) < math.inf:
                raise refuse("mixture_weights", weights, f"the weight of {name!r} has to be a number above 0.")
        plain = {
            name: weight if isinstance(weight, (int, float)) else float(weight) for name, weight in weights.items()
        }
        self.mixture_weights = plain  # numpy's numbers are in no JSON
