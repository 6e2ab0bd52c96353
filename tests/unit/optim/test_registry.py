"""`args.optim` against what transformers' Trainer makes of it."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from kunren.arguments.choices import OptimizerNames
from kunren.optim import OPTIMIZERS, Adafactor, create_optimizer, get_optimizer_cls_and_kwargs
from kunren.optim.registry import _has_fused_adamw


def arguments(**changes: Any) -> Any:
    """The fields that the registry reads, with the defaults of TrainingArguments."""
    fields = {
        "optim": "adamw_torch_fused",
        "optim_args": None,
        "learning_rate": 5e-5,
        "adam_beta1": 0.9,
        "adam_beta2": 0.999,
        "adam_epsilon": 1e-8,
        "weight_decay": 0.0,
        "device": torch.device("cpu"),
    }
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"optim": "adamw_torch"},
        {"optim": "adamw_torch_fused", "learning_rate": 0.1, "adam_beta1": 0.8, "adam_beta2": 0.9},
        {"optim": "adamw_torch", "adam_epsilon": 1e-4},
        {"optim": "sgd"},
        {"optim": "sgd", "optim_args": "momentum=0.9, dampening=0.1,weight_decay=0.01"},
        {"optim": "sgd", "optim_args": "momentum=0.9,nesterov=True"},
        {"optim": "adafactor"},
    ],
    ids=str,
)
def test_class_and_arguments_equal_transformers(changes: dict[str, Any]) -> None:
    reference = transformers.TrainingArguments(output_dir="unused", use_cpu=True, report_to=[], **changes)
    their_class, their_arguments = transformers.Trainer.get_optimizer_cls_and_kwargs(reference)
    our_class, our_arguments = get_optimizer_cls_and_kwargs(arguments(**changes))
    assert our_arguments == their_arguments
    assert our_class is (Adafactor if changes["optim"] == "adafactor" else their_class)


def test_every_name_is_answered() -> None:
    for member in OptimizerNames:
        if member.value in OPTIMIZERS:
            assert get_optimizer_cls_and_kwargs(arguments(optim=member))[1]["lr"] == 5e-5
        else:
            with pytest.raises(ValueError, match=f"{member.value!r} is known, but comes with a later.*adamw_torch"):
                get_optimizer_cls_and_kwargs(arguments(optim=member))
    with pytest.raises(ValueError, match="'adamw_toch' is not known.*Did you mean 'adamw_torch'"):
        get_optimizer_cls_and_kwargs(arguments(optim="adamw_toch"))


def make_rmsprop(args: Any) -> Any:
    return torch.optim.RMSprop, {"lr": args.learning_rate}


def test_an_entry_added_to_the_registry_works_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_registry_entry", SimpleNamespace(make_rmsprop=make_rmsprop))
    monkeypatch.setitem(OPTIMIZERS, "mine", "test_registry_entry:make_rmsprop")
    assert get_optimizer_cls_and_kwargs(arguments(optim="mine")) == (torch.optim.RMSprop, {"lr": 5e-5})


@pytest.mark.parametrize(
    ("optim", "text", "message"),
    [
        ("sgd", "momentun=0.9", "'momentun', which sgd does not take.*Did you mean 'momentum'"),
        ("sgd", "momentum", "'momentum', which is not of the form name=value"),
        ("sgd", "momentum=high", "'momentum=high': could not convert"),
        ("sgd", "nesterov=maybe", "'maybe' is neither true nor false"),
        ("adafactor", "lr=1", "'lr', which adafactor does not take"),
    ],
)
def test_wrong_optim_args_are_refused(optim: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_optimizer_cls_and_kwargs(arguments(optim=optim, optim_args=text))


def test_options_of_the_other_optimizers() -> None:
    assert get_optimizer_cls_and_kwargs(arguments(optim="adamw_torch", optim_args="amsgrad=yes"))[1]["amsgrad"] is True
    assert get_optimizer_cls_and_kwargs(arguments(optim_args="amsgrad=0"))[1]["amsgrad"] is False
    assert get_optimizer_cls_and_kwargs(arguments(optim="adafactor", optim_args="beta1=0.9"))[1]["beta1"] == 0.9


def test_fused_falls_back_with_one_warning_where_torch_has_no_kernel() -> None:
    _has_fused_adamw.cache_clear()
    on_meta = arguments(device=torch.device("meta"))
    with pytest.warns(UserWarning, match="runs unfused on 'meta' devices"):
        assert "fused" not in get_optimizer_cls_and_kwargs(on_meta)[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "fused" not in get_optimizer_cls_and_kwargs(on_meta)[1]
        assert get_optimizer_cls_and_kwargs(arguments())[1]["fused"] is True


@pytest.mark.parametrize("optim", sorted(OPTIMIZERS))
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_created_optimizers_train(optim: str, weight_decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = create_optimizer(model, arguments(optim=optim, weight_decay=weight_decay, learning_rate=1e-2))
    assert [group["weight_decay"] for group in optimizer.param_groups] == ([0.1, 0.0] if weight_decay else [0.0])
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(torch.eye(4)) - torch.eye(4)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


def test_given_class_and_names_win() -> None:
    model = nn.Linear(4, 4)
    given = torch.optim.RMSprop, {"lr": 0.1}
    optimizer = create_optimizer(model, arguments(weight_decay=0.1), ["bias"], given)
    assert type(optimizer) is torch.optim.RMSprop
    assert optimizer.param_groups[0]["params"][0] is model.bias
