"""CPU time of one evaluation batch as the number of batches grows, with all logits collected for the metrics.

    python benchmarks/evaluation.py [--rounds 3] [--write]

A batch gives 4 x 4,000 logits, the model itself does next to nothing: what is measured is the collecting.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from functools import partial
from typing import Any

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from models import points
from systems import Rows, quiet
from torch import Tensor, nn

BATCH_SIZE, LOGITS = 4, 4000
BATCHES = (60, 120, 240, 480)
HEADERS = ("CPU ms per batch", *(f"{batches} batches" for batches in BATCHES), "480 to 60", "ratio in each round")


class Wide(nn.Module):
    """As many logits as a small vocabulary, at no cost."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": self.weight * 0, "logits": x.sum(1, keepdim=True).expand(-1, LOGITS).contiguous()}


def per_batch(package: str, batches: int) -> float:
    """CPU seconds that one of so many batches takes in `evaluate`."""
    library: Any = importlib.import_module(package)
    rows = Rows(points(BATCH_SIZE * batches), between=(-1, -1), read=time.process_time)
    with tempfile.TemporaryDirectory() as folder, quiet():
        arguments = library.TrainingArguments(
            output_dir=folder,
            per_device_eval_batch_size=BATCH_SIZE,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        trainer = library.Trainer(model=Wide(), args=arguments, eval_dataset=rows, compute_metrics=check_shape(batches))
        start = time.process_time()
        trainer.evaluate()
        return (time.process_time() - start) / batches


def check_shape(batches: int) -> Any:
    """A metric that says whether every row was collected; a system that lost some would look fast."""

    def compute_metrics(prediction: Any) -> dict[str, float]:
        shape = tuple(prediction.predictions.shape)
        if shape != (batches * BATCH_SIZE, LOGITS):
            raise ValueError(f"{batches} batches gave predictions of shape {shape}")
        return {"rows": float(shape[0])}

    return compute_metrics


def main() -> None:
    options = command_line(__doc__, rounds=3).parse_args()
    torch.set_num_threads(1)
    packages = [package for package in ("kunren", "transformers") if package not in options.without]
    for package in packages:
        per_batch(package, 8)  # what is imported at the first evaluation is no cost of a batch
    runs = {f"{package} {batches}": partial(per_batch, package, batches) for package in packages for batches in BATCHES}
    seconds = interleaved(runs, options.rounds)
    rows = []
    for package in packages:
        medians = [f"{statistics.median(seconds[f'{package} {batches}']) * 1e3:.2f}" for batches in BATCHES]
        growth = ratio_cells(seconds[f"{package} {BATCHES[-1]}"], seconds[f"{package} {BATCHES[0]}"])
        rows.append((package, *medians, *growth))
    report("evaluation", "Cost of an evaluation batch, 4 x 4,000 logits", [table(HEADERS, rows)], options.write)


if __name__ == "__main__":
    main()
