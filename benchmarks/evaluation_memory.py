"""Peak memory of an evaluation that wants nothing but the accuracy of 2,000 x 64 tokens over a vocabulary of 32,000.

    python benchmarks/evaluation_memory.py [--rounds 1] [--samples 2000] [--write]

All logits would take 15.3 GiB, those of one batch 62.5 MiB. Each run has a process of its own; what it holds before the
evaluation (packages, weights, data) is subtracted. Modes that keep all logits run on fewer samples.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from torch import Tensor, nn
from torch.nn import functional

BATCH_SIZE, TOKENS, VOCABULARY, HIDDEN = 8, 64, 32_000, 64
LOOP = "plain streaming loop"
HEADERS = ("Accuracy of all tokens", "samples", "peak MiB", "peak / all logits", "over the loop", "CPU s", "each peak")


class LanguageModel(nn.Module):
    """An embedding and a head: nearly all memory is that of the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.head(self.embedding(input_ids))
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(0, VOCABULARY, (count, TOKENS), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index] % 7}


def by_hand(model: nn.Module) -> Callable[[Samples], float]:
    def evaluate(samples: Samples) -> float:
        right = total = 0
        loss = torch.zeros(())
        with torch.no_grad():
            for batch in torch.utils.data.DataLoader(samples, batch_size=BATCH_SIZE):
                out = model(**batch)
                loss += out["loss"]
                right += int((out["logits"].argmax(-1) == batch["labels"]).sum())
                total += batch["labels"].numel()
                del out
        return right / total

    return evaluate


def by_trainer(package: str, how: str, model: nn.Module) -> Callable[[Samples], float]:
    library: Any = importlib.import_module(package)
    folder = tempfile.mkdtemp()

    def share(prediction: Any) -> dict[str, float]:
        chosen = prediction.predictions
        chosen = chosen.argmax(-1) if how == "all logits" else chosen
        return {"accuracy": float((chosen == prediction.label_ids).mean())}

    arguments = library.TrainingArguments(
        output_dir=folder,
        per_device_eval_batch_size=BATCH_SIZE,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=True,
        **({"metrics": ["accuracy"]} if how == "by name" else {}),
    )
    trainer = library.Trainer(
        model=model,
        args=arguments,
        compute_metrics=None if how == "by name" else share,
        preprocess_logits_for_metrics=(lambda logits, labels: logits.argmax(-1)) if how == "prepared" else None,
    )
    return lambda samples: float(trainer.evaluate(samples)["eval_accuracy"])


SYSTEMS: dict[str, Callable[[nn.Module], Callable[[Samples], float]]] = {
    LOOP: by_hand,
    'kunren, metrics=["accuracy"]': partial(by_trainer, "kunren", "by name"),
    "kunren, preprocess_logits_for_metrics": partial(by_trainer, "kunren", "prepared"),
    "transformers, preprocess_logits_for_metrics": partial(by_trainer, "transformers", "prepared"),
    "kunren, compute_metrics with all logits": partial(by_trainer, "kunren", "all logits"),
    "transformers, compute_metrics with all logits": partial(by_trainer, "transformers", "all logits"),
}


def measured_here(system: str, count: int) -> dict[str, float]:
    """Peak bytes over what was held before, CPU seconds and accuracy of one evaluation in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    evaluate = SYSTEMS[system](LanguageModel().eval())
    evaluate(Samples(1))  # imports, and what is allocated once
    samples = Samples(count)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is taken from here on
    before, start = memory("VmRSS"), time.process_time()
    accuracy = evaluate(samples)
    return {"peak": memory("VmHWM") - before, "seconds": time.process_time() - start, "accuracy": accuracy}


def memory(which: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def measured(system: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", system, "--samples", str(count)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise RuntimeError(f"{system}: {finished.stderr[-2000:]}")
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = command_line(__doc__, rounds=1)
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--subset", type=int, default=128, help="samples where all logits are kept")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured_here(options.measure, options.samples)))
        return
    systems = [name for name in SYSTEMS if name not in options.without]
    counts = {name: options.subset if "all logits" in name else options.samples for name in systems}
    results = interleaved({name: partial(measured, name, counts[name]) for name in systems}, options.rounds)
    if len({one["accuracy"] for name in systems if counts[name] == options.samples for one in results[name]}) != 1:
        raise ValueError(f"The systems disagree on the accuracy: {results}")
    rows = []
    for name in systems:
        peaks = [one["peak"] for one in results[name]]
        ratio = ratio_cells(peaks, [one["peak"] for one in results[LOOP]])[0]
        all_logits = counts[name] * TOKENS * VOCABULARY * 4
        cells = [f"{counts[name]:,}", f"{statistics.median(peaks) / 2**20:.0f}"]
        cells += [f"{statistics.median(peaks) / all_logits:.3f}", ratio if counts[name] == options.samples else ""]
        cells += [f"{statistics.median(one['seconds'] for one in results[name]):.1f}"]
        rows.append((name, *cells, " ".join(f"{peak / 2**20:.0f}" for peak in peaks)))
    note = f"One batch of logits: {BATCH_SIZE * TOKENS * VOCABULARY * 4 / 2**20:.1f} MiB."
    report("evaluation_memory", "Memory of an evaluation", [table(HEADERS, rows), note], options.write)


if __name__ == "__main__":
    main()
