"""`kunren watch --web`: the page of some runs as they are now, for browsers on this machine alone."""

from __future__ import annotations

import errno
import html
import json
import os
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, final

from kunren.report.page import MAX_RUNS, page, page_data
from kunren.report.run_files import RunRecord
from kunren.report.run_folders import REST, WatchedRuns, most_interesting
from kunren.report.terminal import waiting_lines

LOOPBACK = "127.0.0.1"
PORT = 8642
_OWN_NAMES = {"localhost", LOOPBACK, "[::1]"}
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest stands in the page
}
_WAITING = """<!DOCTYPE html>
<html lang="{language}"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="2"><meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">
<title>kunren</title></head><body style="font-family: system-ui, sans-serif; margin: 2rem">{lines}</body></html>
"""


@final
class LiveServer(ThreadingHTTPServer):
    """Serves `/`, the page, and `/data.json`, what that asks for every two seconds; reads the files of runs alone."""

    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two servers share a port

    def __init__(
        self, folders: Sequence[str | Path], language: str = "en", port: int = PORT, rest: float = REST
    ) -> None:
        self.runs = WatchedRuns(folders, rest)
        self.language = language
        self._data, self._data_again_at = b"", 0.0
        self._reckoning = threading.Lock()
        self._places: list[Path] = []
        self._placing = threading.Lock()
        try:
            super().__init__((LOOPBACK, port), _Answer)
        except OSError as error:
            if port == 0 or error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            super().__init__((LOOPBACK, 0), _Answer)  # the system chooses one that is free

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    def page(self) -> bytes:
        """The page, or one that waits for the first log and loads itself again."""
        runs = self._placed()
        if runs:
            return page(runs, self.language, live=True).encode("utf-8", "replace")
        lines = "".join(f"<p>{html.escape(line)}</p>" for line in waiting_lines(self.runs.waiting, self.language))
        return _WAITING.format(language=self.language, lines=lines).encode("utf-8", "replace")

    def data(self) -> bytes:
        """What the page asks for, as JSON; as seldom as the runs are read."""
        with self._reckoning:
            began = time.monotonic()
            if began >= self._data_again_at:
                found = page_data(self._placed(), self.language)
                self._data = json.dumps(found, allow_nan=False).encode("utf-8", "replace")
                ended = time.monotonic()
                self._data_again_at = ended + self.runs.rest * (ended - began)
            return self._data

    def _placed(self) -> list[RunRecord]:
        """The runs; those that the page shows come first, each where it was: its place gives it its colour."""
        runs = self.runs.now()
        chosen = {run.folder: run for run in most_interesting(runs, MAX_RUNS)}
        with self._placing:
            new = iter([folder for folder in chosen if folder not in self._places])
            places = [folder if folder in chosen else next(new, None) for folder in self._places]
            self._places = [folder for folder in [*places, *new] if folder is not None]
            return [chosen[folder] for folder in self._places] + [run for run in runs if run.folder not in chosen]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that has gone away is nothing to tell of."""


class _Answer(BaseHTTPRequestHandler):
    server: LiveServer
    server_version, sys_version = "kunren", ""
    timeout = 30  # a connection that says nothing

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, with_body: bool) -> None:
        status, kind, body = self._found()
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def _found(self) -> tuple[int, str, bytes]:
        if not self._is_meant_for_us():
            text = "This server answers to localhost only: a page elsewhere may have led the browser here.\n"
            return 403, "text/plain; charset=utf-8", text.encode()
        path = self.path.split("?")[0]
        try:
            if path == "/":
                return 200, "text/html; charset=utf-8", self.server.page()
            if path == "/data.json":
                return 200, "application/json", self.server.data()
        except Exception as error:  # a run whose files say what nobody thought of
            return 500, "text/plain; charset=utf-8", f"{type(error).__name__}: {error}\n".encode("utf-8", "replace")
        return 404, "text/plain; charset=utf-8", b"Not found.\n"

    def _is_meant_for_us(self) -> bool:
        """Whether the browser asked for this machine by a name of its own.

        A page elsewhere could make its host's name point here, and read what this server answers (DNS rebinding). The
        port may be another one: a tunnel's.
        """
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _without_port(hosts[0]) in _OWN_NAMES

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing: the terminal is the user's."""


def _without_port(host: str) -> str:
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdigit() else host.strip().lower()
