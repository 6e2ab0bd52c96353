"""Useful tokens per CPU second of training on texts of unequal length, by the way in which rows become batches.

    python benchmarks/batching.py [--rounds 3] [--rows 256] [--models Llama BERT] [--write]

Lengths are log-normal between 8 and 256, 62 on average; the models have 4 layers of width 128. A run is an epoch in
batches of 32 (token_budget: of 2,048 tokens, about as many), and is measured from its first step to its last. What an
embedding is asked for is counted: the share of it that is no padding is the useful share.
"""

from __future__ import annotations

import importlib
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from measure import command_line, interleaved, ratio_cells, report, table
from systems import quiet
from torch import Tensor, nn

VOCABULARY, BATCH_SIZE, TOKEN_BUDGET = 2048, 32, 2048
BASE = "transformers, random and padded"
HEADERS = ("system", "useful tokens per CPU s", "ratio", "ratio in each round", "useful share", "mean loss")


@dataclass(frozen=True)
class Way:
    """A library, its arguments, and whether its collator flattens."""

    package: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    flattens: bool = False


WAYS = {
    BASE: Way("transformers"),
    "transformers, grouped": Way("transformers", {"train_sampling_strategy": "group_by_length"}),
    "transformers, DataCollatorWithFlattening": Way("transformers", flattens=True),
    "kunren, padded": Way("kunren"),
    "kunren, grouped": Way("kunren", {"batching": "grouped"}),
    "kunren, token_budget": Way("kunren", {"batching": "token_budget", "token_budget": TOKEN_BUDGET}),
    "kunren, packed": Way("kunren", {"batching": "packed"}),
}


@dataclass(frozen=True)
class Outcome:
    tokens_per_second: float
    useful_share: float
    loss: float


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=256,
            use_cache=False,
        )
    )


def bert() -> nn.Module:
    """Without dropout, so that packed and padded runs draw the same numbers: none."""
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=256,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=4,
        )
    )


MODELS: dict[str, Callable[[], nn.Module]] = {"Llama": llama, "BERT": bert}


def texts(count: int, with_class: bool) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.empty(3 * count + 100).log_normal_(3.9, 0.8, generator=generator).long()
    rows = []
    for length in lengths[(lengths >= 8) & (lengths <= 256)][:count].tolist():
        tokens = torch.randint(1, VOCABULARY, (length,), generator=generator).tolist()
        rows.append({"input_ids": tokens, "labels": tokens[0] % 4 if with_class else tokens})
    return rows


def pad(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Dynamic padding: to the longest row of the batch."""
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    ones = [torch.ones(len(each), dtype=torch.int64) for each in ids]
    labels = torch.tensor([row["labels"] for row in rows]) if isinstance(rows[0]["labels"], int) else padded(ids, -100)
    return {"input_ids": padded(ids, 0), "attention_mask": padded(ones, 0), "labels": labels}


def padded(rows: list[Tensor], value: int) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def collator_of(way: Way) -> Callable[[list[Any]], Any]:
    if not way.flattens:
        return pad
    from transformers import DataCollatorWithFlattening

    flatten: Callable[[list[Any]], Any] = DataCollatorWithFlattening()
    return flatten


def train(way: Way, make_model: Callable[[], nn.Module], rows: list[dict[str, Any]]) -> Outcome:
    library: Any = importlib.import_module(way.package)
    torch.manual_seed(0)
    model = make_model()
    asked_for: list[int] = []
    embeddings: nn.Module = model.get_input_embeddings()  # type: ignore[operator]
    embeddings.register_forward_pre_hook(lambda _, inputs: asked_for.append(inputs[0].numel()))
    started: list[float] = []

    class Clock(library.TrainerCallback):  # type: ignore[misc, name-defined]
        def on_epoch_begin(self, *args: Any, **details: Any) -> None:
            started.append(time.process_time())

        def on_epoch_end(self, *args: Any, **details: Any) -> None:
            started.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder, quiet():
        arguments = library.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH_SIZE,
            num_train_epochs=1,
            learning_rate=1e-3,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
            **way.settings,
        )
        trainer = library.Trainer(
            model=model, args=arguments, train_dataset=rows, data_collator=collator_of(way), callbacks=[Clock()]
        )
        output = trainer.train()
    useful = sum(len(row["input_ids"]) for row in rows)
    return Outcome(useful / (started[1] - started[0]), useful / sum(asked_for), output.training_loss)


def measure(name: str, count: int, without: list[str], rounds: int) -> str:
    make_model, with_class = MODELS[name], name == "BERT"
    rows, few = texts(count, with_class), texts(2 * BATCH_SIZE, with_class)
    ways, left_out = {}, []
    for system, way in WAYS.items():
        if system in without or (way.flattens and with_class):
            continue  # transformers flattens for causal models only
        try:
            train(way, make_model, few)  # also loads what is loaded on first use
        except ValueError as refusal:
            left_out.append(f"{system}: {refusal}")
            continue
        ways[system] = way
    runs = {system: partial(train, way, make_model, rows) for system, way in ways.items()}
    outcomes = interleaved(runs, rounds)
    base = [outcome.tokens_per_second for outcome in outcomes[BASE]]
    lines = []
    for system in runs:
        speeds = [outcome.tokens_per_second for outcome in outcomes[system]]
        ratio, each = ratio_cells(speeds, base)
        one = outcomes[system][0]
        share = f"{one.useful_share:.0%}"
        lines.append((system, f"{statistics.median(speeds):,.0f}", ratio, each, share, f"{one.loss:.5f}"))
    return "\n\n".join([f"{name}, {count} rows", table(HEADERS, lines), *left_out])


def main() -> None:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--rows", type=int, default=256, help="rows of the epoch (default 256)")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sections = [measure(name, options.rows, options.without, options.rounds) for name in options.models]
    title = "Texts of unequal length: 4 layers x 128, log-normal lengths 8-256, batch 32"
    report("batching", title, sections, options.write)


if __name__ == "__main__":
    main()
