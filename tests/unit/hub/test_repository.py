"""What would fail at every push is told when the Trainer is made, with what to change."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest
from huggingface_hub import constants

from kunren.hub.problems import HubError, explain, without
from kunren.hub.repository import prepare


class Arguments:
    """Of a run that is pushed."""

    def __init__(self, **settings: Any) -> None:
        defaults = dict.fromkeys(("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"))
        vars(self).update({"output_dir": "out/my-model", **defaults, **settings})


def test_the_repository_is_made_once_and_named_after_the_folder(hub: Any) -> None:
    assert prepare(Arguments(), None, None) == "me/my-model"
    assert prepare(Arguments(), None, None) == "me/my-model"
    assert prepare(Arguments(output_dir="out/other/"), None, True) == "me/other"
    assert prepare(Arguments(hub_model_id="org/third", hub_private_repo=True), None, None) == "org/third"
    assert {name: one.private for name, one in hub.repositories.items()} == {
        "me/my-model": False,
        "me/other": True,
        "org/third": True,
    }


@pytest.mark.parametrize(
    ("settings", "error", "advice"),
    [
        ({"hub_token": "hf_wrongWRONG"}, HubError, "does not accept the token.*hf auth login.*HF_TOKEN.*hub_token"),
        ({"hub_token": "hf_readonlyREADONLY"}, HubError, "may not write to my-model.*token with write access"),
        ({"hub_model_id": "google/bert"}, HubError, "may not write to google/bert.*name space that is yours"),
        ({"hub_model_id": "other/public"}, HubError, "may not write to other/public"),
        ({"output_dir": "out/my model!"}, ValueError, "'my model!' cannot name a repository.*hub_model_id='user/name'"),
        ({"hub_model_id": "a/b/c"}, ValueError, "'a/b/c' cannot name a repository"),
        ({"hub_revision": "refs/pr/7"}, HubError, "has no branch 'refs/pr/7'.*leave hub_revision unset"),
    ],
)
def test_what_the_hub_refuses(settings: dict[str, Any], error: type[Exception], advice: str, hub: Any) -> None:
    hub.add("other/public")
    with pytest.raises(error, match=advice) as told:
        prepare(Arguments(**settings), None, None)
    assert "push_to_hub=True" in str(told.value) and "WRONG" not in str(told.value)


def test_no_token(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(HubError, match="the token, or there is none"):
        prepare(Arguments(), None, None)


def test_no_network(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", nobody)
    with pytest.raises(HubError, match=f"cannot be reached.*is there a network.*The hub asked was {nobody}"):
        prepare(Arguments(), None, None)


def test_a_hub_that_does_not_answer(hub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{deaf.getsockname()[1]}")
        monkeypatch.setattr("kunren.hub.repository.answering_within", within_a_moment)
        with pytest.raises(HubError, match="cannot be reached.*Timeout"):
            prepare(Arguments(), None, None)


def within_a_moment() -> Any:
    from kunren.hub.client import answering_within

    return answering_within(0.3)


def test_offline_and_without_the_package(hub: Any, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE=1.*unset it, or set push_to_hub=False"):
        build()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match="pip install huggingface_hub"):
        build()


@pytest.mark.parametrize(
    ("names", "status", "kind", "may_pass"),
    [
        (["ConnectError", "TransportError"], None, "network", True),
        (["ReadTimeout"], None, "network", True),
        (["HfHubHTTPError"], 502, "hub", True),
        (["HfHubHTTPError"], 429, "rate", True),
        (["HfHubHTTPError"], 402, "rights", False),
        (["BadRequestError"], 400, "refused", False),
        (["RepositoryNotFoundError"], 404, "repository", False),
        (["LocalTokenNotFoundError"], None, "token", False),
        (["ValueError"], None, "other", False),
    ],
)
def test_what_may_pass_is_tried_again(names: list[str], status: int | None, kind: str, may_pass: bool) -> None:
    problem = explain(names, status, "told", "me/model", None)
    assert (problem.kind, problem.may_pass) == (kind, may_pass) and "told" in problem.text


def test_a_token_with_the_end_of_a_line(hub: Any) -> None:
    from unit.hub.hub_server import TOKEN

    assert prepare(Arguments(hub_token=f"{TOKEN}\n"), None, None) == "me/my-model"
    with pytest.raises(HubError, match="the token holds what no token has") as told:
        prepare(Arguments(hub_token="hf_secretONE\nhf_secretTWO"), None, None)
    assert "secret" not in str(told.value)


def test_a_secret_is_masked() -> None:
    assert without("hf_secret\n", r"b'Bearer hf_secret\n'") == r"b'Bearer <HUB_TOKEN>\n'"
    assert without("hf_1", "no hf_1 here") == "no <HUB_TOKEN> here"
    assert without(None, "text") == without("", "text") == "text"
