"""The calls without wrapping do what the whole ones do, and step aside where they must."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows
from parity.models import flat
from torch.optim.lr_scheduler import LambdaLR

import kunren
from kunren.engine.backends.lean import lean_step, run_backward

OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True}),
    "AdamW one by one": (torch.optim.AdamW, {"foreach": False}),
    "AdamW amsgrad": (torch.optim.AdamW, {"amsgrad": True}),
    "Adam": (torch.optim.Adam, {}),
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "RMSprop": (torch.optim.RMSprop, {}),
    "Adafactor": (torch.optim.Adafactor, {}),
    "RAdam": (torch.optim.RAdam, {}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_lean_step_equals_the_whole_one(kind: str) -> None:
    cls, options = OPTIMIZERS[kind]
    ours, theirs = models.Points(), models.Points()
    optimizers = [cls(model.parameters(), lr=0.01, **options) for model in (ours, theirs)]
    step = lean_step(optimizers[0])
    assert step is not None
    batch = kunren.default_data_collator(list(rows.points(8)))
    for _ in range(4):
        for model in (ours, theirs):
            model.zero_grad()
            model(**batch)["loss"].backward()
        step()
        optimizers[1].step()
        assert torch.equal(flat(ours), flat(theirs))
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        left_state, right_state = optimizers[0].state[left], optimizers[1].state[right]
        assert left_state.keys() == right_state.keys()
        for key, value in left_state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(right_state[key])), key
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in ours.parameters())


def prepared() -> tuple[models.Points, torch.optim.Optimizer, Any]:
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = lean_step(optimizer)
    assert step is not None
    model(**kunren.default_data_collator(list(rows.points(8))))["loss"].backward()
    return model, optimizer, step


def test_hooks_registered_later_are_called() -> None:
    _, optimizer, step = prepared()
    events: list[str] = []
    pre = optimizer.register_step_pre_hook(lambda *_: events.append("before"))
    post = optimizer.register_step_post_hook(lambda *_: events.append("after"))
    step()
    assert events == ["before", "after"]
    pre.remove()
    step()
    assert events == ["before", "after", "after"]
    post.remove()
    step()
    assert len(events) == 3


def test_hooks_on_all_optimizers_are_called() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    _, _, step = prepared()
    events: list[str] = []
    handles = [
        register_optimizer_step_pre_hook(lambda *_: events.append("before")),
        register_optimizer_step_post_hook(lambda *_: events.append("after")),
    ]
    try:
        step()
    finally:
        for handle in handles:
            handle.remove()
    assert events == ["before", "after"]


def test_profiler_sees_the_step() -> None:
    _, _, step = prepared()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step()
    assert any("Optimizer.step#SGD.step" in event.key for event in profile.key_averages())


def test_schedules_count_the_lean_step() -> None:
    """torch warns of a schedule that moves before its optimizer; warnings are errors here."""
    model = models.Points()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 0.5**step)
    step = lean_step(optimizer)
    assert step is not None, "torch's schedulers replace `step` only to count"
    model(**kunren.default_data_collator(list(rows.points(8))))["loss"].backward()
    step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.05]


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def test_optimizers_that_are_not_torchs_own_keep_their_step() -> None:
    parameters = list(models.Points().parameters())
    assert lean_step(Own(parameters, lr=0.1)) is None
    assert lean_step(kunren.Adafactor(parameters, lr=0.1, scale_parameter=False, relative_step=False)) is None
    replaced = torch.optim.SGD(parameters, lr=0.1)
    replaced.step = lambda closure=None: None  # type: ignore[method-assign]
    assert lean_step(replaced) is None
    assert lean_step(torch.optim.SGD(parameters, lr=0.1, differentiable=True)) is None


def test_step_that_a_callback_replaces_is_the_one_that_is_called(tmp_path: Path) -> None:
    """Profilers and adaptive optimizers wrap `optimizer.step` once training has begun."""
    calls: list[int] = []

    class Wrap(kunren.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **objects: Any) -> None:
            whole = optimizer.step

            @functools.wraps(whole)
            def counted(*arguments: Any, **keywords: Any) -> Any:
                calls.append(1)
                return whole(*arguments, **keywords)

            optimizer.step = counted

    trainer = kunren.Trainer(
        model=models.Points(),
        args=arguments(tmp_path, max_steps=3, lr_scheduler_type="constant"),
        train_dataset=rows.points(12),
        callbacks=[Wrap()],
    )
    trainer.train()
    assert len(calls) == 3


def test_backward_equals_torchs_for_shared_and_frozen_weights() -> None:
    ours = models.Points()
    ours.hidden.bias.requires_grad_(False)
    theirs = copy.deepcopy(ours)
    batch = kunren.default_data_collator(list(rows.points(8)))
    run_backward(ours(**batch)["loss"], torch.ones(()))
    theirs(**batch)["loss"].backward()
    for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None)
        assert left.grad is None or torch.equal(left.grad, right.grad)


def test_backward_of_a_loss_without_a_graph_says_what_is_wrong() -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        run_backward(torch.ones(()), torch.ones(()))


def test_hooks_of_tensors_run() -> None:
    x = torch.ones(2, requires_grad=True)
    seen: list[Any] = []
    x.register_hook(seen.append)
    run_backward((x * 2).sum(), torch.ones(()))
    assert seen[0].tolist() == [2, 2]
