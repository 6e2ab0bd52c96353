"""The repository of a run: made when the Trainer is, with everything that would fail later told now."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from kunren.hub.client import answering_within, endpoint, huggingface_hub
from kunren.hub.problems import HubError, problem_of, without


def prepare(args: Any, token: str | None, private: bool | None) -> str:
    """Make the repository unless it is there, and return its full name; HubError, ValueError or ImportError if not."""
    name = args.hub_model_id or os.path.basename(os.path.abspath(str(args.output_dir)))
    token = clean(token if token is not None else args.hub_token)
    private = private if private is not None else args.hub_private_repo
    revision = args.hub_revision
    huggingface_hub()  # or says how to come by it
    try:
        with answering_within() as api:
            repository = str(api.create_repo(name, token=token, private=private, exist_ok=True).repo_id)
            _check_rights(api, repository, token)
            if revision is not None:
                _make_branch(api, repository, revision, token)
    except Exception as error:
        problem = problem_of(error, name, revision)
        text = f"push_to_hub=True, but {without(token, problem.text)}"
        if problem.kind == "network":
            text += f" The hub asked was {endpoint()}."
        # Told in full; what caused it would show the request, and its headers, in some tracebacks.
        raise (ValueError if problem.kind == "name" else HubError)(text) from None
    return repository


def _check_rights(api: Any, repository: str, token: str | None) -> None:
    """Raise what the hub answers to those who may see a repository and not write to it.

    For a repository that is there, `create_repo` is content with either. A hub or a client that does not know the
    question is left alone: then the first push tells.
    """
    try:
        api.auth_check(repository, token=token, write=True)
    except TypeError:
        return
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            raise


def _make_branch(api: Any, repository: str, revision: str, token: str | None) -> None:
    """The branch that `hub_revision` names, from the main one, unless there is such a revision."""
    try:
        api.repo_info(repository, revision=revision, token=token)
    except Exception as error:
        is_missing = any(kind.__name__ == "RevisionNotFoundError" for kind in type(error).__mro__)
        if not is_missing or revision.startswith("refs/"):
            raise
        api.create_branch(repository, branch=revision, token=token, exist_ok=True)


def token_in_use(token: str | None) -> str | None:
    """The token given, or that of the log-in, which a notebook may keep where only this process finds it."""
    if token is not None:
        return clean(token)
    with suppress(Exception):
        found = huggingface_hub().get_token()
        return None if found is None else str(found)
    return None


def clean(token: str | None) -> str | None:
    """A token that was read from a file, without the end of its line."""
    return token.strip() if isinstance(token, str) else token
