"""The page while a run goes on: new data come in, what was looked at stays, and a server that has gone is told of."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from browser import example_runs
from browser.chromium import Browser
from browser.test_page import AXIS, FIRST, PLOT, inside
from kunren.report.live import LiveServer

pytestmark = pytest.mark.slow  # it waits for a page that asks every two seconds


def test_new_data_come_in_and_what_was_looked_at_stays(browser: Browser, tmp_path: Path) -> None:
    lines = example_runs.lines_of(7)
    folder = example_runs.write(tmp_path / "run", lines[:100], [example_runs.begin()])
    server = LiveServer([folder], port=0)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        browser.size(1440)
        browser.prefer("light")
        browser.open(server.address)
        browser.wait_for(f"{PLOT} && {PLOT}.dataset.domain")
        assert browser.run("document.getElementById('live').hidden") is False
        browser.run(f"{FIRST}.querySelectorAll('.legend button')[1].click()")
        browser.drag(inside(browser, 0.3), inside(browser, 0.6))
        zoomed = browser.run(AXIS)
        browser.run("document.querySelector('#part-details details, #part-details section').id")
        last = lines[-1]["step"]
        with open(folder / "metrics.jsonl", "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines[100:])
            file.write(json.dumps({"loss": 1.0, "fresh_metric": 3.0, "step": last + 5, "time": time.time()}) + "\n")
        browser.wait_for(f"document.querySelector('.tile dd').textContent.startsWith('{last + 5:,}')")
        browser.wait_for("!!document.querySelector('figure[data-name=fresh_metric]')")
        browser.settle()
        assert browser.run(AXIS) == zoomed
        assert browser.run(f"{FIRST}.querySelectorAll('.legend button')[1].getAttribute('aria-pressed')") == "false"
        browser.run("document.querySelector('.plain').click()")
        browser.settle()
        assert browser.run(AXIS)[1] == last + 5
        assert "updated" in browser.run("document.getElementById('live').textContent")
        assert browser.errors == []
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    browser.wait_for("document.getElementById('live').classList.contains('gone')")
    assert "server has gone" in browser.run("document.getElementById('live').textContent")
    browser.size(390)
    browser.settle()
    assert browser.run("document.documentElement.scrollWidth") == 390
    browser.open("about:blank")
