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

import kunren
from kunren.arguments.choices import FURTHER_OPTIMIZERS, OptimizerNames
from kunren.optim.optimizers import OPTIMIZERS
from kunren.optim.optimizers.adafactor import Adafactor
from kunren.optim.optimizers.native import _has_fused_adamw
from kunren.optim.registry import get_optimizer_cls_and_kwargs


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
        "optim_target_modules": None,
        "gradient_accumulation_steps": 1,
        "warmup_steps": 0,
        "fp16": False,
    }
    return SimpleNamespace(**{**fields, **changes})


def created(model: nn.Module, **changes: Any) -> Any:
    """The optimizer that a Trainer makes."""
    args = kunren.TrainingArguments("unused", use_cpu=True, report_to=[], **changes)
    return kunren.Trainer(model, args).create_optimizer()


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


ELSEWHERE = {"adamw_torch_xla": "torch_xla", "adamw_torch_npu_fused": "torch_npu"}
NATIVE = ["adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor", "adamw_anyprecision"]


def test_every_name_of_transformers_is_there() -> None:
    assert {member.value for member in OptimizerNames} <= OPTIMIZERS.keys()
    with pytest.raises(ValueError, match="'adamw_toch' is not known.*Did you mean 'adamw_torch'"):
        get_optimizer_cls_and_kwargs(arguments(optim="adamw_toch"))


@pytest.mark.parametrize("optim", ELSEWHERE)
def test_hardware_that_is_not_here_is_named(optim: str) -> None:
    with pytest.raises(ImportError, match=f"{optim}.*{ELSEWHERE[optim]}.*adamw_torch_fused"):
        get_optimizer_cls_and_kwargs(arguments(optim=optim))


@pytest.mark.parametrize(
    ("optim", "package"),
    [
        ("adamw_bnb_8bit", "bitsandbytes"),
        ("paged_lion_8bit", "bitsandbytes"),
        ("adamw_torch_8bit", "torchao"),
        ("schedule_free_adamw", "schedulefree"),
        ("lion", "pytorch-optimizer"),
        ("grokadamw", "pytorch-optimizer"),
    ],
)
def test_a_package_that_is_missing_is_named(optim: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.partition(".")[0] == package.replace("-", "_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    with pytest.raises(ImportError, match=f"optim='{optim}' needs the package {package}.*pip install {package}"):
        get_optimizer_cls_and_kwargs(arguments(optim=optim))


def make_rmsprop(args: Any, model: Any) -> Any:
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
        ("adamw_anyprecision", "momentum_dtype=int8", "'int8' is not a floating-point type"),
        ("galore_adamw", "proj_type=up", "'up' is none of std, reverse_std"),
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


@pytest.mark.parametrize("optim", NATIVE)
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_created_optimizers_train(optim: str, weight_decay: float) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = created(model, optim=optim, weight_decay=weight_decay, learning_rate=1e-2)
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
    args = kunren.TrainingArguments("unused", use_cpu=True, report_to=[], weight_decay=0.1)

    class OfBiases(kunren.Trainer):
        def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
            return ["bias"]

    optimizer = OfBiases(model, args, optimizer_cls_and_kwargs=(torch.optim.RMSprop, {"lr": 0.1})).create_optimizer()
    assert type(optimizer) is torch.optim.RMSprop
    assert optimizer.param_groups[0]["params"][0] is model.bias


def two_layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 8))


def trained(optim: str, steps: int = 5, **changes: Any) -> tuple[nn.Module, Any]:
    model = two_layers()
    optimizer = created(model, optim=optim, learning_rate=1e-2, **changes)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - x).square().mean().backward()
        optimizer.step()
    return model, optimizer


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().view(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_layer_wise_updates_are_those_of_the_inner_optimizer(weight_decay: float) -> None:
    for optim, inner in (("lomo", "sgd"), ("galore_adamw_layerwise", "galore_adamw"),
                         ("apollo_adamw_layerwise", "apollo_adamw")):  # fmt: skip
        options: dict[str, Any] = {"weight_decay": weight_decay}
        if optim != "lomo":
            options |= {"optim_target_modules": "all-linear", "optim_args": "rank=3,update_proj_gap=2,proj=svd"}
            if optim.startswith("galore"):
                options["optim_args"] = "rank=3,update_proj_gap=2"
        one, optimizer = trained(optim, **options)
        assert all(parameter.grad is None for parameter in one.parameters())
        assert torch.equal(weights(one), weights(trained(inner, **options)[0])), optim
        assert optimizer.updates_in_backward


def test_adalomo_is_that_of_pytorch_optimizer() -> None:
    package = pytest.importorskip("pytorch_optimizer")
    ours, _ = trained("adalomo")
    model = two_layers()
    theirs = package.AdaLOMO(model, lr=1e-2)
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        theirs.fused_backward((model(x) - x).square().mean(), 1e-2)
    torch.testing.assert_close(weights(ours), weights(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("changes", [{"gradient_accumulation_steps": 2}, {"fp16": True}])
def test_what_needs_all_gradients_at_once_is_refused_layer_by_layer(changes: dict[str, Any]) -> None:
    for optim in ("lomo", "adalomo"):
        with pytest.raises(ValueError, match=f"optim={optim!r} updates weights"):
            get_optimizer_cls_and_kwargs(arguments(optim=optim, **changes), two_layers())


def test_galore_at_full_rank_is_adamw_in_another_basis() -> None:
    """Projected to all of its singular vectors and back, the gradient is itself; SGD, which knows no basis, is SGD."""
    from kunren.optim.optimizers.low_rank import GaLore

    model, plain = two_layers(), two_layers()
    group = {"rank": 8, "update_proj_gap": 2, "scale": 1.0, "proj_type": "std", "weight_decay": 0.1}
    optimizer = GaLore(
        [{"params": [model[0].weight, model[2].weight], **group}, {"params": [model[0].bias, model[2].bias]}],
        torch.optim.SGD,
        lr=0.1,
    )
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    for _ in range(5):
        for one in (model, plain):
            one.zero_grad()
            (one(x) - x).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for name, parameter in plain.named_parameters():
                if name.endswith("weight"):
                    parameter.mul_(1 - 0.1 * 0.1)
                parameter.sub_(parameter.grad, alpha=0.1)
    torch.testing.assert_close(weights(model), weights(plain), rtol=1e-4, atol=1e-5)


def test_target_modules() -> None:
    model = two_layers()

    def targeted(targets: Any) -> list[str]:
        args = arguments(optim="galore_adamw", optim_target_modules=targets)
        groups = get_optimizer_cls_and_kwargs(args, model)[1]["params"]
        chosen = {id(parameter) for group in groups if "rank" in group for parameter in group["params"]}
        assert sum(len(group["params"]) for group in groups) == 4
        return [name for name, parameter in model.named_parameters() if id(parameter) in chosen]

    assert targeted("all-linear") == targeted("all_linear") == ["0.weight", "2.weight"]
    assert targeted(["2"]) == targeted(r"2") == targeted([r"[2-9]"]) == ["2.weight"]
    with pytest.raises(ValueError, match="fits no linear layer.*There are: 0, 2"):
        targeted(["attention"])
    with pytest.raises(ValueError, match="needs optim_target_modules"):
        targeted(None)


def test_any_precision_in_float32_is_adamw() -> None:
    ours, _ = trained("adamw_anyprecision", weight_decay=0.1)
    plain, _ = trained("adamw_torch", weight_decay=0.1)
    torch.testing.assert_close(weights(ours), weights(plain), rtol=1e-5, atol=1e-6)


def test_kahan_summation_keeps_small_updates_of_bfloat16_weights() -> None:
    from kunren.optim.optimizers.any_precision import AnyPrecisionAdamW

    moved = []
    for kahan in (False, True):
        weight = nn.Parameter(torch.full((4,), 100.0, dtype=torch.bfloat16))
        optimizer = AnyPrecisionAdamW([weight], lr=0.01, use_kahan_summation=kahan, momentum_dtype=torch.bfloat16)
        for _ in range(100):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
        moved.append(100.0 - weight.detach().float().mean().item())
    assert moved[0] == 0.0  # each step of 0.01 is rounded off
    assert moved[1] == pytest.approx(1.0, abs=0.5)  # half of what bfloat16 can tell apart at 100


def test_muon_takes_the_hidden_matrices() -> None:
    pytest.importorskip("pytorch_optimizer")
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 5))
    groups = get_optimizer_cls_and_kwargs(arguments(optim="muon", weight_decay=0.1), model)[1]["params"]
    chosen = {id(parameter) for group in groups if group["use_muon"] for parameter in group["params"]}
    assert [name for name, parameter in model.named_parameters() if id(parameter) in chosen] == ["1.weight", "2.weight"]


def test_the_further_names_are_those_of_the_package() -> None:
    package = pytest.importorskip("pytorch_optimizer")
    assert set(FURTHER_OPTIMIZERS) <= set(package.get_supported_optimizers())
    assert not set(FURTHER_OPTIMIZERS) & {member.value for member in OptimizerNames}
