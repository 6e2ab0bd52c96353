"""Which order the arguments ask for, and what of it cannot be had."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

from torch.utils.data import Sampler, SequentialSampler

from kunren.arguments.dataloading import ORDERS_BY_LENGTH, row_order
from kunren.data.samplers import EpochBatches, EpochRandomSampler

logger = logging.getLogger(__name__)


def order_by(args: Any) -> str:
    """'random', 'sequential', or what lengths are needed for."""
    strategy = args.train_sampling_strategy
    return row_order(args.batching, str(strategy.value if isinstance(strategy, Enum) else strategy))


def training_order(args: Any, dataset: Any, batch_size: int, seed: int, input_name: str) -> Sampler[Any]:
    """The rows, or the batches of rows, of this process in the order of training."""
    order = order_by(args)
    if order == "sequential":
        return SequentialSampler(dataset)
    if order == "random":
        return EpochRandomSampler(dataset, seed)

    from kunren.data.batching.lengths import row_lengths
    from kunren.data.batching.ranks import data_place

    names = tuple(dict.fromkeys((input_name, "input_ids")))
    lengths = row_lengths(dataset, args.length_column_name, names, seed, skip=args.bad_sample_policy == "skip")
    ranks, rank = data_place(args)
    if order == "token_budget":
        from kunren.data.batching.token_budget import TokenBudgetSampler

        return TokenBudgetSampler(lengths, args.token_budget, seed, ranks, rank)
    drop_last = args.dataloader_drop_last
    if order == "grouped":
        from kunren.data.batching.grouped import LengthGroupedSampler

        return LengthGroupedSampler(lengths, batch_size, seed, drop_last, ranks, rank)

    from kunren.data.batching.rebalanced import RebalancedSampler

    return RebalancedSampler(lengths, batch_size, args.gradient_accumulation_steps, seed, drop_last, ranks, rank)


def check_order(args: Any, sampler: Sampler[Any] | None) -> None:
    """ValueError where rows have to be put in order and cannot be; a warning where a subclass's order replaces it."""
    order = order_by(args)
    if order not in ORDERS_BY_LENGTH:
        return

    from kunren.data.batching.grouped import LengthGroupedSampler

    if isinstance(sampler, (LengthGroupedSampler, EpochBatches)):
        return
    if sampler is None:
        raise ValueError(
            f"{_asked_for(args, order)}: the training set is a stream, or has no length, and its rows cannot be put in "
            "an order by length. Use batching='padded' or 'packed', or a data set with rows by index."
        )
    logger.warning(
        "%s has no effect: _get_train_sampler is overridden, and its order is used in batches of "
        "per_device_train_batch_size.",
        _asked_for(args, order),
    )


def _asked_for(args: Any, order: str) -> str:
    name = "batching" if args.batching == order else "train_sampling_strategy"
    return f"{name}={getattr(args, name)!r}"
