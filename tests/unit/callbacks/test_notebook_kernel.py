"""A real notebook is run, and its outputs are read."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytestmark = pytest.mark.slow

SETTING = (
    f"""
import os, sys
sys.path[:] = {sys.path!r}
"""
    + """
import torch
from kunren import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x, labels):
        return {"loss": ((self.inner(x).squeeze(-1) - labels) ** 2).mean(), "logits": self.inner(x)}

rows = [{"x": torch.ones(4) * i, "labels": torch.tensor(1.0)} for i in range(8)]
def trainer(steps, **options):
    arguments = TrainingArguments(
        output_dir="run", max_steps=steps, per_device_train_batch_size=2, logging_steps=4, eval_strategy="steps",
        eval_steps=8, save_steps=8, report_to="none", use_cpu=True, run_report=False, **options)
    return Trainer(Model(), arguments, train_dataset=rows, eval_dataset={"a": rows, "b": rows})
"""
)
CELLS = [
    SETTING,
    "first = trainer(8); first.train(); None",
    "second = trainer(16); second.train(resume_from_checkpoint=True); None",
    "second.evaluate(); None",
    "second.predict(rows); None",
    "trainer(8, disable_tqdm=True).train(); None",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in CELLS])
    folder = str(tmp_path_factory.mktemp("notebook"))
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": folder}}).execute()
    return [
        [output for output in cell.outputs if output.get("name") != "stderr"] for cell in book.cells
    ]  # fmt: skip


def tables(outputs: list[Any]) -> list[list[list[str]]]:
    assert all(output.output_type == "display_data" for output in outputs), outputs
    found = []
    for output in outputs:
        rows = re.findall(r"<tr.*?</tr>", output.data["text/html"])
        found.append([re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in rows])
    return [rows for rows in found if rows]


COLUMNS = ["Step", "Epoch", "Training Loss", "Validation Loss", "A Loss", "B Loss"]


def test_a_training_is_a_bar_and_a_table(outputs: list[list[Any]]) -> None:
    assert outputs[0] == []
    shown = outputs[1]
    assert len(shown) == 2
    assert '<progress value="8" max="8"' in shown[0].data["text/html"]
    assert "8/8 [00:0" in shown[0].data["text/plain"]
    (table,) = tables(shown)
    assert table[0] == COLUMNS
    assert [row[0] for row in table[1:]] == ["4", "8"]
    assert table[2][4] == table[2][5] != ""


def test_a_resumed_training_goes_on_with_the_table(outputs: list[list[Any]]) -> None:
    (table,), (before,) = tables(outputs[2]), tables(outputs[1])
    assert table[: len(before)] == before
    assert [row[0] for row in table[1:]] == ["4", "8", "12", "16"]
    assert '<progress value="16" max="16"' in outputs[2][0].data["text/html"]


def test_evaluation_and_prediction(outputs: list[list[Any]]) -> None:
    assert [table[0] for table in tables(outputs[3])] == [["A Loss"], ["B Loss"]]
    assert [table[0] for table in tables(outputs[4])] == [["Test Loss"]]


def test_disable_tqdm_gives_the_printer(outputs: list[list[Any]]) -> None:
    assert {output.output_type for output in outputs[5]} == {"stream"}
    assert "{'loss': '" in outputs[5][0].text
