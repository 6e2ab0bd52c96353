"""What is kept for `compute_metrics`, and what is said when there is no room for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.metrics import collected
from kunren.metrics.collected import padding_for

ROWS = 12


def shares(prediction: kunren.EvalPrediction) -> dict[str, float]:
    return {"rows": float(len(prediction.label_ids))}


def evaluate(folder: Path, data: Any, **settings: Any) -> dict[str, float]:
    by_batch = settings.get("batch_eval_metrics", False)
    function = (lambda prediction, compute_result: {}) if by_batch else shares
    trainer = kunren.Trainer(models.Points(), arguments(folder, **settings), compute_metrics=function)
    return trainer.evaluate(data)


@pytest.mark.parametrize(("free", "warns"), [(None, False), (ROWS * 20, False), (ROWS * 20 - 1, True)])
def test_too_large_a_result_is_announced(
    free: int | None, warns: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Three logits of 4 bytes and a label of 8 to a row."""
    monkeypatch.setattr(collected, "free_host_bytes", lambda: free)
    assert evaluate(tmp_path, rows.points(ROWS))["eval_rows"] == ROWS
    assert caplog.text.count("host memory") == warns
    remedies = ("metrics=[", "batch_eval_metrics", "preprocess_logits_for_metrics", "prediction_loss_only")
    assert all((remedy in caplog.text) == warns for remedy in remedies)


@pytest.mark.parametrize("settings", [{"prediction_loss_only": True}, {"batch_eval_metrics": True}], ids=str)
def test_nothing_is_announced_where_nothing_is_kept(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collected, "free_host_bytes", lambda: 0)
    evaluate(tmp_path, rows.points(ROWS), **settings)
    assert "host memory" not in caplog.text


def test_streams_have_no_known_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collected, "free_host_bytes", lambda: 0)
    assert evaluate(tmp_path, rows.Stream(rows.points(ROWS).rows))["eval_rows"] == ROWS
    assert "host memory" not in caplog.text


TOKENIZER = SimpleNamespace(pad_token_id=3)


@pytest.mark.parametrize(
    ("model", "processing_class", "expected"),
    [
        ("llama", TOKENIZER, (3, 3)),
        ("llama", SimpleNamespace(tokenizer=TOKENIZER), (3, 3)),
        ("bert", TOKENIZER, (-100, 3)),
        ("llama", SimpleNamespace(pad_token_id=None), (-100, -100)),
        ("llama", SimpleNamespace(pad_token_id=None, eos_token_id=2), (2, 2)),
        ("llama", None, (-100, -100)),
        ("t5", None, (0, -100)),
        ("t5", SimpleNamespace(sampling_rate=16_000), (0, -100)),
    ],
)
def test_text_is_filled_with_the_padding_token(model: str, processing_class: Any, expected: tuple[int, int]) -> None:
    assert padding_for(getattr(models, model)(), processing_class) == expected


class Ragged(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        ids = torch.arange(1, 4 if index < 5 else 7)
        return {"input_ids": ids, "labels": ids}


def test_predicted_text_can_be_decoded_and_labels_still_tell_what_counts(tmp_path: Path) -> None:
    seen: list[kunren.EvalPrediction] = []
    trainer = kunren.Trainer(
        models.llama(dropout=0.0),
        arguments(tmp_path, include_for_metrics=["inputs"]),
        data_collator=kunren.default_data_collator,
        processing_class=TOKENIZER,
        compute_metrics=lambda prediction: seen.append(prediction) or {},
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1),
    )
    trainer.evaluate(Ragged())
    (one,) = seen
    assert one.predictions.shape == one.label_ids.shape == one.inputs.shape == (10, 6)
    assert (one.predictions[:5, 3:] == 3).all() and (one.inputs[:5, 3:] == 3).all()
    assert (one.label_ids[:5, 3:] == -100).all() and (one.label_ids[5:] != -100).all()


MEASURE = """
import os, numpy, sys
from pathlib import Path
from kunren.metrics.joined import Joined
def memory(which):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(which))
rows, width, batch = 64, 2**18, 2  # 64 MiB in batches of 2
for how in ("known", "unknown", "ragged"):
    if os.fork() == 0:
        joined = Joined(rows if how == "known" else None)
        Path("/proc/self/clear_refs").write_text("5")
        before = memory("VmRSS")
        for number in range(rows // batch):
            joined.add(numpy.full((batch, width - number % 3 * (how == "ragged")), 1.0, numpy.float32))
        assert joined.result().shape == (rows, width)
        print(how, memory("VmHWM") - before, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are read from /proc")
def test_the_peak_is_the_result_and_a_batch() -> None:
    """In MiB; a list and its concatenation take 128."""
    environment = {**os.environ, "PYTHONPATH": str(Path(kunren.__file__).parents[1])}
    result = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True, env=environment
    )
    peaks = dict(line.split() for line in result.stdout.splitlines())
    assert list(peaks) == ["known", "unknown", "ragged"]
    assert all(62 <= int(peak) < 77 for peak in peaks.values()), peaks


def test_kept_apart_and_empty() -> None:
    kept = collected.Collected(4, (-100, -100), apart=True)
    for part in torch.arange(4.0).split(2):
        kept.keep(2, (part, part + 1), None, None)
    predictions, labels, inputs = kept.results()
    assert [[array.tolist() for array in batch] for batch in predictions] == [[[0, 1], [1, 2]], [[2, 3], [3, 4]]]
    assert labels is None and inputs is None
    assert kept.mean_loss() is None
    kept.losses = [(torch.tensor(float("nan")), 0.0, 2), (torch.tensor(2.0), 3.0, 1)]
    assert kept.mean_loss() == 2.0
    assert numpy.isnan(kept.row_losses()[:2]).all() and kept.row_losses()[2] == 2.0
