"""The hub's client, huggingface_hub, asked for things with an end to its patience."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ANSWER_SECONDS = 30.0  # for short questions; uploads have a limit of their own


def huggingface_hub() -> Any:
    """The package; ImportError that says how to come by it."""
    try:
        import huggingface_hub as package
    except ImportError as error:
        raise ImportError(
            "Sharing on the hub needs the package huggingface_hub: `pip install huggingface_hub`, or leave push_to_hub "
            "unset."
        ) from error
    return package


def endpoint() -> str:
    """The hub that is asked: HF_ENDPOINT, or the public one."""
    return str(huggingface_hub().HfApi().endpoint)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE, or what stands for it, keeps this process off the hub."""
    return bool(getattr(huggingface_hub().constants, "HF_HUB_OFFLINE", False))


@contextmanager
def answering_within(seconds: float = ANSWER_SECONDS) -> Iterator[Any]:
    """An `HfApi` whose requests give up when nothing is heard for that long: the client itself would wait for ever."""
    package = huggingface_hub()
    session = package.get_session() if hasattr(package, "get_session") else None
    before = getattr(session, "timeout", None)
    if session is not None:
        session.timeout = seconds
    try:
        yield package.HfApi()
    finally:
        if session is not None:
            session.timeout = before
