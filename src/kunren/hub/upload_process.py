"""A program that uploads: one JSON object on its standard input says what, one on its standard output how it went.

A process of its own, because an upload cannot be ended from outside in any other way, and because it shares nothing
with the training: no lock that a forked worker might inherit, no turn in the interpreter. The token comes through the
pipe, never through the command line or the environment. It is started by its path and imports nothing of kunren.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from typing import Any

_SILENCE_SECONDS = 180.0  # a large commit may take the hub minutes, and more than that means that nobody is there
_ANSWER_SECONDS = 30.0


def upload(order: dict[str, Any]) -> dict[str, Any]:
    """Upload folders, one commit each: the commits that came to be ("done"), and what has ended the rest ("error")."""
    done: list[dict[str, Any]] = []
    try:
        huggingface_hub: Any = importlib.import_module("huggingface_hub")
        importlib.import_module("huggingface_hub.utils").disable_progress_bars()
        api, token, revision = huggingface_hub.HfApi(endpoint=order["endpoint"]), order["token"], order["revision"]
        with contextlib.suppress(AttributeError):
            huggingface_hub.get_session().timeout = _SILENCE_SECONDS
        # A short question first: the requests of an upload are tried again for half a minute where nobody answers.
        api.repo_info(order["repository"], token=token, revision=revision, timeout=_ANSWER_SECONDS)
        for one in order["uploads"]:
            info = api.upload_folder(
                repo_id=order["repository"],
                folder_path=one["folder"],
                path_in_repo=one["path_in_repo"],
                commit_message=one["message"],
                token=token,
                revision=revision,
                delete_patterns=one["delete"],
            )
            names = ("commit_url", "commit_message", "commit_description", "oid")
            done.append({name: getattr(info, name) for name in names})
    except Exception as error:
        return {"done": done, "error": _told(error)}
    return {"done": done, "error": None}


def _told(error: BaseException) -> dict[str, Any]:
    """The names of an error's classes, its HTTP status and its text."""
    while error.__cause__ is not None and getattr(error, "response", None) is None:
        error = error.__cause__  # of a large file the client only says which one
    return {
        "names": [kind.__name__ for kind in type(error).__mro__],
        "status": getattr(getattr(error, "response", None), "status_code", None),
        "told": str(getattr(error, "server_message", None) or error)[:2000],
    }


def main() -> None:
    """Obey the order on the standard input."""
    order = json.load(sys.stdin)
    sys.path[:] = order["python_path"]
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever prints, the answer stands alone
    json.dump(upload(order), answer)


if __name__ == "__main__":
    main()
