"""Memory runs out: the update is that of the whole batch, and no step is lost or done twice."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import models, rows
from parity.models import flat

import kunren
from invariants.runs import arguments, losses
from kunren.loop.guards.smaller_pieces import is_out_of_memory, split_rows


def small(model: torch.nn.Module, largest: int, error: type[BaseException] = torch.OutOfMemoryError) -> torch.nn.Module:
    """`model`, on a device that has room for so many rows in training; the error comes in the backward pass."""
    forward = model.forward

    @functools.wraps(forward)
    def limited(*given: Any, **named: Any) -> Any:
        out = forward(*given, **named)
        size = next(value.shape[0] for value in named.values() if isinstance(value, torch.Tensor) and value.dim())
        if size > largest and model.training:

            def fail(gradient: torch.Tensor) -> torch.Tensor:
                raise error("CUDA out of memory. Tried to allocate 2.00 GiB")

            out["loss"].register_hook(fail)
        return out

    model.forward = limited  # type: ignore[method-assign]
    return model


def train(folder: Path, model: torch.nn.Module, data: Any, **given: Any) -> kunren.Trainer:
    settings = {"per_device_train_batch_size": 8, "max_steps": 5, "lr_scheduler_type": "constant", **given}
    build = {key: settings.pop(key) for key in ("compute_loss_func", "callbacks") if key in settings}
    trainer = kunren.Trainer(model=model, args=arguments(folder, **settings), train_dataset=data, **build)
    trainer.train()
    return trainer


def points() -> rows.Rows:
    return rows.Rows(rows.points(40))


@pytest.mark.parametrize("largest", [1, 3, 4, 7])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_run_is_that_of_whole_batches(tmp_path: Path, largest: int, accumulation: int) -> None:
    whole = train(tmp_path / "a", models.Points().double(), doubles(), gradient_accumulation_steps=accumulation)
    split = train(
        tmp_path / "b", small(models.Points().double(), largest), doubles(), gradient_accumulation_steps=accumulation
    )
    assert split.state.global_step == whole.state.global_step == 5
    torch.testing.assert_close(flat(split.model), flat(whole.model), rtol=0, atol=1e-6)
    assert losses(split) == pytest.approx(losses(whole), abs=1e-6)
    assert [entry["epoch"] for entry in split.state.log_history] == [
        entry["epoch"] for entry in whole.state.log_history
    ]


def doubles() -> rows.Rows:
    return rows.Rows([{key: value.double() if value.is_floating_point() else value for key, value in row.items()}
                      for row in rows.points(40)])  # fmt: skip


def test_ragged_labels_weigh_by_their_number(tmp_path: Path) -> None:
    data = rows.tokens(24, keep=(8, 3, 1, 5), length=8)
    whole = train(tmp_path / "a", models.gpt2().double(), data)
    split = train(tmp_path / "b", small(models.gpt2().double(), 2), data)
    torch.testing.assert_close(flat(split.model), flat(whole.model), rtol=0, atol=1e-5)
    assert losses(split) == pytest.approx(losses(whole), abs=1e-5)


def test_the_error_of_the_host_counts_too_and_the_warning_comes_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(message: str) -> RuntimeError:
        return RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    trainer = train(tmp_path, small(models.Points(), 4, no_room), points())  # type: ignore[arg-type]
    assert trainer.state.global_step == 5
    assert caplog.text.count("Out of memory at step 1 with 8 examples") == 1
    assert caplog.text.count("Out of memory") == 1


def test_one_example_that_does_not_fit_ends_the_run_with_advice(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError) as caught:
        train(tmp_path, small(models.Points(), 0), points())
    assert any("Shorten the examples" in note for note in getattr(caught.value, "__notes__", ["Shorten the examples"]))


def test_other_errors_are_not_taken_for_it(tmp_path: Path) -> None:
    def other(message: str) -> RuntimeError:
        return RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(tmp_path, small(models.Points(), 4, other), points())  # type: ignore[arg-type]


def test_a_checkpoint_and_its_resume_are_those_of_whole_batches(tmp_path: Path) -> None:
    whole = train(tmp_path / "a", models.Points().double(), doubles(), save_strategy="steps", save_steps=3)
    resumed = kunren.Trainer(
        model=small(models.Points().double(), 4),
        args=arguments(tmp_path / "b", per_device_train_batch_size=8, max_steps=5, lr_scheduler_type="constant"),
        train_dataset=doubles(),
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-3"))
    torch.testing.assert_close(flat(resumed.model), flat(whole.model), rtol=0, atol=1e-6)


def test_what_moves_in_the_backward_pass_cannot_begin_again(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        train(tmp_path, small(models.Points(), 4), points(), optim="lomo")


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 9), pieces=st.integers(1, 12))
def test_pieces_are_the_batch(count: int, pieces: int) -> None:
    batch = {
        "x": torch.arange(count * 2).view(count, 2),
        "boxes": [{"box": torch.tensor([float(row)])} for row in range(count)],
        "pair": (torch.arange(count), torch.tensor(3.0)),
        "names": [f"row {row}" for row in range(count)],
        "scale": 2.0,
    }
    parts = list(split_rows(batch, pieces))
    assert len(parts) == min(pieces, count)
    assert torch.equal(torch.cat([part["x"] for part in parts]), batch["x"])
    assert torch.equal(torch.cat([part["pair"][0] for part in parts]), batch["pair"][0])
    assert [name for part in parts for name in part["names"]] == batch["names"]
    assert [box for part in parts for box in part["boxes"]] == batch["boxes"]
    assert all(part["scale"] == 2.0 and part["pair"][1] == 3.0 for part in parts)
    sizes = [len(part["x"]) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_which_errors_are_out_of_memory() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("any"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("HIP out of memory"))
    assert not is_out_of_memory(RuntimeError("CUDA error: device-side assert triggered"))
    assert not is_out_of_memory(ValueError("out of memory"))


def limited_predictions(model: torch.nn.Module, largest: int) -> torch.nn.Module:
    forward = model.forward

    @functools.wraps(forward)
    def limited(*given: Any, **named: Any) -> Any:
        if next(iter(named.values())).shape[0] > largest and not model.training:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(*given, **named)

    model.forward = limited  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize("largest", [1, 3, 8])
def test_evaluation_splits_its_own_batches(tmp_path: Path, largest: int, caplog: pytest.LogCaptureFixture) -> None:
    def accuracy(prediction: Any) -> dict[str, float]:
        return {"rows": float(len(prediction.predictions)), "first": float(prediction.predictions[0][0])}

    found = []
    for model in (models.Points(), limited_predictions(models.Points(), largest)):
        args = arguments(tmp_path, per_device_eval_batch_size=8, per_device_train_batch_size=5)
        trainer = kunren.Trainer(model=model, args=args, eval_dataset=points(), compute_metrics=accuracy)
        metrics = trainer.evaluate()
        found.append({key: metrics[key] for key in ("eval_loss", "eval_rows", "eval_first")})
        assert trainer.args.per_device_train_batch_size == 5
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert caplog.text.count("Out of memory in evaluation with 8 examples") == (largest < 8)


def test_evaluation_of_one_example_that_does_not_fit_says_so(tmp_path: Path) -> None:
    trainer = kunren.Trainer(
        model=limited_predictions(models.Points(), 0), args=arguments(tmp_path), eval_dataset=points()
    )
    with pytest.raises(torch.OutOfMemoryError):
        trainer.evaluate()


class Uncounted(kunren.Trainer):
    """An override of before labels were counted."""

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any = None) -> Any:
        return list(itertools.islice(epoch_iterator, num_batches)), None


@pytest.mark.parametrize("accumulation", [1, 2])
def test_pieces_of_unequal_size_where_nobody_counts(tmp_path: Path, accumulation: int) -> None:
    runs = []
    for name, model in (("a", models.Points().double()), ("b", small(models.Points().double(), 2))):
        settings = {"per_device_train_batch_size": 5, "max_steps": 4, "gradient_accumulation_steps": accumulation}
        trainer = Uncounted(model=model, args=arguments(tmp_path / name, **settings), train_dataset=doubles())
        trainer.train()
        runs.append((flat(model), losses(trainer)))
    assert torch.allclose(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert runs[0][1] == pytest.approx(runs[1][1])


class DividesItself(kunren.Trainer):
    """An override that divides as transformers did."""

    def training_step(self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = self.compute_loss(model, self._prepare_inputs(inputs)) / self.current_gradient_accumulation_steps
        self.engine.backward(loss)
        return loss.detach()


def test_pieces_of_unequal_size_where_an_override_divides(tmp_path: Path) -> None:
    runs = []
    for name, model in (("a", models.Points().double()), ("b", small(models.Points().double(), 2))):
        settings = {"per_device_train_batch_size": 5, "max_steps": 4}
        trainer = DividesItself(model=model, args=arguments(tmp_path / name, **settings), train_dataset=doubles())
        trainer.train()
        runs.append((flat(model), losses(trainer)))
    assert torch.allclose(runs[0][0], runs[1][0], rtol=0, atol=1e-12)
    assert runs[0][1] == pytest.approx(runs[1][1])


class Pair(NamedTuple):
    x: torch.Tensor
    labels: torch.Tensor


def test_pieces_of_a_named_tuple() -> None:
    parts = list(split_rows(Pair(torch.arange(6).view(3, 2), torch.arange(3)), 2))
    assert [type(part) for part in parts] == [Pair, Pair]
    assert [part.labels.tolist() for part in parts] == [[0], [1, 2]]


def test_memory_that_runs_out_in_a_metric_counts_no_row_twice(tmp_path: Path) -> None:
    def metric(prediction: Any, compute_result: bool) -> dict[str, float]:
        raise torch.OutOfMemoryError("a metric of its own")

    settings = {"batch_eval_metrics": True, "per_device_eval_batch_size": 4}
    trainer = kunren.Trainer(
        model=models.Points(), args=arguments(tmp_path, **settings), eval_dataset=points(), compute_metrics=metric
    )
    with pytest.raises(torch.OutOfMemoryError, match="a metric of its own"):
        trainer.evaluate()
    prepared: list[int] = []

    def prepare(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if len(logits) > 2:
            raise torch.OutOfMemoryError
        prepared.append(len(logits))
        return logits

    def count(prediction: Any) -> dict[str, float]:
        return {"rows": float(len(prediction.predictions))}

    build = {"eval_dataset": points(), "compute_metrics": count, "preprocess_logits_for_metrics": prepare}
    metrics = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), **build).evaluate()
    plain = kunren.Trainer(model=models.Points(), args=arguments(tmp_path), eval_dataset=points()).evaluate()
    assert metrics["eval_rows"] == sum(prepared) == len(points())
    assert metrics["eval_loss"] == pytest.approx(plain["eval_loss"])
