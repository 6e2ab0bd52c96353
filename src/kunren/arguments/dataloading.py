"""How examples become batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import at_least, one_of, refuse
from kunren.arguments.group import ArgumentGroup, explained

_CONTEXTS = ("fork", "spawn", "forkserver")
_SAMPLING = ("random", "sequential", "group_by_length", "batch_rebalance")


@dataclass
class Dataloading(ArgumentGroup):
    dataloader_drop_last: bool = explained(False, "Leave out the last batch if it is smaller than the others.")
    dataloader_num_workers: int = explained(0, "Processes that load data; 0 loads in the main process.")
    dataloader_pin_memory: bool = explained(True, "Load into pinned memory, where the device gains from it.")
    dataloader_persistent_workers: bool = explained(False, "Keep the loading processes between epochs.")
    dataloader_prefetch_factor: int | None = explained(None, "Batches that each loading process prepares ahead.")
    dataloader_multiprocessing_context: str | None = explained(
        None, "How loading processes are started: 'fork', 'spawn' or 'forkserver'.", _CONTEXTS
    )
    dataloader_in_order: bool = explained(True, "Return batches in order, whichever worker is ready first.")
    remove_unused_columns: bool = explained(True, "Leave out columns that the model's forward does not take.")
    label_names: list[str] | None = explained(None, "The inputs that are labels; found from the model if not given.")
    train_sampling_strategy: str = explained("random", "The order of the training examples.", _SAMPLING)
    length_column_name: str = explained("length", "The column that holds lengths, for group_by_length.")

    def normalise(self) -> None:
        names: Any = self.label_names
        self.label_names = [names] if isinstance(names, str) else names

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
