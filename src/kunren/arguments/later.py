"""Arguments that this version of kunren takes, as transformers does, and cannot obey yet."""

from __future__ import annotations

from typing import Any

LATER = {
    "push_to_hub": "uploading to a hub",
}


def refuse_what_comes_later(args: Any) -> None:
    """ValueError for what would be ignored."""
    for name, what in LATER.items():
        if getattr(args, name, None):
            raise ValueError(
                f"{name}={getattr(args, name)!r}: {what} comes with a later version of kunren. Leave it unset for now."
            )
