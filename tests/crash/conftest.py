"""One fork server for all tests of a process, and the run that nobody disturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from crash.fork_server import ForkServer
from crash.outcome import Outcome, read_result


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with ForkServer(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture(scope="session")
def undisturbed(server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    """The result of a run with these settings that nothing happened to, computed once."""
    known: dict[str, Outcome] = {}

    def get(**settings: Any) -> Outcome:
        key = repr(sorted(settings.items()))
        if key not in known:
            folder = tmp_path_factory.mktemp("undisturbed") / "run"
            ended = server.run("crash.training:main", folder, settings)
            assert ended.status == 0, ended.output
            known[key] = read_result(folder)
        return known[key]

    return get
