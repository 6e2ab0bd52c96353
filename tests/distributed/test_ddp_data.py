"""What two processes read together is what one reads: several training sets, orders by length, workers, dispatching."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import LENGTH, Noting, Rows, Tagger, arguments, assert_same
from kunren import Trainer, TrainerCallback

pytestmark = pytest.mark.distributed

SETS = {"long": 37, "short": 18, "one": 1}
WORKERS = {"dataloader_num_workers": 2, "dataloader_multiprocessing_context": "fork"}  # others import everything again
PASSES = {"num_train_epochs": 2, "max_steps": -1}


class Ragged(Rows):
    """Rows of different lengths; `noted` gets those that were read."""

    def __init__(self, number: int, noted: list[int] | None = None) -> None:
        super().__init__(number, ragged=False)
        self.noted = noted

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = super().__getitem__(index)
        if self.noted is not None:
            self.noted.append(index)
        return {name: values[: 1 + index % len(values)] for name, values in row.items()}


def padded(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """A batch of rows of any length, what is added being no label."""

    def joined(name: str, filler: int) -> torch.Tensor:
        values = [row[name] for row in rows]
        return torch.nn.utils.rnn.pad_sequence(values, batch_first=True, padding_value=filler)

    return {"input_ids": joined("input_ids", 0), "labels": joined("labels", -100)}


def trained_on(folder: Path, data: Any, resume: Any = None, **options: Any) -> dict[str, Any]:
    noting, callbacks = Noting(), options.pop("callbacks", [])
    trainer = Trainer(
        Tagger(options.pop("takes_count", False), options.pop("dropout", 0.0)),
        arguments(folder, **options),
        data_collator=padded,
        train_dataset=data,
        callbacks=[noting, *callbacks],
    )
    output = trainer.train(resume_from_checkpoint=resume)
    return {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "reported": [value for log in noting.logs for name, value in sorted(log.items()) if name.startswith("loss_")],
        "weights": [parameter.detach().clone().numpy() for parameter in trainer.model.parameters()],
        "train_loss": output.training_loss,
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "logs": noting.logs,
    }


def sets() -> dict[str, Any]:
    return {name: Ragged(rows) for name, rows in SETS.items()}


MIXED: list[dict[str, Any]] = [
    {"num_train_epochs": 2, "max_steps": -1},
    {"num_train_epochs": 2, "max_steps": -1, "gradient_accumulation_steps": 3, "takes_count": True},
    {"mixture_weights": {"long": 1.0, "short": 2.0, "one": 0.5}, "gradient_accumulation_steps": 2},
    {"logging_steps": 3, **WORKERS},
    {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2, "takes_count": True},
]
MEANS_OF_MEANS = 4  # is another update than that of one process; the losses of the sets are still theirs


def train_mixtures(folder: Path) -> list[Any]:
    return [trained_on(folder / str(number), sets(), **options) for number, options in enumerate(MIXED)]


def test_several_training_sets(tmp_path: Path) -> None:
    of_two = run_ranks(train_mixtures, tmp_path / "two")
    for number, options in enumerate(MIXED):
        one = trained_on(tmp_path / str(number), sets(), **{**options, "per_device_train_batch_size": 8})
        assert len(one["reported"]) >= len(one["losses"])
        for found in of_two:
            if number == MEANS_OF_MEANS:
                assert found[number]["reported"][0] == pytest.approx(one["reported"][0], rel=1e-6)
            else:
                assert_same(found[number], one)


SAVED = {**PASSES, "save_steps": 5, "save_strategy": "steps", "logging_steps": 4}


def save_mixture(folder: Path) -> Any:
    return trained_on(folder, sets(), **SAVED)


def test_the_sums_of_several_sets_go_on_in_one_process(tmp_path: Path) -> None:
    run_ranks(save_mixture, tmp_path / "run")
    undisturbed = trained_on(tmp_path / "one", sets(), **SAVED, per_device_train_batch_size=8)
    checkpoint = str(tmp_path / "run" / "checkpoint-5")  # in the middle of what a log covers
    going_on = trained_on(tmp_path / "run", sets(), resume=checkpoint, **SAVED, per_device_train_batch_size=8)
    assert len(going_on["losses"]) == len(undisturbed["losses"]) - 1
    for name in ("losses", "reported"):
        assert going_on[name] == pytest.approx(undisturbed[name][-len(going_on[name]) :], rel=1e-6)


class Passing(IterableDataset[Any]):
    """A stream whose rows draw random numbers, and that notes how far it was read."""

    def __init__(self, rows: int) -> None:
        self.rows, self.read = Ragged(rows), 0

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self.rows)):
            self.read += 1
            yield noisy(self.rows[index])


class Noisy(Ragged):
    """Rows that draw random numbers when they are read."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.read = 0

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.read += 1
        return noisy(super().__getitem__(index))


def noisy(row: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    replaced = torch.rand(len(row["input_ids"])) < 0.3
    return {**row, "input_ids": torch.where(replaced, 0, row["input_ids"])}


READ: list[tuple[str, dict[str, Any]]] = [
    ("rows", PASSES),
    ("rows", {**PASSES, "gradient_accumulation_steps": 2, "dataloader_drop_last": True}),
    ("rows", {**PASSES, "dataloader_persistent_workers": True, **WORKERS}),
    ("rows", {**PASSES, "batching": "grouped"}),
    ("rows", {**PASSES, "batching": "token_budget", "token_budget": 12}),
    ("rows", {**PASSES, "train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2}),
    ("rows", {**PASSES, "accelerator_config": {"split_batches": True}, "per_device_eval_batch_size": 4}),
    ("sets", {**PASSES, "gradient_accumulation_steps": 3}),
    ("sets", {**PASSES, "batching": "grouped"}),
    ("stream", {**PASSES, "max_steps": 11}),
    ("stream", {**PASSES, "max_steps": 11, "gradient_accumulation_steps": 2}),
    ("stream", {**PASSES, "max_steps": 11, **WORKERS, "dataloader_num_workers": 1}),
]


def source(kind: str) -> Any:
    if kind == "sets":
        return {name: Noisy(rows) for name, rows in SETS.items()}
    return Passing(33) if kind == "stream" else Noisy(33)


def read_both_ways(folder: Path) -> list[Any]:
    """Each case with and without dispatching, and how many rows this process has read."""
    found = []
    for number, (kind, options) in enumerate(READ):
        usual = dict(options)
        config = usual.pop("accelerator_config", {})
        each, first = source(kind), source(kind)
        one = trained_on(folder / f"{number}-each", each, accelerator_config=config, **usual)
        dispatching = {**config, "dispatch_batches": True}
        other = trained_on(folder / f"{number}-first", first, accelerator_config=dispatching, **usual)
        found.append((one, other, rows_read(each), rows_read(first)))
    return found


def rows_read(data: Any) -> int:
    return sum(map(rows_read, data.values())) if isinstance(data, dict) else data.read


def test_the_first_process_reads_for_all(tmp_path: Path) -> None:
    of_first, of_second = run_ranks(read_both_ways, tmp_path)
    for number, (kind, options) in enumerate(READ):
        for one, other, _, _ in (of_first[number], of_second[number]):
            assert_same(other, one, 0.0)
        if "dataloader_num_workers" not in options:  # they read elsewhere
            each, first, second = of_first[number][2], of_first[number][3], of_second[number][3]
            looks_for_lengths = {"batching", "train_sampling_strategy"} & set(options)
            assert (second == 0) == (not looks_for_lengths)
            assert first == each if kind == "stream" else first > each


class InEights(IterableDataset[Any]):
    """Eight rows in a row are of one number, which is drawn."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(32):
            if index % 8 == 0:
                tokens = torch.randint(11, (1,)).repeat(LENGTH)
            yield {"input_ids": tokens, "labels": tokens}


def drawing(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Labels that are drawn, more often by the first process."""
    batch = padded(rows)
    rank = torch.distributed.get_rank()
    batch["labels"] = torch.stack([torch.randint(11, batch["labels"].shape) for _ in range(3 - rank)])[0]
    return batch


def drawn_in_workers(folder: Path) -> list[tuple[list[int], list[int]]]:
    seen: list[tuple[list[int], list[int]]] = []
    options = {**WORKERS, "dataloader_num_workers": 1}
    model = Tagger()
    model.register_forward_pre_hook(
        lambda module, args, inputs: seen.append(
            (inputs["input_ids"].flatten().tolist(), inputs["labels"].flatten().tolist())
        ),
        with_kwargs=True,
    )
    trainer = Trainer(model, arguments(folder, max_steps=4, **options), drawing, InEights())
    trainer.train()
    return seen


def test_a_stream_in_workers_draws_the_same_everywhere(tmp_path: Path) -> None:
    first, second = run_ranks(drawn_in_workers, tmp_path)
    assert [tokens for tokens, _ in first] == [tokens for tokens, _ in second]
    assert len({tuple(tokens) for tokens, _ in first}) > 1
    drawn = [tuple(labels) for _, labels in [*first[-3:], *second[-3:]]]
    assert len(set(drawn)) == len(drawn)  # the numbers of the collator are nobody else's


class Counted(Passing):
    """A stream that knows where it stands."""

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.place = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        self.place, self.start = self.start, 0
        while self.place < len(self.rows):
            self.read += 1
            self.place += 1
            yield noisy(self.rows[self.place - 1])

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["place"]


RESUMED = {"rows": Noisy, "stream": Passing, "stream with a state": Counted}


def resumed(folder: Path) -> list[tuple[Any, Any, int]]:
    options = {**PASSES, "max_steps": 8, "save_steps": 6, "save_strategy": "steps", "dropout": 0.2}
    options["accelerator_config"] = {"dispatch_batches": True}
    found = []
    for name, kind in RESUMED.items():
        undisturbed = trained_on(folder / name, kind(33), **options)
        data = kind(33)
        going_on = trained_on(folder / name, data, resume=str(folder / name / "checkpoint-6"), **options)
        found.append((undisturbed, going_on, data.read))
    return found


def test_a_resumed_run_is_given_what_the_undisturbed_one_was(tmp_path: Path) -> None:
    for rank, found in enumerate(run_ranks(resumed, tmp_path)):
        for name, (undisturbed, going_on, read) in zip(RESUMED, found, strict=True):
            assert going_on["losses"] == undisturbed["losses"][6:]
            for one, other in zip(undisturbed["weights"], going_on["weights"], strict=True):
                assert (one == other).all()
            assert read == (0 if rank else {"rows": 16, "stream": 24, "stream with a state": 16}[name])


class OfProcess(IterableDataset[Any]):
    """A stream that gives other numbers of rows in other processes, as it should not."""

    def __iter__(self) -> Iterator[Any]:
        rows = Rows(40)
        return (rows[index] for index in range(40 - 24 * torch.distributed.get_rank()))


def end_together(folder: Path) -> list[float]:
    return list(trained_on(folder, OfProcess(), max_steps=5, num_train_epochs=9)["losses"])


def test_streams_of_unequal_lengths_end_together(tmp_path: Path) -> None:
    first, second = run_ranks(end_together, tmp_path)
    assert first == second
    assert len(first) == 5


class Own(Trainer):
    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=4, collate_fn=padded)


def dispatch_an_own_loader(folder: Path) -> None:
    Own(Tagger(), arguments(folder, accelerator_config={"dispatch_batches": True}), train_dataset=Rows(16)).train()


def test_a_loader_of_ones_own_is_not_given_out(tmp_path: Path) -> None:
    for answer in ask_ranks(dispatch_an_own_loader, tmp_path):
        assert answer.error is not None
        assert "dispatch_batches=True gives out the batches of a loader that kunren divides" in answer.error


def evaluate_unequal(folder: Path) -> None:
    Trainer(Tagger(), arguments(folder), eval_dataset=OfProcess()).evaluate()


def test_an_evaluation_of_unequal_streams_says_so(tmp_path: Path) -> None:
    for answer in ask_ranks(evaluate_unequal, tmp_path):
        assert answer.error is not None
        assert "a stream has to give the same rows in all processes" in answer.error


ORDERS: list[dict[str, Any]] = [
    {"batching": "grouped"},
    {"batching": "token_budget", "token_budget": 12},
    {"train_sampling_strategy": "batch_rebalance", "gradient_accumulation_steps": 2},
    {"accelerator_config": {"even_batches": False}},
    {"accelerator_config": {"use_seedable_sampler": False}},
]


class Forgetting(TrainerCallback):
    """What was read to find lengths is no training."""

    def __init__(self, noted: list[int]) -> None:
        self.noted = noted

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.noted.clear()


def rows_in_order(folder: Path, **more: Any) -> list[tuple[list[int], list[float]]]:
    found = []
    for number, options in enumerate(ORDERS):
        noted: list[int] = []
        run = trained_on(
            folder / str(number), Ragged(34, noted), callbacks=[Forgetting(noted)], **PASSES, **options, **more
        )
        found.append((noted, run["losses"]))
    return found


def test_every_order_uses_each_row_once(tmp_path: Path) -> None:
    of_two = run_ranks(rows_in_order, tmp_path / "two")
    of_one = rows_in_order(tmp_path / "one", per_device_train_batch_size=8)
    for options, (first, losses), (second, _), (alone, losses_alone) in zip(ORDERS, *of_two, of_one, strict=True):
        assert sorted(first + second) == sorted(alone) == sorted([*range(34)] * 2)
        if "token_budget" not in options:  # that is a budget for each process
            assert losses == pytest.approx(losses_alone, rel=1e-6)
    assert of_one[-1] == of_one[-2]  # neither setting changes the order
