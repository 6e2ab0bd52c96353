"""A model of transformers whose matrix products two processes divide: the numbers of one process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch.distributed.tensor import DTensor

from distributed.ranks import Answer, ask_ranks, run_ranks
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


def trained(
    model: Path, folder: Path, ranks: int, options: dict[str, Any], resume: Path | None = None
) -> dict[str, Any]:
    noting = Noting()
    given: Any = {"parallelism_config": {"tp_size": ranks}} if ranks > 1 else {}
    args = arguments(folder, **{"eval_strategy": "steps", "eval_steps": 3, "max_steps": 6} | given | options)
    trainer = Trainer(
        divided(model, ranks), args, train_dataset=Rows(40), eval_dataset=Rows(7, ragged=False), callbacks=[noting]
    )
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
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
        {"optim": "adamw_torch_fused", "learning_rate": 0.01},
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


def test_a_checkpoint_is_resumed_by_as_many_and_by_one(folder: Path, tmp_path: Path) -> None:
    options = {"optim": "adamw_torch", "save_strategy": "steps", "save_steps": 3}
    undisturbed = run_ranks(trained, folder, tmp_path / "run", 2, options)
    checkpoint = tmp_path / "run" / "checkpoint-3"
    again = run_ranks(trained, folder, tmp_path / "again", 2, options, checkpoint)
    for resumed, whole_run in zip(again, undisturbed, strict=True):
        assert [log[0] for log in resumed["logs"] if log[0]] == [log[0] for log in whole_run["logs"] if log[0]][3:]
        for found, expected in zip(resumed["weights"], whole_run["weights"], strict=True):
            numpy.testing.assert_array_equal(found, expected)
    one = trained(folder, tmp_path / "one", 1, options, checkpoint)
    for found, expected in zip(one["weights"], undisturbed[0]["weights"], strict=True):
        numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)


def assert_refused(answers: list[Answer], told: str) -> None:
    """All end by themselves; a slow one perhaps because the other has gone, which was told why."""
    errors = [answer.error or "" for answer in answers]
    assert all(errors)
    assert not any("hangs" in error for error in errors)
    assert any(told in error for error in errors), errors


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
    assert_refused(ask_ranks(refused, tmp_path, options), told)


def mesh_of_four(model: Path, folder: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """FSDP over processes that share each matrix product, or in groups that have all of the model each."""
    from accelerate.parallelism_config import ParallelismConfig
    from transformers.distributed import DistributedConfig

    config = ParallelismConfig(**sizes)
    options = {}
    if config.tp_enabled:
        torch.distributed.init_process_group("gloo")
        options = {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=2, fsdp_size=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of `tp_plan`, which is how a mesh can be given
        divided_model = transformers.LlamaForCausalLM.from_pretrained(model, **options)
    noting = Noting()
    args = arguments(
        folder,
        max_steps=4,
        optim="adamw_torch_fused",
        fsdp=True,
        parallelism_config=config,
        per_device_train_batch_size=8 // config.data_parallel_size,
        eval_strategy="steps",
        eval_steps=2,
    )
    trainer = Trainer(divided_model, args, train_dataset=Rows(40), eval_dataset=Rows(7, False), callbacks=[noting])
    trainer.train()
    return {
        "logs": [[log.get(name) for name in ("loss", "grad_norm", "eval_loss")] for log in noting.logs],
        "weights": [whole(parameter) for parameter in trainer.model.parameters()],
        "share": sum(local_size(parameter) for parameter in trainer.model.parameters()),
    }


def local_size(parameter: torch.Tensor) -> int:
    return parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()


@pytest.mark.parametrize(
    ("sizes", "share"),
    [({"dp_replicate_size": 2, "dp_shard_size": 2}, 0.55), ({"dp_shard_size": 2, "tp_size": 2}, 0.3)],
)
def test_fsdp_over_a_mesh_has_the_numbers_of_one_process(
    folder: Path, tmp_path: Path, sizes: dict[str, int], share: float
) -> None:
    options = {"max_steps": 4, "per_device_train_batch_size": 8, "eval_steps": 2, "optim": "adamw_torch_fused"}
    one = trained(folder, tmp_path / "one", 1, options)
    elements = sum(weights.size for weights in one["weights"])
    for several in run_ranks(mesh_of_four, folder, tmp_path / "four", sizes, ranks=4):
        numpy.testing.assert_allclose(numbers(several), numbers(one), rtol=2e-5)
        for found, expected in zip(several["weights"], one["weights"], strict=True):
            numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-6)
        assert several["share"] < share * elements


def whole_by_mistake(model: Path, folder: Path) -> None:
    Trainer(divided(model, 2), arguments(folder), train_dataset=Rows(8)).train()


def test_a_divided_model_is_not_taken_to_be_whole(folder: Path, tmp_path: Path) -> None:
    answers = ask_ranks(whole_by_mistake, folder, tmp_path)
    assert_refused(answers, "have been divided among the processes when it was loaded")


def test_fsdp_is_told_how_to_divide_what_is_divided_already(tmp_path: Path) -> None:
    options = {"fsdp": True, "parallelism_config": {"dp_shard_size": 1, "tp_size": 2}}
    answers = ask_ranks(refused, tmp_path, options)
    assert_refused(answers, "DistributedConfig(tp_plan='auto', tp_size=2, fsdp_size=1)")
