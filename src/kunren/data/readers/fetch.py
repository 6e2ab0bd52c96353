"""A batch from the indices of its rows, by whichever way is fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

from torch.utils.data import DataLoader, Dataset

from kunren.base.random_state import mix, seed_for_data
from kunren.data.batching.ranks import Spare, SpareRows
from kunren.data.columns import is_column_dataset
from kunren.data.wrappers.bad_samples import OnError, Read
from kunren.data.wrappers.mixture import Mixture

Position = tuple[int, int, Sequence[Any]]  # epoch, batch, the indices of its rows


def fetch(dataset: Any, indices: Sequence[Any], collate: Callable[[list[Any]], Any]) -> Any:
    """Rows by index, batched; through `__getitems__` where the data set has it, as torch's own loader does."""
    get_many = getattr(dataset, "__getitems__", None)
    rows = get_many(indices) if get_many is not None else [dataset[index] for index in indices]
    return collate(rows)


def fetcher(dataset: Any, collate: Callable[[list[Any]], Any]) -> Callable[[Sequence[Any]], Any]:
    """`fetch` of these two, or what gives the same batches faster; decided once."""
    if isinstance(dataset, Mixture):
        return dataset.fetcher(partial(fetcher, collate=collate))
    by_rows = partial(fetch, dataset, collate=collate)
    if not is_column_dataset(dataset):
        return by_rows

    from kunren.data.wrappers.arrow import fetch_by_columns

    return fetch_by_columns(dataset, collate, by_rows) or by_rows


@final
class BatchByPosition(Dataset[Any]):
    """A data set of whole batches: each seeds the data code by the position it is asked for."""

    def __init__(self, loader: DataLoader[Any], seed: int, on_error: OnError) -> None:
        self.dataset, self.collate, self.seed, self.on_error = loader.dataset, loader.collate_fn, seed, on_error
        self.fetch_rows = fetcher(self.dataset, self.collate)

    def __getitem__(self, position: Position) -> Any:
        epoch, batch, indices = position
        seed_for_data(mix(self.seed, epoch, batch))
        try:
            data = self.fetch_rows(indices)
        except Exception as error:
            data = self.on_error(error, self.dataset, indices, self.collate, mix(self.seed, epoch))
        if type(indices) is SpareRows:
            return data._replace(batch=Spare(data.batch)) if type(data) is Read else Spare(data)
        return data
