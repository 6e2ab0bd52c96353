"""A headless Chromium, driven over a pair of pipes: no server, no port, no package.

The protocol is Chrome's own for developer tools (https://chromedevtools.github.io/devtools-protocol/): JSON messages
that end with a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the user of a container has no sandbox to use
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
    "--remote-debugging-pipe",
)
TIMEOUT = 30.0

# Chromium reads from 3 and writes to 4. In a process of its own: one with threads, as of tests, is not to be forked.
_PUT_PIPES = """
import os, sys
os.dup2(int(sys.argv[1]), 30), os.dup2(int(sys.argv[2]), 31)
os.dup2(30, 3), os.dup2(31, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str | None:
    """The path of Chromium, or of Chrome; `CHROMIUM` names another."""
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


class Browser:
    """One tab. What it logs and what it asks the network for is kept in `errors` and `requests`."""

    def __init__(self, executable: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kunren-chromium-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        command = [executable, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PUT_PIPES, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        os.set_blocking(self._read, False)
        self._rest, self._events, self._count = b"", [], 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the browser answers; a RuntimeError where it refuses."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        answer = self._next(lambda found: found.get("id") == self._count)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def open(self, url: str) -> None:
        """Open a page and wait until it has been drawn."""
        self.errors.clear()
        self.requests.clear()
        self.call("Page.navigate", url=url)
        self._next(lambda found: found.get("method") == "Page.loadEventFired")
        self.settle()

    def size(self, width: int, height: int = 900, is_touch: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_touch
        )
        self.call("Emulation.setTouchEmulationEnabled", enabled=is_touch)

    def prefer(self, scheme: str) -> None:
        """What `prefers-color-scheme` says: "light" or "dark"."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", answer["exceptionDetails"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what was asked for has been drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30))))")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true; an AssertionError if it does not become so."""
        end = time.monotonic() + TIMEOUT
        while not self.run(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.05)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", (start[0] + end[0]) / 2, end[1], button="left", buttons=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        touched = [{"x": x, "y": y, "id": index} for index, (x, y) in enumerate(points)]
        self.call("Input.dispatchTouchEvent", type=kind, touchPoints=touched)

    def press(self, key: str, code: int = 0) -> None:
        """A key, with its text where it has one."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        self.settle()

    def screenshot(self, path: Path, is_whole: bool = True) -> Path:
        """A PNG of the whole page, or of what is in the window."""
        taken = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(taken["data"]))
        return path

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def _next(self, is_it: Any) -> dict[str, Any]:
        """The next message that is asked for; what comes before it is looked at."""
        end = time.monotonic() + TIMEOUT
        while True:
            while b"\0" not in self._rest:
                try:
                    got = os.read(self._read, 1 << 20)
                except BlockingIOError:
                    assert time.monotonic() < end, "Chromium does not answer"
                    time.sleep(0.002)
                    continue
                assert got, "Chromium has ended"
                self._rest += got
            whole, self._rest = self._rest.split(b"\0", 1)
            message = json.loads(whole)
            self._look(message)
            if is_it(message):
                return message

    def _look(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.errors.append(told["entry"]["text"])
