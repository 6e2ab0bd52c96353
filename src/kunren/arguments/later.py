"""Arguments that this version of kunren takes, as transformers does, and cannot obey yet."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)

_LATER = {
    "push_to_hub": "uploading to a hub",
    "parallelism_config": "tensor, context and sequence parallelism",
}


def refuse_what_comes_later(args: Any) -> None:
    """ValueError for what would be ignored and matters; a word about what would be ignored and does not."""
    for name, what in _LATER.items():
        if getattr(args, name, None):
            raise ValueError(
                f"{name}={getattr(args, name)!r}: {what} comes with a later version of kunren. Leave it unset for now."
            )
    if args.report_to:
        logger.warning(
            "report_to=%r: experiment trackers come with a later version of kunren. Everything that is logged is in "
            "trainer.state.log_history and in trainer_state.json.",
            args.report_to,
        )
