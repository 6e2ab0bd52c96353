"""Several training sets at once: shares, order, and the loss of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from parity import models, rows
from parity.models import flat

import kunren
from invariants.runs import Recording, arguments, losses, seed_everything, without_times

FIRST = {"news": 0, "chat": 100, "code": 200}  # the numbers of each source's rows


def source(name: str, count: int) -> rows.Rows:
    points = rows.points(count).rows
    return rows.Rows([{**row, "row": torch.tensor(FIRST[name] + i)} for i, row in enumerate(points)])


def sets(news: int = 22, chat: int = 9) -> dict[str, rows.Rows]:
    return {"news": source("news", news), "chat": source("chat", chat)}


def name_of(row: int) -> str:
    return {0: "news", 1: "chat", 2: "code"}[row // 100]


def run(
    folder: Path, data: Any, resume: Any = None, seed: int = 1, model: Any = None, **changes: Any
) -> tuple[Any, kunren.Trainer]:
    seed_everything(seed)
    model = Recording(0.3) if model is None else model
    trainer = kunren.Trainer(model=model, args=arguments(folder, **changes), train_dataset=data)
    trainer.train(resume_from_checkpoint=resume)
    return model, trainer


def sources_seen(seen: list[list[int]]) -> list[str]:
    """The source of each batch, which is one."""
    names = [{name_of(row) for row in batch} for batch in seen]
    assert all(len(one) == 1 for one in names)
    return [one.pop() for one in names]


def test_by_size_every_row_comes_once_an_epoch(tmp_path: Path) -> None:
    model, trainer = run(tmp_path, sets(), num_train_epochs=3)
    assert trainer.state.max_steps == 3 * 9
    every = sorted([*range(22), *range(100, 109)])
    for epoch in range(3):
        seen = model.seen[9 * epoch : 9 * epoch + 9]
        assert Counter(sources_seen(seen)) == {"news": 6, "chat": 3}
        assert sorted(row for batch in seen for row in batch) == every
    assert model.seen[:9] != model.seen[9:18]
    assert trainer.num_examples(trainer.get_train_dataloader()) == 31
    assert trainer.state.epoch == 3.0


def test_weights_are_kept_exactly(tmp_path: Path) -> None:
    """9 batches an epoch, a third of them news."""
    model, trainer = run(tmp_path, sets(), mixture_weights={"news": 1, "chat": 2}, num_train_epochs=4)
    for epoch in range(4):
        assert Counter(sources_seen(model.seen[9 * epoch : 9 * epoch + 9])) == {"news": 3, "chat": 6}
    news = [row for batch in model.seen for row in batch if row < 100]
    assert sorted(news[:22]) == list(range(22)), "news goes on in the next epoch where it stopped"
    chat = [row for batch in model.seen for row in batch if row >= 100]
    passes = [chat[start : start + 9] for start in range(0, 72, 9)]
    assert all(sorted(one) == list(range(100, 109)) for one in passes), "chat comes round twice an epoch"
    assert len({tuple(one) for one in passes}) == 8, "each time in another order"
    assert trainer.state.max_steps == 36


def test_weights_of_max_steps_that_are_less_than_an_epoch(tmp_path: Path) -> None:
    data = {**sets(100, 100), "code": source("code", 100)}
    model, _ = run(tmp_path, data, mixture_weights={"news": 3, "chat": 2, "code": 1}, max_steps=36)
    counts = Counter(sources_seen(model.seen))
    assert all(abs(counts[name] - share) <= 2 for name, share in {"news": 18, "chat": 12, "code": 6}.items())


def test_windows_mix_sources(tmp_path: Path) -> None:
    model, trainer = run(tmp_path, sets(40, 40), gradient_accumulation_steps=4, mixture_weights={"news": 1, "chat": 1})
    names = sources_seen(model.seen)
    windows = [set(names[start : start + 4]) for start in range(0, len(names), 4)]
    assert all(len(window) == 2 for window in windows)
    assert all("loss_news" in log and "loss_chat" in log for log in trainer.state.log_history[:-1])


CHANGES: dict[str, dict[str, Any]] = {
    "by size": {},
    "weights": {"mixture_weights": {"news": 1, "chat": 2}},
    "weights, windows, logs of three": {
        "mixture_weights": {"news": 1, "chat": 1.5},
        "gradient_accumulation_steps": 2,
        "logging_steps": 3,
    },
    "weights, workers": {"mixture_weights": {"news": 1, "chat": 2}, "dataloader_num_workers": 2},
}


@pytest.mark.parametrize("at", [5, 11])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_resumed_run_is_the_undisturbed_one(kind: str, at: int, tmp_path: Path) -> None:
    changes = {"save_strategy": "steps", "save_steps": at, "num_train_epochs": 3, **CHANGES[kind]}
    straight, trainer = run(tmp_path, sets(), **changes)
    resumed, again = run(tmp_path, sets(), str(tmp_path / f"checkpoint-{at}"), seed=2, **changes)
    assert resumed.seen == straight.seen[-len(resumed.seen) :]
    assert torch.equal(flat(resumed), flat(straight))
    history = without_times(again.state.log_history)[:-1]
    assert history == without_times(trainer.state.log_history)[:-1]
    assert {key for log in history for key in log} >= {"loss_news", "loss_chat"}


def test_workers_change_nothing(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"mixture_weights": {"news": 1, "chat": 2}, "logging_steps": 2}
    want, trainer = run(tmp_path, sets(), **changes)
    got, again = run(tmp_path, sets(), seed=3, dataloader_num_workers=2, **changes)
    assert got.seen == want.seen
    assert without_times(again.state.log_history)[:-1] == without_times(trainer.state.log_history)[:-1]


def test_other_weights_in_mid_epoch_are_refused_and_at_its_end_taken(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"save_strategy": "steps", "save_steps": 5, "num_train_epochs": 1}
    run(tmp_path, sets(), mixture_weights={"news": 1, "chat": 2}, **changes)
    with pytest.raises(ValueError, match="mixture_weights was"):
        run(tmp_path, sets(), str(tmp_path / "checkpoint-5"), mixture_weights={"news": 1, "chat": 1}, **changes)
    changes |= {"save_strategy": "epoch", "num_train_epochs": 2}
    first = tmp_path / "first"
    run(first, sets(), mixture_weights={"news": 1, "chat": 2}, **{**changes, "num_train_epochs": 1})
    model, _ = run(first, sets(), True, mixture_weights={"news": 2, "chat": 1}, **changes)
    assert Counter(sources_seen(model.seen)) == {"news": 6, "chat": 3}


MODELS = {
    "divides by the count itself": models.llama,
    "a mean": lambda: models.bert("BertForTokenClassification"),
    "rows": lambda: models.bert(),
}


def data_for(kind: str) -> dict[str, Any]:
    if kind == "rows":
        return {"news": rows.sentences(12), "chat": rows.sentences(20)}
    classes = 3 if kind == "a mean" else models.VOCABULARY
    return {
        "news": rows.tokens(12, keep=rows.RAGGED, classes=classes),
        "chat": rows.tokens(20, keep=(3, 6), classes=classes),
    }


class ByHand(kunren.Trainer):
    """Computes the sum of label losses of each micro-batch, and their number, from the logits beside the training."""

    def __init__(self, **build: Any) -> None:
        super().__init__(**build)
        self.sums: list[tuple[float, int]] = []

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        labels = inputs["labels"]
        model.eval()
        with torch.no_grad():
            logits = model(**{key: value for key, value in inputs.items() if key != "labels"}).logits
        model.train()
        if self.shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        logits, labels = logits.flatten(0, -2), labels.flatten()
        total = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        self.sums.append((float(total), int((labels != -100).sum())))
        return super().training_step(model, inputs, num_items_in_batch)


def without_noise(model: Any) -> Any:
    for module in model.modules():
        for name in ("p", "dropout_prob", "attention_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize(("accumulate", "logging"), [(1, 2), (3, 1), (3, 2)])
@pytest.mark.parametrize("kind", MODELS)
def test_the_loss_of_a_source_is_the_mean_over_its_labels(
    kind: str, accumulate: int, logging: int, tmp_path: Path
) -> None:
    """And the mean of all sources, weighted by their labels, is the loss."""
    trainer = ByHand(
        model=without_noise(MODELS[kind]()),
        args=arguments(tmp_path, gradient_accumulation_steps=accumulate, logging_steps=logging),
        train_dataset=data_for(kind),
    )
    sampler = trainer.get_train_dataloader().batch_sampler
    sources = [source for epoch in range(2) for source in sampler.sources_of(epoch)]
    trainer.train()
    assert len(trainer.sums) == len(sources) == 16

    starts = [8 * epoch + batch for epoch in range(2) for batch in range(0, 8, accumulate)]
    logs = [log for log in trainer.state.log_history if "loss" in log]
    first = 0
    for log in logs:
        end = starts[log["step"]] if log["step"] < len(starts) else 16
        totals = {name: [0.0, 0] for name in ("news", "chat")}
        for place, (loss, count) in list(zip(sources, trainer.sums, strict=True))[first:end]:
            held = totals[("news", "chat")[place]]
            held[0], held[1] = held[0] + loss, held[1] + count
        for name, (loss, count) in totals.items():
            assert log.get(f"loss_{name}") == (pytest.approx(loss / count, rel=1e-4) if count else None)
        if logging == 1:
            weighted = sum(log.get(f"loss_{name}", 0.0) * count for name, (_, count) in totals.items())
            assert log["loss"] == pytest.approx(weighted / sum(count for _, count in totals.values()), rel=1e-5)
        first = end
    assert any({"loss_news", "loss_chat"} <= log.keys() for log in logs)


def test_batches_exchanged_by_an_override_are_of_no_source(tmp_path: Path) -> None:
    class Copying(kunren.Trainer):
        def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any = None) -> Any:
            batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
            return [dict(batch) for batch in batches], count

    trainer = Copying(model=models.Points(), args=arguments(tmp_path), train_dataset=sets())
    trainer.train()
    assert len(losses(trainer)) == 18
    assert not [key for log in trainer.state.log_history for key in log if key.startswith("loss_")]


def test_one_training_set_logs_one_loss(tmp_path: Path) -> None:
    _, trainer = run(tmp_path, source("news", 8))
    assert set(trainer.state.log_history[0]) == {"loss", "grad_norm", "learning_rate", "epoch", "step"}
    with pytest.raises(ValueError, match="train_dataset is one set"):
        run(tmp_path, source("news", 8), mixture_weights={"news": 1})


def test_sources_with_other_columns(tmp_path: Path) -> None:
    """Rows of dicts and of `datasets`, with columns that the model does not take, each its own."""
    datasets = pytest.importorskip("datasets")
    listed = [{**row, "speaker": "A"} for row in source("chat", 9).rows]
    table = datasets.Dataset.from_list(
        [{k: v.tolist() for k, v in row.items()} | {"url": "x"} for row in source("news", 9).rows]
    )
    model, trainer = run(tmp_path, {"news": table, "chat": listed})
    assert Counter(sources_seen(model.seen)) == {"news": 6, "chat": 6}
    columns, _ = run(tmp_path, {"news": table, "chat": table})
    assert len(columns.seen) == 12


@pytest.mark.parametrize(
    "changes", [{"batching": "packed"}, {"batching": "grouped"}, {"batching": "token_budget", "token_budget": 24}]
)
def test_other_ways_of_batching(changes: dict[str, Any], tmp_path: Path) -> None:
    data = {
        name: [{"input_ids": list(range(3, 3 + n)), "labels": list(range(3, 3 + n))} for n in lengths]
        for name, lengths in {"news": (2, 9, 4, 4, 7, 3), "chat": (5, 2, 8, 8)}.items()
    }
    trainer = kunren.Trainer(
        model=models.llama(0.0),
        args=arguments(tmp_path, per_device_train_batch_size=2, num_train_epochs=1, **changes),
        train_dataset=data,
        data_collator=pad,
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == len(trainer.get_train_dataloader())
    assert all((("loss_news" in log) != ("loss_chat" in log)) for log in logs)
    assert all(log["loss"] == pytest.approx(log.get("loss_news", log.get("loss_chat")), rel=1e-5) for log in logs)


def pad(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    length = max(len(row["input_ids"]) for row in batch)

    def filled(values: list[int], value: int) -> list[int]:
        return [*values, *[value] * (length - len(values))]

    return {
        "input_ids": torch.tensor([filled(row["input_ids"], 0) for row in batch]),
        "attention_mask": torch.tensor([filled([1] * len(row["input_ids"]), 0) for row in batch]),
        "labels": torch.tensor([filled(row["labels"], -100) for row in batch]),
    }


def test_an_override_of_the_sampler_orders_each_source(tmp_path: Path) -> None:
    class Backwards(kunren.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return list(range(len(train_dataset)))[::-1]

    model = Recording()
    Backwards(model=model, args=arguments(tmp_path, num_train_epochs=1), train_dataset=sets(8, 4)).train()
    assert sorted(model.seen) == [[3, 2, 1, 0], [7, 6, 5, 4], [103, 102, 101, 100]]


def test_numbers_of_speed(tmp_path: Path) -> None:
    _, trainer = run(tmp_path, sets(), mixture_weights={"news": 1, "chat": 2})
    (summary,) = [log for log in trainer.state.log_history if "train_runtime" in log]
    # 3 batches of news (22 rows in 6) and 6 of chat (9 rows in 3) make an epoch: 29 rows in the mean.
    assert summary["train_samples_per_second"] / summary["train_steps_per_second"] == pytest.approx(29 / 9, rel=1e-2)
    assert trainer.state.global_step == 18


class PointsForSemanticSegmentation(models.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = models.nn.Conv2d(3, 4, 1)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.head(pixel_values)


def test_pixels_that_do_not_count_for_the_loss_do_not_count_for_a_source(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def images(ignored: float) -> rows.Rows:
        pixels = torch.rand(8, 3, 6, 6, generator=generator)
        labels = torch.randint(0, 4, (8, 6, 6), generator=generator)
        labels[torch.rand(8, 6, 6, generator=generator) < ignored] = 255
        return rows.Rows([{"pixel_values": x, "labels": y} for x, y in zip(pixels, labels, strict=True)])

    data = {"news": images(0.1), "chat": images(0.9)}
    changes = {"learning_rate": 0.0, "num_train_epochs": 1, "gradient_accumulation_steps": 2, "logging_steps": 2}
    _, trainer = run(tmp_path, data, model=PointsForSemanticSegmentation(), **changes)
    log = trainer.state.log_history[0]
    for name, source in data.items():
        assert log[f"loss_{name}"] == pytest.approx(trainer.evaluate(source)["eval_loss"], rel=1e-5)


def test_weights_of_numpy_are_numbers(tmp_path: Path) -> None:
    weights = {"news": numpy.float32(0.5), "chat": numpy.int64(2)}
    args = arguments(tmp_path, mixture_weights=weights)
    assert args.to_dict()["mixture_weights"] == {"news": 0.5, "chat": 2.0}
    args.to_json_string()
    assert list(map(type, args.mixture_weights.values())) == [float, float]
