"""A training, a resume of it, an evaluation and a prediction under a pseudo-terminal: what is on the screen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

pty = pytest.importorskip("pty")

SCRIPT = r"""
import fcntl, logging, struct, sys, termios, time
import torch
from kunren import Trainer, TrainingArguments
from kunren.callbacks import progress
progress.ProgressCallback.refresh_seconds = progress.COST_LIMIT = 0  # all that can be drawn is drawn

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        time.sleep(0.01)
        if not self.training and len(x) == 2 and float(x[0, 0]) == 4:
            logging.getLogger("anybody").warning("look here")
        return {"loss": ((self.inner(x).squeeze(-1) - labels) ** 2).mean(), "logits": self.inner(x)}

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(rows)

def window(columns):
    print(f"== {columns}", flush=True)
    for stream in (1, 2):
        fcntl.ioctl(stream, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

def trainer():
    arguments = TrainingArguments(
        output_dir=sys.argv[1], max_steps=16, per_device_train_batch_size=2, per_device_eval_batch_size=2,
        logging_steps=4, eval_strategy="steps", eval_steps=8, save_steps=8, report_to="none", use_cpu=True,
        run_report=False,
    )
    sets = {"英語": rows, "stream": Stream()}
    return Trainer(Model(), arguments, train_dataset=rows, eval_dataset=sets)

rows = [{"x": torch.ones(4) * i, "labels": torch.tensor(1.0)} for i in range(8)]
window(40)
trainer().train()
window(120)
again = trainer()
again.train(resume_from_checkpoint=sys.argv[1] + "/checkpoint-8")
window(60)
again.predict(rows)
print("done")
"""


class Screen:
    """As much of a terminal as a bar uses: line ends, carriage returns, and one line up."""

    def __init__(self, columns: int) -> None:
        self.columns, self.row, self.column, self.wraps = columns, 0, 0, 0
        self.rows: list[list[str]] = [[]]
        self.seen: set[str] = set()

    def write(self, text: str) -> None:
        for found in re.finditer(r"\x1b\[A|.", text, re.DOTALL):
            token = found.group()
            if token == "\x1b[A":
                self._note()
                self.row -= 1
                assert self.row >= 0
            elif token == "\r":
                self._note()
                self.column = 0
            elif token == "\n":
                self._note()
                self._down()
            else:
                assert token.isprintable(), repr(token)
                self._put(token)

    def _put(self, character: str) -> None:
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if self.column + width > self.columns:
            self.wraps += 1
            self._down()
            self.column = 0
        row = self.rows[self.row]
        row.extend([" "] * (self.column + width - len(row)))
        row[self.column : self.column + width] = [character, *[""] * (width - 1)]
        self.column += width

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _note(self) -> None:
        self.seen.add("".join(self.rows[self.row]).rstrip())

    @property
    def lines(self) -> list[str]:
        return ["".join(row).rstrip() for row in self.rows]


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> list[Screen]:
    main, side = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "COLUMNS", "LINES")}
    environment |= {"TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("run"))]
    process = subprocess.Popen(command, stdin=side, stdout=side, stderr=side, env=environment, cwd=Path.cwd())
    os.close(side)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(main)
    assert process.wait(60) == 0, shown.decode()
    screens = []
    for part in shown.decode().split("== ")[1:]:
        columns, text = part.split("\r\n", 1)
        screens.append(Screen(int(columns)))
        screens[-1].write(text)
    assert [screen.columns for screen in screens] == [40, 120, 60]
    return screens


def test_nothing_wraps_and_no_line_is_left_half(screens: list[Screen]) -> None:
    for screen in screens:
        assert screen.wraps == 0
        for line in screen.seen:
            assert re.fullmatch(
                r"|done|look here|step \d+/\d+ \| .+|  [\w ].*|([^|]+: )? *\d+%\|.*\| \d+/\d+.*|\w+: \d+ batch.*", line
            ), line
            assert not ("%|" in line and "step " in line)


def test_the_screen_of_a_training(screens: list[Screen]) -> None:
    continued = ("  ", "look here")
    lines = [line for line in screens[0].lines if not line.startswith(continued)]
    assert screens[0].lines.count("look here") == 4  # a pass over each set, twice
    assert [re.sub(r" \|.*", "", line) for line in lines[:-2]] == [
        "step 4/16", *["step 8/16"] * 3, "step 12/16", *["step 16/16"] * 4,
    ]  # fmt: skip
    assert [re.search(r"\| (\w+)", line)[1] for line in lines[:-2]] == [  # type: ignore[index]
        *["loss", "loss", "eval_英語_loss", "eval_stream_loss"] * 2, "train_runtime",
    ]  # fmt: skip
    assert re.fullmatch(r"100%\|█{8,}\| 16/16  \[00:0\d\]", lines[-2])
    assert lines[-1] == ""
    assert all(len(line) <= 40 for line in screens[0].lines)


def test_the_screen_of_a_resumed_training(screens: list[Screen]) -> None:
    seen, lines = screens[1].seen, [line for line in screens[1].lines if line[:2] not in ("  ", "lo")]
    assert any(re.match(r" 50%\|█+.? +\| 8/16  \[00:00<\?\]$", line) for line in seen)
    counts = {int(found[1]) for line in seen if (found := re.search(r"\| (\d+)/16  ", line))}
    assert counts == set(range(8, 17))
    assert [line[:10] for line in lines[:-2]] == ["step 12/16", *["step 16/16"] * 4]
    assert re.fullmatch(r"100%\|█+\| 16/16  \[00:0\d\]  loss [\d.e-]+  [\d.,]+ \w+/s  lr [\d.e-]+", lines[-2])


def test_bars_of_evaluations_vanish_and_that_of_a_prediction_stays(screens: list[Screen]) -> None:
    for screen in screens[:2]:
        assert any(line.startswith("英語: ") and "%|" in line for line in screen.seen)
        assert any(line.startswith("stream: ") and " batch" in line for line in screen.seen)
        assert not any(line.startswith(("英語", "stream")) for line in screen.lines)
    assert [line.split(":")[0] for line in screens[2].lines] == ["look here", "prediction", "done", ""]
