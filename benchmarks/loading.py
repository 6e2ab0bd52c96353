"""CPU time of loading a sample: transformers' Trainer, a plain torch DataLoader, and kunren.

    python benchmarks/loading.py [--rounds 6] [--write]

One pass over 4,000 rows in random order, batch 32, no workers, from the data set to the tensors of a batch. The rows
are what tokenizers make: input ids, token types, attention mask, label, in a memory-mapped `datasets.Dataset` or as
Python lists. Every system is checked to give the same batches of the same rows. transformers runs twice a round: how
far its second ratio is from 1.00 is what the machine's other work does to the figures.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy
import torch
import transformers
from measure import command_line, interleaved, ratio_cells, report, table
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler

import kunren
from kunren.data.reader import BatchReader

ROWS, BATCH, FIXED_LENGTH = 4000, 32, 512
REFERENCE, AGAIN = "transformers", "transformers again"
HEADERS = ("system", "CPU us/sample", "samples/CPU s", "times transformers' speed", "in each round")


class Classifier(nn.Module):
    """Only its signature is looked at: it says which columns are inputs."""

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, labels: Any = None
    ) -> None:
        raise NotImplementedError


def lengths() -> list[int]:
    """Log-normal, 8 to 512, mean 117."""
    drawn = numpy.random.default_rng(0).lognormal(numpy.log(95), 0.66, ROWS)
    return [int(length) for length in numpy.clip(numpy.round(drawn), 8, 512)]


def token_rows(lengths: Iterable[int]) -> Any:
    """With the types that `map(tokenizer)` gives the columns."""
    numbers = numpy.random.default_rng(1)
    of = {"input_ids": "int32", "token_type_ids": "int8", "attention_mask": "int8"}
    features = datasets.Features({name: datasets.List(datasets.Value(kind)) for name, kind in of.items()})
    features["label"] = datasets.ClassLabel(2)
    columns: dict[str, list[Any]] = {name: [] for name in features}
    for index, length in enumerate(lengths):
        columns["input_ids"].append(numbers.integers(5, 30_000, length).tolist())
        columns["token_type_ids"].append([0] * length)
        columns["attention_mask"].append([1] * length)
        columns["label"].append(index % 2)
    return datasets.Dataset.from_dict(columns, features=features)


def mapped(rows: Any, folder: Path) -> Any:
    """The rows in a file, seen through memory mapping."""
    rows.save_to_disk(str(folder))
    return datasets.load_from_disk(str(folder))


def tokenizer(folder: Path) -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(30_000))]
    (folder / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    return transformers.BertTokenizerFast(str(folder / "vocab.txt"))


def trainer(package: Any, data: Any, collator: Any, folder: Path, order: str) -> Any:
    arguments = package.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        train_sampling_strategy=order,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        use_cpu=True,
    )
    return package.Trainer(model=Classifier(), args=arguments, train_dataset=data, data_collator=collator)


def systems(data: Any, collators: dict[str, Any], folder: Path, order: str) -> dict[str, Callable[[], Iterable[Any]]]:
    """From a name to what gives the batches of one pass."""
    theirs = trainer(transformers, data, collators["transformers"], folder, order).get_train_dataloader()
    ours = trainer(kunren, data, collators["kunren"], folder, order)
    reader = BatchReader(ours.get_train_dataloader(), ours.data_seed)
    plain = DataLoader(
        data,
        batch_size=BATCH,
        sampler=RandomSampler(data) if order == "random" else None,
        collate_fn=collators["transformers"],
    )
    return {
        REFERENCE: lambda: theirs,
        "torch DataLoader, the same collator": lambda: plain,
        "kunren": partial(reader.read, 0),
        AGAIN: lambda: theirs,
    }


def refuse_other_batches(systems: dict[str, Callable[[], Iterable[Any]]]) -> None:
    for name, batches in systems.items():
        for one, other in zip(batches(), systems[REFERENCE](), strict=True):
            if list(one) != list(other) or not all(equal(one[column], other[column]) for column in other):
                raise SystemExit(f"{name} gives other batches than {REFERENCE}")


def equal(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def microseconds(batches: Callable[[], Iterable[Any]]) -> float:
    start, samples = time.process_time(), 0
    for batch in batches():
        samples += len(batch["labels"])
    return (time.process_time() - start) / samples * 1e6


def measure(data: Any, collators: dict[str, Any], folder: Path, rounds: int) -> str:
    refuse_other_batches(systems(data, collators, folder, "sequential"))
    runs = {
        name: partial(microseconds, batches) for name, batches in systems(data, collators, folder, "random").items()
    }
    measured = interleaved(runs, rounds)
    rows = []
    for name, values in measured.items():
        speed, each = ratio_cells(measured[REFERENCE], values)
        middle = statistics.median(values)
        rows.append((name, f"{middle:.1f}", f"{1e6 / middle:,.0f}", speed, each))
    return table(HEADERS, rows)


def main() -> None:
    options = command_line(__doc__, rounds=6).parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pads = tokenizer(folder)
        padding = {package.__name__: package.DataCollatorWithPadding(pads) for package in (transformers, kunren)}
        stacking = {package.__name__: package.default_data_collator for package in (transformers, kunren)}
        variable = mapped(token_rows(lengths()), folder / "variable")
        fixed = mapped(token_rows([FIXED_LENGTH] * ROWS), folder / "fixed")
        mean = statistics.mean(lengths())
        cases = {
            f"Memory-mapped, {mean:.0f} tokens a row on average, padded": (variable, padding),
            "The same, input ids and label alone": (variable.select_columns(["input_ids", "label"]), padding),
            "The same after `shuffle()`, which maps indices": (variable.shuffle(seed=0), padding),
            "The same, and transformers' collator given to kunren": (
                variable,
                dict.fromkeys(padding, padding["transformers"]),
            ),
            "The same rows as dicts of Python lists": (variable.to_list(), padding),
            f"Memory-mapped, {FIXED_LENGTH} tokens a row, the default collator": (fixed, stacking),
        }
        sections = []
        for title, (data, collators) in cases.items():
            sections += [title, measure(data, collators, folder, options.rounds)]
    report("loading", f"Loading: {ROWS:,} rows in random order, batch {BATCH}, no workers", sections, options.write)


if __name__ == "__main__":
    main()
