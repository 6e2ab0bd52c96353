"""The page that `kunren watch --web` serves: current, for this machine only, whatever happens to the files."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from unit.report.runs_on_disk import begin, end, log_lines, make_run, write

from kunren.report import live
from kunren.report.live import LiveServer


@contextmanager
def serving(*folders: Path, **options: Any) -> Iterator[LiveServer]:
    with LiveServer(folders, **{"port": 0, "rest": 0.0, **options}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(
    server: LiveServer, path: str = "/", method: str = "GET", host: str | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_page_and_numbers_are_those_of_now(tmp_path: Path) -> None:
    run = write(tmp_path / "実験", log_lines(20, 1000.0), [begin(1000.0)])
    with serving(tmp_path, language="ja") as server:
        answer, body = ask(server)
        assert answer.status == 200 and answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "実験" in body.decode() and 'lang="ja"' in body.decode()
        answer, before = ask(server, "/data.json")
        assert answer.headers["Content-Type"] == "application/json"
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"loss": 0.123456, "step": 25, "time": 1025.0}\n')
        answer, after = ask(server, "/data.json?again")
        assert "0.123456" in json.dumps(json.loads(after)) and "0.123456" not in before.decode()


def test_runs_that_begin_later_are_shown(tmp_path: Path) -> None:
    with serving(tmp_path / "runs") as server:
        answer, body = ask(server)
        assert answer.status == 200 and "Waiting for the first log" in body.decode() and "refresh" in body.decode()
        for name in ("first", "second"):
            make_run(tmp_path / "runs" / name)
            assert name in ask(server)[1].decode()
        assert [run["name"] for run in json.loads(ask(server, "/data.json")[1])["runs"]] == ["first", "second"]


def test_nothing_is_kept_framed_or_read_from_elsewhere(tmp_path: Path) -> None:
    with serving(make_run(tmp_path)) as server:
        for path in ("/", "/data.json", "/nothing"):
            headers = ask(server, path)[0].headers
            assert headers["Cache-Control"] == "no-store" and headers["X-Frame-Options"] == "DENY"
            assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "", "0.0.0.0"]
)
def test_other_hosts_are_refused(tmp_path: Path, host: str) -> None:
    with serving(make_run(tmp_path)) as server:
        answer, body = ask(server, "/data.json", host=host)
        assert answer.status == 403 and b"loss" not in body


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]:80"])
def test_names_of_this_machine_are_not_at_any_port(tmp_path: Path, host: str) -> None:
    with serving(make_run(tmp_path)) as server:
        assert ask(server, "/data.json", host=host)[0].status == 200


def test_only_two_paths_and_only_reading(tmp_path: Path) -> None:
    with serving(make_run(tmp_path)) as server:
        for path in ("/metrics.jsonl", "/../metrics.jsonl", "/data.json/"):
            assert ask(server, path)[0].status == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0].status == 501
        answer, body = ask(server, method="HEAD")
        assert answer.status == 200 and body == b"" and int(answer.headers["Content-Length"]) > 1000


def test_it_listens_on_this_machine_only_and_takes_a_free_port(tmp_path: Path) -> None:
    with serving(make_run(tmp_path)) as first, serving(tmp_path, port=first.port) as second:
        assert first.port != second.port
        assert first.socket.getsockname()[0] == second.socket.getsockname()[0] == "127.0.0.1"
        assert ask(second)[0].status == 200 and second.address == f"http://127.0.0.1:{second.port}/"


def test_an_error_is_an_answer_and_the_server_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(make_run(tmp_path)) as server:
        with monkeypatch.context() as broken:
            broken.setattr(live, "page_data", lambda *_: {"a": float("nan")})
            assert ask(server, "/data.json")[0].status == 500
        with socket.create_connection(("127.0.0.1", server.port)) as rude:
            rude.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ask(server, "/data.json")[0].status == 200


def test_a_run_keeps_its_colour_and_the_ones_that_go_on_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_RUNS", 3)

    def names(server: LiveServer) -> list[str]:
        return [run["name"] for run in json.loads(ask(server, "/data.json")[1])["runs"][:3]]

    def done(name: str, ended: float) -> None:
        write(tmp_path / name, log_lines(5, 1.0), [begin(1.0), end(ended, 5)])

    done("m", 7.0)
    done("n", 5.0)
    with serving(tmp_path) as server:
        assert names(server) == ["m", "n"]
        done("a", 6.0)
        assert names(server) == ["m", "n", "a"]
        make_run(tmp_path / "b", outcome=None)  # takes the place of the one that ended first
        assert names(server) == ["m", "b", "a"]


def test_a_run_that_failed_before_its_first_log_is_shown(tmp_path: Path) -> None:
    write(tmp_path, [], [begin(1.0), end(2.0, 0, "failed", "ValueError: odd")])
    (tmp_path / "metrics.jsonl").unlink()
    with serving(tmp_path) as server:
        assert b"ValueError: odd" in ask(server)[1] and ask(server, "/data.json")[0].status == 200
