"""A model of transformers whose matrix products two processes divide: the numbers of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.tensor import DTensor

from distributed.ranks import ask_ranks, run_ranks
from distributed.tasks_of_ranks import Noting, Rows, Tagger, arguments
from kunren import Trainer

pytestmark = pytest.mark.distributed
transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8,
    )
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path


def divided(folder: Path, ranks: int) -> Any:
    from transformers.distributed import DistributedConfig

    options = {} if ranks == 1 else {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=ranks)}
    return transformers.LlamaForCausalLM.from_pretrained(folder, **options)


def whole(parameter: torch.Tensor) -> Any:
    value = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
    return value.detach().numpy()


def trained(model: Path, folder: Path, ranks: int, options: dict[str, Any]) -> dict[str, Any]:
    noting = Noting()
    given: Any = {"parallelism_config": {"tp_size": ranks}} if ranks > 1 else {}
    args = arguments(folder, **{"eval_strategy": "steps", "eval_steps": 3, "max_steps": 6} | given | options)
    trainer = Trainer(
        divided(model, ranks), args, train_dataset=Rows(40), eval_dataset=Rows(7, ragged=False), callbacks=[noting]
    )
    trainer.train()
    return {
        "logs": [[log.get(name) for name in ("loss", "grad_norm", "eval_loss")] for log in noting.logs],
        "tokens": trainer.state.num_input_tokens_seen,
        "flos": trainer.state.total_flos,
        "weights": [whole(parameter) for parameter in trainer.model.parameters()],
    }


def numbers(run: dict[str, Any]) -> Any:
    return numpy.array([[value if value is not None else -1.0 for value in log] for log in run["logs"]])


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "sgd"},
        {"optim": "adamw_torch", "gradient_accumulation_steps": 2, "include_num_input_tokens_seen": True},
    ],
    ids=str,
)
def test_the_numbers_are_those_of_one_process(folder: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    one = trained(folder, tmp_path / "one", 1, options)
    for several in run_ranks(trained, folder, tmp_path / "two", 2, options):
        numpy.testing.assert_allclose(numbers(several), numbers(one), rtol=2e-5)
        assert (several["tokens"], several["flos"]) == (one["tokens"], one["flos"])
        for found, expected in zip(several["weights"], one["weights"], strict=True):
            numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


def refused(folder: Path, options: dict[str, Any]) -> None:
    Trainer(Tagger(), arguments(folder, **options), train_dataset=Rows(8)).train()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"parallelism_config": {"tp_size": 2}}, "no weight of the model is divided"),
        ({"parallelism_config": {"tp_size": 4}}, "a mesh of 4 processes, and 2 have been started"),
        ({"parallelism_config": {"dp_replicate_size": 2, "tp_size": 2}}, "a mesh of 4 processes"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told_before_training(tmp_path: Path, options: dict[str, Any], told: str) -> None:
    for answer in ask_ranks(refused, tmp_path, options, timeout=30):
        assert answer.error is not None
        assert told in answer.error
