"""The update of two processes that divide a model is that of one process with the whole of it; for both FSDPs."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from distributed.ranks import run_ranks
from distributed.tasks_of_fsdp import VERSIONS, sharded, whole
from distributed.tasks_of_ranks import TOKENS, Noting, Rows, Tagger, arguments, assert_same, trained
from kunren import Trainer, TrainerCallback

pytestmark = pytest.mark.distributed

CASES: list[dict[str, Any]] = [
    {"ragged": False},
    {},
    {"optim": "adamw_torch"},
    {"optim": "adamw_torch_fused", "max_grad_norm": 0.1},
    {"optim": "adamw_anyprecision", "weight_decay": 0.1},
    {"optim": "schedule_free_adamw", "gradient_accumulation_steps": 2},
    {"gradient_accumulation_steps": 3},
    {"takes_count": True},
    {"takes_count": True, "gradient_accumulation_steps": 2, "optim": "adamw_torch"},
    {"rows": 33, "num_train_epochs": 2, "max_steps": -1},  # one row is left: a process has none
    {"rows": 35, "num_train_epochs": 2, "max_steps": -1, "gradient_accumulation_steps": 2},
    {"rows": 33, "stream": True, "gradient_accumulation_steps": 2},
    {"rows": 33, "logging_steps": 3, "reports": True, "ragged": False},
    {"rows": 50, "empty_rank": True},
    {"rows": 50, "empty_rank": True, "takes_count": True, "gradient_accumulation_steps": 2},
    {"rows": 50, "empty_rank": True, "function": True},
    {"include_num_input_tokens_seen": "all"},
    {"average_tokens_across_devices": False, "ragged": False},
    {"nonfinite": "skip"},
    {"nonfinite": "rollback", "optim": "adamw_torch"},
    {"fsdp_config": {"reshard_after_forward": False}},
    {"fsdp_config": {"transformer_layer_cls_to_wrap": ["Embedding", "Linear"], "forward_prefetch": True}},
    {"fsdp_config": {"min_num_params": 90}},
    {"fsdp_config": {"min_num_params": 90, "activation_checkpointing": True}, "dropout": 0.0},
    {"fsdp_config": {"cpu_offload": True, "sync_module_states": False}},
]
OF_VERSION_1: list[dict[str, Any]] = [
    {"fsdp_config": {"reshard_after_forward": "no_shard"}, "optim": "adamw_torch"},
    {"fsdp_config": {"reshard_after_forward": "hybrid_shard"}, "gradient_accumulation_steps": 2},
    {"fsdp_config": {"reshard_after_forward": "hybrid_shard_zero2", "backward_prefetch": "no_prefetch"}},
    {"fsdp_config": {"backward_prefetch": "BACKWARD_POST", "limit_all_gathers": False, "min_num_params": 90}},
]


def cases_of(version: int) -> list[dict[str, Any]]:
    return [*CASES, *OF_VERSION_1] if version == 1 else CASES


def train_all(folder: Path, version: int) -> list[Any]:
    return [sharded(folder / str(number), version, **options) for number, options in enumerate(cases_of(version))]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Any]]:
    """What each of two processes has found, for each case of a version."""

    @functools.cache
    def run(version: int) -> list[Any]:
        return list(zip(*run_ranks(train_all, tmp_path_factory.mktemp("two"), version), strict=True))

    return run


@pytest.mark.parametrize(
    ("version", "number"),
    [(version, number) for version in VERSIONS for number in range(len(cases_of(version)))],
    ids=str,
)
def test_two_processes_move_the_weights_as_one_does(
    tmp_path: Path, of_two: Callable[[int], list[Any]], version: int, number: int
) -> None:
    case = cases_of(version)[number]
    options = {name: value for name, value in case.items() if name != "fsdp_config"}
    one = trained(tmp_path, **{**options, "per_device_train_batch_size": 8})
    for found in of_two(version)[number]:
        assert_same(found, one)


class Collectives(TorchDispatchMode):
    """Counts those that are really called."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "c10d":
            self.counts[function._opname.strip("_")] += 1
        return function(*args, **(kwargs or {}))


class Counting(TrainerCallback):
    """Counts the collectives of each step."""

    def __init__(self) -> None:
        self.counts: list[dict[str, int]] = []
        self.mode: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.mode = Collectives()
        self.mode.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.mode.__exit__(None, None, None)
        self.counts.append(dict(self.mode.counts))


def exchanges(folder: Path) -> list[Any]:
    found = []
    for version in VERSIONS:
        counting = Counting()
        config = {
            "transformer_layer_cls_to_wrap": "Embedding,Linear"
        }  # a group of gradients for each, none beside them
        sharded(folder, version, callbacks=[counting], gradient_accumulation_steps=3, fsdp_config=config)
        found.append(counting.counts)
    return found


def test_gradients_are_exchanged_once_in_an_update(tmp_path: Path) -> None:
    for of_rank in run_ranks(exchanges, tmp_path):
        for version, steps in zip(VERSIONS, of_rank, strict=True):
            assert len(steps) == 8
            for counts in steps:
                scattered = [count for name, count in counts.items() if "reduce_scatter" in name]
                assert scattered == [2], (version, counts)


def tiny_gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(4)
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=TOKENS, n_positions=8, n_embd=16, n_layer=2, n_head=2, **dropouts))


class Adapted(nn.Module):
    """A frozen base with a low-rank addition, a part that is never used, and a scale that is a mere number."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Tagger()
        self.base.requires_grad_(False)
        generator = torch.Generator().manual_seed(6)
        self.down = nn.Parameter(torch.randn(2, 8, generator=generator))
        self.up = nn.Parameter(torch.randn(TOKENS, 2, generator=generator))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.act = nn.Sequential(nn.Tanh())

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        hidden = self.base.embedding(input_ids)
        logits = self.base.head(self.act(hidden)) + self.scale * (hidden @ self.down.T @ self.up.T)
        if labels is None:
            return {"logits": logits}
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


class Scaled(Adapted):
    """The same, all of it trained."""

    def __init__(self) -> None:
        super().__init__()
        self.base.requires_grad_(True)


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "GPT-2": (tiny_gpt2, {"optim": "adamw_torch_fused", "gradient_accumulation_steps": 2, "adam_epsilon": 1e-3}),
    "GPT-2 by size": (tiny_gpt2, {"fsdp_config": {"min_num_params": 500}, "optim": "sgd"}),
    "GPT-2 computes again": (tiny_gpt2, {"fsdp_config": {"activation_checkpointing": True}}),
    "GPT-2 with its own": (tiny_gpt2, {"gradient_checkpointing": True, "gradient_accumulation_steps": 2}),
    "GPT-2, tied weights by name": (tiny_gpt2, {"fsdp_config": {"transformer_layer_cls_to_wrap": "Embedding,GPT2MLP"}}),
    "adapted": (Adapted, {"optim": "adamw_torch", "weight_decay": 0.1}),
    "scaled": (Scaled, {"optim": "adamw_torch", "gradient_accumulation_steps": 2}),
}


def modelled(folder: Path, name: str, version: int | None, **changes: Any) -> dict[str, Any]:
    """Train with evaluations, then evaluate and predict."""
    make, options = MODELS[name]
    options = {"learning_rate": 0.01, "eval_strategy": "steps", "eval_steps": 3, **options, **changes}
    config = {"version": version, **options.pop("fsdp_config", {})}
    if version is not None:
        options |= {"fsdp": True, "fsdp_config": config}
    noting = Noting()
    trainer = Trainer(
        make(),
        arguments(folder, **options),
        train_dataset=Rows(50),
        eval_dataset=Rows(19, ragged=False),
        callbacks=[noting],
    )
    trainer.train()
    kept = sum(
        (parameter.to_local() if isinstance(parameter, DTensor) else parameter).numel()
        for parameter in trainer.model.parameters()
    )
    return {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "evaluated": [log["eval_loss"] for log in noting.logs if "eval_loss" in log],
        "flos": trainer.state.total_flos,
        "after": trainer.evaluate()["eval_loss"],
        "predicted": trainer.predict(Rows(7, ragged=False)).predictions,
        "weights": whole(trainer),
        "kept": kept,
        "is_tied": name.startswith("GPT") and trainer.model.lm_head.weight is trainer.model.transformer.wte.weight,
    }


def model_all(folder: Path, version: int) -> list[Any]:
    return [modelled(folder / str(number), name, version) for number, name in enumerate(MODELS)]


@pytest.mark.parametrize("version", VERSIONS)
def test_models(tmp_path: Path, version: int) -> None:
    several = run_ranks(model_all, tmp_path / "two", version)
    for number, name in enumerate(MODELS):
        one = modelled(tmp_path / str(number), name, None, per_device_train_batch_size=8)
        total = sum(weight.size for weight in one["weights"].values())
        for found in (of_rank[number] for of_rank in several):
            for key in ("losses", "norms", "evaluated", "after", "predicted", "flos"):
                numpy.testing.assert_allclose(found[key], one[key], rtol=1e-5, atol=2e-6, err_msg=f"{name}: {key}")
            assert set(found["weights"]) == set(one["weights"])
            for key, weight in one["weights"].items():
                numpy.testing.assert_allclose(found["weights"][key], weight, 1e-5, 2e-6, err_msg=f"{name}: {key}")
            assert found["is_tied"] == name.startswith("GPT")
            assert found["kept"] < 0.6 * total
