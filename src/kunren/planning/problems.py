"""What a run would come to grief over, or is probably not meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kunren.planning.storage import Kept
from kunren.planning.units import human_size, human_time
from kunren.planning.unknown import Unknown

if TYPE_CHECKING:
    from kunren.planning.forecast import Forecast

_MUCH_PADDING = 0.3
_LONG_SECONDS = 1800.0
_SMALLER = (
    "A smaller per_device_train_batch_size with more gradient_accumulation_steps gives the same updates; "
    "activation_checkpointing=True and bf16=True save memory."
)


def warnings_about(found: Forecast) -> list[str]:
    """Sentences, each with its remedy."""
    return [*_of_memory(found), *_of_disk(found), *_of_arguments(found)]


def _of_memory(found: Forecast) -> Iterator[str]:
    free, weights = found.free_device_bytes, found.weights
    if isinstance(found.step, Unknown) and "memory" in found.step.why:
        yield f"The model does not fit: {found.step.why}. {_SMALLER}"
    if isinstance(weights, Unknown) or isinstance(found.peak_bytes, Unknown) or free is None:
        return
    there = weights.parameter_bytes + weights.buffer_bytes  # in memory already
    needed = found.peak_bytes - there
    if needed > free:
        yield (
            f"Memory will not do: beside the weights training takes {human_size(needed)} on {found.device}, where "
            f"{human_size(free)} are free. {_SMALLER}"
        )
    snapshot = found.snapshot_bytes
    if found.device == "cpu" and needed <= free < needed + snapshot:
        yield (
            f"Memory will not do for saving in the background: the copy takes {human_size(snapshot)} more. Set "
            "async_save=False."
        )


def _of_disk(found: Forecast) -> Iterator[str]:
    kept, free, needed = found.kept, found.free_disk_bytes, found.disk_bytes
    if not isinstance(kept, Kept) or kept.saved == 0:
        return
    folder = Path(found.output_dir)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(existing, os.W_OK):
        yield f"Nothing can be written into {existing}: choose another output_dir, or set save_strategy='no'."
    elif free is not None and not isinstance(needed, Unknown) and needed > free:
        yield (
            f"The disk will not do: {kept.at_once} checkpoints take {human_size(needed)}, and {existing} has "
            f"{human_size(free)} free. Set save_total_limit, or save_only_model=True."
        )


def _of_arguments(found: Forecast) -> Iterator[str]:
    plan, tokens, seconds = found.plan, found.tokens, found.seconds
    if plan.warmup_steps >= plan.max_steps > 0:
        yield (
            f"The whole run is warm-up: {plan.warmup_steps} of {plan.max_steps} steps. warmup_steps below 1 is a share "
            "of the run."
        )
    if found.args.batching == "padded" and not isinstance(tokens, Unknown) and tokens.padding_share > _MUCH_PADDING:
        yield (f"{tokens.padding_share:.0%} of the tokens are padding: batching='grouped' has less, 'packed' none.")
    long = not isinstance(seconds, Unknown) and seconds > _LONG_SECONDS
    if long and isinstance(found.kept, Kept) and found.kept.saved == 0 and not isinstance(seconds, Unknown):
        yield f"Nothing is saved in about {human_time(seconds)}: save_strategy='no'."
    if found.args.resume_from_checkpoint:
        yield (
            f"resume_from_checkpoint={found.args.resume_from_checkpoint!r} is not looked at: the numbers are those of "
            "the whole run."
        )
