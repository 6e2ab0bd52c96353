"""The page beside trainings in other processes: their numbers come in, and so does a run that begins later."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from browser.chromium import Browser
from kunren.report.live import LiveServer

pytestmark = pytest.mark.slow  # two trainings, and a page that asks every two seconds

TRAINING = """
import sys, time
import torch
from kunren import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x, labels):
        time.sleep(0.05)
        logits = self.linear(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.tensor(index % 2)} for index in range(64)]
args = TrainingArguments(
    sys.argv[1], max_steps=int(sys.argv[2]), logging_steps=2, eval_strategy="steps", eval_steps=40, save_strategy="no",
    use_cpu=True, disable_tqdm=True, run_report=False,
)
Trainer(Model(), args, train_dataset=data, eval_dataset=data[:8]).train()
"""


def training(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", TRAINING, str(folder), str(steps)], stdout=subprocess.DEVNULL)


def test_numbers_grow_and_new_runs_appear(browser: Browser, tmp_path: Path) -> None:
    runs, processes = tmp_path / "runs", []
    with LiveServer([runs], port=0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            browser.size(1200)
            browser.open(server.address)
            assert "Waiting for the first log" in browser.run("document.body.textContent")
            processes.append(training(runs / "first", 400))
            browser.wait_for("!!document.querySelector('.tile dd')")  # it has loaded itself again
            before = step_of(browser)
            browser.wait_for(f"{STEP} > {before}")
            processes.append(training(runs / "second", 60))
            browser.wait_for("document.getElementById('part-head').textContent.includes('second')")
            browser.wait_for("document.getElementById('part-head').textContent.includes('Finished')")
            browser.settle()
            assert "first" in browser.run("document.getElementById('curves').textContent")
            assert "second" in browser.run("document.getElementById('curves').textContent")
            assert browser.errors == []
            assert all(request.startswith((server.address, "data:")) for request in browser.requests)
        finally:
            server.shutdown()
            thread.join()
            for process in processes:
                process.kill()
                process.wait()
    browser.open("about:blank")


STEP = "parseInt(document.querySelector('.tile dd').textContent.replaceAll(',', ''))"


def step_of(browser: Browser) -> int:
    return int(browser.run(STEP))
