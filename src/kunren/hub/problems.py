"""What a hub refuses, in words that say what to change. Nothing here needs the hub's client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Told by the names of classes: those of the client's HTTP library have changed homes, and will again.
_UNREACHABLE = (
    "Connect",
    "Timeout",
    "Network",
    "ReadError",
    "WriteError",
    "Protocol",
    "Transport",
    "Proxy",
    "SSLError",
)
_OF_A_TOKEN = ("LocalTokenNotFoundError",)
_SHORTEST_PIECE = 6  # of a token; less would mask words that have nothing to do with it


class HubError(OSError):
    """The hub, or the way to it, has refused something; the message says what to change."""


@dataclass(frozen=True)
class Problem:
    """One thing that went wrong. `kind` names it, so that each is warned of once; `may_pass`: worth trying again."""

    kind: str
    text: str
    may_pass: bool = False


def problem_of(error: BaseException, repository: str, revision: str | None = None) -> Problem:
    """What an exception of the hub's client means."""
    names = [kind.__name__ for kind in type(error).__mro__]
    response = getattr(error, "response", None)
    told = getattr(error, "server_message", None) or _first_line(error)
    return explain(names, getattr(response, "status_code", None), str(told), repository, revision)


def explain(names: list[str], status: int | None, told: str, repository: str, revision: str | None) -> Problem:
    """What an error means whose classes have these `names`, with the hub's answer `told` and its HTTP status."""
    if "OfflineModeIsEnabled" in names:
        return Problem("offline", "HF_HUB_OFFLINE=1 keeps everything off the hub: unset it, or set push_to_hub=False.")
    if "HFValidationError" in names:
        return Problem("name", f"{repository!r} cannot name a repository ({told}): set hub_model_id='user/name'.")
    if "RevisionNotFoundError" in names:
        return Problem(
            "revision", f"{repository} has no branch {revision!r}: make it on the hub, or leave hub_revision unset."
        )
    if "LocalProtocolError" in names and "header" in told:  # of which the token is the only one that is given
        return Problem("token", "the token holds what no token has, such as a space or the end of a line.")
    if status == 401 or any(name in names for name in _OF_A_TOKEN):
        return Problem(
            "token",
            f"the hub does not accept the token, or there is none ({told}): log in with `hf auth login`, set the "
            "environment variable HF_TOKEN, or pass hub_token.",
        )
    if status in (402, 403):
        return Problem(
            "rights",
            f"the token may not write to {repository} ({told}): take a token with write access, or a hub_model_id "
            "in a name space that is yours.",
        )
    if status == 404:
        return Problem("repository", f"{repository} is not on the hub, or hidden from this token ({told}).")
    if status == 429:
        return Problem("rate", f"the hub says that too much was asked of it ({told}).", may_pass=True)
    if status is not None and status >= 500:
        return Problem("hub", f"the hub has an error of its own ({status}: {told}).", may_pass=True)
    if status is not None:
        return Problem("refused", f"the hub has refused it ({status}: {told}).")
    if any(word in name for word in _UNREACHABLE for name in names):
        return Problem("network", f"the hub cannot be reached ({names[0]}: {told}): is there a network?", may_pass=True)
    return Problem("other", f"{names[0]}: {told.rstrip('.')}.", may_pass="OSError" in names)


def without(secret: Any, text: str) -> str:
    """`text` with a token masked, however it came into it: whole, or as an escaped text that broke at a line's end."""
    if not isinstance(secret, str) or not secret:
        return text
    pieces = [piece for piece in secret.split() if len(piece) >= _SHORTEST_PIECE]
    for piece in (secret, *pieces):
        text = text.replace(piece, "<HUB_TOKEN>")
    return text


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
