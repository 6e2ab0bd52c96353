"""From `train(resume_from_checkpoint=...)` to the first forward pass, at step 5,000 of 6,000, beside a fresh start.

    python benchmarks/resume.py [--rounds 2] [--write]

A batch has 4 rows, and a row costs 1 ms of CPU, as one that is decoded would. The stream has `state_dict` and
`load_state_dict`. Until the checkpoint is there rows cost nothing.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import command_line, interleaved, report, table
from models import Perceptron, points
from systems import quiet
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

BATCH_SIZE, RESUMED_AT, STEPS = 4, 5000, 6000
ROW_SECONDS = 1e-3
HEADERS = ("first forward pass, seconds", "fresh start", "resumed", "extra", "each round", "rows fetched on resume")


class Source:
    """Rows that cost time, and are counted."""

    def __init__(self) -> None:
        self.columns = points(BATCH_SIZE * STEPS)
        self.row_seconds = 0.0
        self.fetched = 0

    def row(self, index: int) -> dict[str, Tensor]:
        self.fetched += 1
        until = time.perf_counter() + self.row_seconds
        while time.perf_counter() < until:
            pass
        return {name: values[index] for name, values in self.columns.items()}


class MapData(Dataset[dict[str, Tensor]]):
    def __init__(self, source: Source) -> None:
        self.source = source

    def __len__(self) -> int:
        return BATCH_SIZE * STEPS

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.source.row(index)


class Stream(IterableDataset[dict[str, Tensor]]):
    """Knows where it is."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.position = 0

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while self.position < BATCH_SIZE * STEPS:
            self.position += 1
            yield self.source.row(self.position - 1)
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


DATA = {"map": MapData, "stream": Stream}


class FirstForwardPass(Exception):
    """Ends a training where the measurement ends."""


@dataclass(frozen=True)
class Start:
    seconds: float
    rows: int


def trainer_of(package: str, kind: str, folder: Path, source: Source) -> Any:
    library: Any = importlib.import_module(package)

    class StopAt(library.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = state.global_step == RESUMED_AT

    torch.manual_seed(0)
    arguments = library.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH_SIZE,
        max_steps=STEPS,
        save_steps=RESUMED_AT,
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    return library.Trainer(model=Perceptron(), args=arguments, train_dataset=DATA[kind](source), callbacks=[StopAt()])


def prepare(package: str, kind: str, folder: Path) -> None:
    with quiet():
        trainer_of(package, kind, folder, Source()).train()
    if not (folder / f"checkpoint-{RESUMED_AT}").is_dir():
        raise RuntimeError(f"{package} left no checkpoint in {folder}")


def first_forward(package: str, kind: str, folder: Path, resumes: bool) -> Start:
    """Seconds from the call of `train` to the first forward pass, and the rows that it had fetched by then."""
    source = Source()
    with quiet():
        trainer = trainer_of(package, kind, folder, source)
        source.row_seconds = ROW_SECONDS

        def stop(*arguments: Any) -> None:
            raise FirstForwardPass

        trainer.model.register_forward_pre_hook(stop)
        checkpoint = str(folder / f"checkpoint-{RESUMED_AT}") if resumes else None
        begun = time.perf_counter()
        try:
            trainer.train(resume_from_checkpoint=checkpoint)
        except FirstForwardPass:
            return Start(time.perf_counter() - begun, source.fetched)
    raise RuntimeError(f"{package} trained without a forward pass")


def main() -> None:
    options = command_line(__doc__, rounds=2).parse_args()
    torch.set_num_threads(1)
    packages = [package for package in ("kunren", "transformers") if package not in options.without]
    with tempfile.TemporaryDirectory() as root:
        runs = {}
        for kind in DATA:
            for package in packages:
                folder = Path(root, f"{package}-{kind}")
                prepare(package, kind, folder)
                for resumes in (False, True):
                    runs[package, kind, resumes] = partial(first_forward, package, kind, folder, resumes)
        starts = interleaved(runs, options.rounds)  # type: ignore[type-var, arg-type]
    rows = []
    for kind in DATA:
        for package in packages:
            fresh, resumed = starts[package, kind, False], starts[package, kind, True]  # type: ignore[index]
            medians = [statistics.median(start.seconds for start in one) for one in (fresh, resumed)]
            extra = [after.seconds - before.seconds for before, after in zip(fresh, resumed, strict=True)]
            rows.append(
                (
                    f"{package}, {kind}",
                    *(f"{median:.3f}" for median in medians),
                    f"{statistics.median(extra):.3f}",
                    " ".join(f"{seconds:.3f}" for seconds in extra),
                    f"{resumed[0].rows}",
                )
            )
    report("resume", "From resuming at step 5,000 of 6,000 to the first step", [table(HEADERS, rows)], options.write)


if __name__ == "__main__":
    main()
