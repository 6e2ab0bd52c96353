"""Checkpoints of a model that is divided: in parts or whole, resumed in any division, by one process as well."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from distributed.ranks import run_ranks
from distributed.tasks_of_ranks import Noting, Rows, Stopping, Tagger, arguments
from kunren import Trainer
from kunren.checkpoint.layout import problems
from kunren.checkpoint.spread.merging import merge
from kunren.cli.checkpoint_diff import compare
from kunren.cli.main import main

pytestmark = pytest.mark.distributed

VERSIONS = [2, 1]
SAVING: dict[str, Any] = {
    "save_strategy": "steps",
    "save_steps": 3,
    "max_steps": 10,
    "optim": "adamw_torch",
    "logging_steps": 2,
    "gradient_accumulation_steps": 2,
}
WHOLE = {"state_dict_type": "FULL_STATE_DICT"}
ONE = {"per_device_train_batch_size": 8}


def run(folder: Path, version: int | None = None, config: Any = None, **options: Any) -> dict[str, Any]:
    """Train, and save the whole weights beside the checkpoints; `version` of FSDP, or None."""
    if version is not None:
        # The embedding in a group of its own, as layers are; each row of it is cut where a flat vector is.
        options |= {"fsdp": True, "fsdp_config": {"version": version, "min_num_params": 90, **(config or {})}}
    resume, stop_at = options.pop("resume", None), options.pop("stop_at", None)
    noting = Noting()
    callbacks = [noting] if stop_at is None else [Stopping(stop_at), noting]
    trainer = Trainer(Tagger(), arguments(folder, **SAVING | options), train_dataset=Rows(33), callbacks=callbacks)
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(folder / "final"))
    return {
        "losses": [log["loss"] for log in noting.logs if "loss" in log],
        "norms": [log["grad_norm"] for log in noting.logs if "grad_norm" in log],
        "step": trainer.state.global_step,
    }


def call(folder: Path, version: int | None, options: dict[str, Any]) -> dict[str, Any]:
    return run(folder, version, **options)


def final(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "final" / "model.safetensors")


def assert_alike(folder: Path, found: dict[str, Any], other: Path, expected: dict[str, Any], exactly: bool) -> None:
    tolerance = 0 if exactly else 1e-6
    for name in ("losses", "norms"):
        last = min(len(found[name]), 2)
        numpy.testing.assert_allclose(found[name][-last:], expected[name][-last:], rtol=10 * tolerance, atol=tolerance)
    one, two = final(folder), final(other)
    assert list(one) == list(two)
    for name in one:
        numpy.testing.assert_allclose(one[name], two[name], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_run_is_the_undisturbed_one_to_the_bit(tmp_path: Path, version: int) -> None:
    undisturbed = run_ranks(call, tmp_path / "run", version, {})
    checkpoint = tmp_path / "run" / "checkpoint-3"
    assert problems(checkpoint, digests=True) == []
    parts = {path.relative_to(checkpoint).as_posix() for path in checkpoint.rglob("*_0.distcp")}
    assert parts == {f"{name}/__{rank}_0.distcp" for name in ("pytorch_model_fsdp_0", "optimizer_0") for rank in (0, 1)}
    assert not {"model.safetensors", "optimizer.pt"} & {path.name for path in checkpoint.iterdir()}
    resumed = run_ranks(call, tmp_path / "again", version, {"resume": str(checkpoint)})
    for found, expected in zip(resumed, undisturbed, strict=True):
        assert_alike(tmp_path / "again", found, tmp_path / "run", expected, exactly=True)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_run_goes_on_in_any_division(tmp_path: Path, decay: float) -> None:
    """FSDP 2 -> one process -> FSDP 1 -> DDP -> FSDP 2: the same samples in the same order, and the same numbers."""
    options = {"weight_decay": decay}
    [expected, _] = run_ranks(call, tmp_path / "whole", 2, options)
    folder, going_on = tmp_path / "run", options | {"resume": True}
    run_ranks(call, folder, 2, options | {"stop_at": 2})
    run(folder, None, **going_on, **ONE, stop_at=4)
    run_ranks(call, folder, 1, going_on | {"stop_at": 6})
    run_ranks(call, folder, None, going_on | {"stop_at": 7})
    run_ranks(call, folder, 1, going_on | {"stop_at": 8})
    [found, _] = run_ranks(call, folder, 2, going_on)
    assert found["step"] == 10
    assert_alike(folder, found, tmp_path / "whole", expected, exactly=False)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_checkpoint_is_that_of_one_process(tmp_path: Path, version: int) -> None:
    run_ranks(call, tmp_path / "two", version, {"config": WHOLE, "max_steps": 6})
    one = run(tmp_path / "one", **ONE, max_steps=6)
    names = [{path.name for path in (tmp_path / name / "checkpoint-3").iterdir()} for name in ("two", "one")]
    assert names[0] - {"rng_state_0.pth", "rng_state_1.pth"} == names[1] - {"rng_state.pth"}
    saved = [
        torch.load(tmp_path / name / "checkpoint-3" / "optimizer.pt", weights_only=True) for name in ("two", "one")
    ]
    assert [list(group["params"]) for group in saved[0]["param_groups"]] == [[0, 1], [2]]
    assert saved[0]["param_groups"] == saved[1]["param_groups"]
    assert saved[0]["state"].keys() == saved[1]["state"].keys()
    for index, kept in saved[1]["state"].items():
        for key, value in kept.items():
            numpy.testing.assert_allclose(saved[0]["state"][index][key], value, rtol=1e-5, atol=1e-7)
    resumed = run(tmp_path / "again", **ONE, max_steps=6, resume=str(tmp_path / "two" / "checkpoint-3"))
    assert_alike(tmp_path / "again", resumed, tmp_path / "one", one, exactly=False)
    [found, _] = run_ranks(
        call, tmp_path / "parts", version, {"max_steps": 6, "resume": str(tmp_path / "two" / "checkpoint-3")}
    )
    assert_alike(tmp_path / "parts", found, tmp_path / "one", one, exactly=False)


def saved_again(folder: Path, version: int, checkpoint: Path) -> None:
    config = {"version": version, "min_num_params": 90}
    options = SAVING | {"fsdp": True, "fsdp_config": config, "max_steps": 3, "per_device_train_batch_size": 2}
    trainer = Trainer(Tagger(), arguments(folder, **options), train_dataset=Rows(33))
    trainer.train(resume_from_checkpoint=str(checkpoint))
    trainer._save_checkpoint(trainer.model, None)
    trainer._saver.wait()


@pytest.mark.parametrize("version", VERSIONS)
def test_parts_of_two_become_parts_of_three_and_the_reverse(tmp_path: Path, version: int) -> None:
    """Of which one has a part that ends in the middle of a row, or none at all; nothing is lost on the way."""
    run_ranks(call, tmp_path / "two", version, {"max_steps": 3})
    run_ranks(saved_again, tmp_path / "three", 3 - version, tmp_path / "two" / "checkpoint-3", ranks=3)
    run_ranks(saved_again, tmp_path / "back", version, tmp_path / "three" / "checkpoint-3", ranks=2)
    assert (tmp_path / "three" / "checkpoint-3" / "optimizer_0" / "__2_0.distcp").is_file()
    for name in ("three", "back"):
        found = compare(tmp_path / "two" / "checkpoint-3", tmp_path / name / "checkpoint-3")
        assert (found.equal_tensors, found.tensors, found.only_first, found.only_second) == (3, [], [], [])
        assert found.optimizer == "equal"


def best(folder: Path, version: int) -> Any:
    options = {
        "fsdp": True,
        "fsdp_config": {"version": version, "min_num_params": 90},
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "save_total_limit": 2,
        "max_steps": 6,
        "learning_rate": 5.0,
    }
    trainer = Trainer(Tagger(), arguments(folder, **options), train_dataset=Rows(50), eval_dataset=Rows(7))
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    return trainer.state.best_global_step, trainer.state.best_metric, loss


@pytest.mark.parametrize("version", VERSIONS)
def test_the_best_model_is_loaded_and_old_ones_go(tmp_path: Path, version: int) -> None:
    first, second = run_ranks(best, tmp_path, version)
    assert first == second
    step, metric, loss = first
    assert loss == pytest.approx(metric, rel=1e-6)
    assert (tmp_path / f"checkpoint-{step}").is_dir()
    assert len(list(tmp_path.glob("*checkpoint-*"))) <= 2


def pretrained(folder: Path, version: int) -> None:
    """A model of transformers with tied weights, saved in parts and whole."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=2))
    config = {"version": version, "transformer_layer_cls_to_wrap": ["GPT2Block"]}
    options = SAVING | {"fsdp": True, "fsdp_config": config, "save_steps": 2, "max_steps": 2}
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows(20))
    trainer.train()
    trainer.save_model(str(folder / "final"))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_merged_checkpoint_is_the_saved_model(
    tmp_path: Path, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    run_ranks(pretrained, tmp_path, version)
    checkpoint = tmp_path / "checkpoint-2"
    assert main(["checkpoint", "merge", str(checkpoint)]) == 0
    assert f"{checkpoint}-merged: 28 tensors in " in capsys.readouterr().out
    merge(checkpoint, tmp_path / "small", file_bytes=4000)
    assert len(list((tmp_path / "small").glob("model-*-of-*.safetensors"))) > 3
    models = [
        AutoModelForCausalLM.from_pretrained(folder)
        for folder in (tmp_path / "final", tmp_path / "checkpoint-2-merged", tmp_path / "small")
    ]
    for model in models:
        assert model.lm_head.weight is model.transformer.wte.weight
        for name, value in models[0].state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name
    assert main(["checkpoint", "ls", str(checkpoint)]) == 0
    assert f"28 tensors, {models[0].num_parameters():,} parameters" in capsys.readouterr().out
    assert main(["checkpoint", "diff", str(checkpoint), str(checkpoint)]) == 0
    configs = [folder / "config.json" for folder in (checkpoint, tmp_path / "checkpoint-2-merged", tmp_path / "final")]
    assert [json.loads(path.read_text())["dtype"] for path in configs] == ["float32"] * 3
    whole = tmp_path / "whole" / "checkpoint-2"
    shutil.copytree(checkpoint, whole, ignore=shutil.ignore_patterns("pytorch_model_fsdp_0"))
    shutil.copy(tmp_path / "final" / "model.safetensors", whole)  # without the second name of the tie
    capsys.readouterr()
    assert main(["checkpoint", "diff", str(checkpoint), str(whole)]) == 0
    said = capsys.readouterr().out
    assert "tensors that are equal: 28" in said or "No difference: 28 tensors" in said
    assert main(["checkpoint", "merge", str(checkpoint)]) == 2
    assert "exists and is not empty" in capsys.readouterr().err
    (checkpoint / "optimizer_0" / "__1_0.distcp").unlink()
    assert main(["checkpoint", "merge", str(checkpoint), "--output", str(tmp_path / "other")]) == 2
    assert "is damaged and cannot be merged: optimizer_0/__1_0.distcp is missing" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def with_adapter(folder: Path, version: int | None, resume: str | None = None) -> list[float]:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=11, n_positions=8, n_embd=12, n_layer=2, n_head=2, **dropouts))
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    noting, options = Noting(), SAVING | {"save_steps": 2, "max_steps": 4, **(ONE if version is None else {})}
    if version is not None:
        config = {"version": version, "transformer_layer_cls_to_wrap": ["GPT2Block"]}
        options |= {"fsdp": True, "fsdp_config": config, "ddp_find_unused_parameters": False}
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows(33), callbacks=[noting])
    trainer.train(resume_from_checkpoint=resume)
    return [log["loss"] for log in noting.logs if "loss" in log]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")  # by peft
@pytest.mark.parametrize("version", VERSIONS)
def test_adapters_are_saved_by_themselves_and_whole(tmp_path: Path, version: int) -> None:
    [expected, _] = run_ranks(with_adapter, tmp_path / "run", version)
    checkpoint = tmp_path / "run" / "checkpoint-2"
    assert (checkpoint / "adapter_model.safetensors").is_file()
    assert not (checkpoint / "pytorch_model_fsdp_0").exists()
    [found, _] = run_ranks(with_adapter, tmp_path / "again", version, str(checkpoint))
    assert found == expected[1:]
    assert with_adapter(tmp_path / "one", None, str(checkpoint)) == pytest.approx(expected[1:], rel=1e-5)


class Wide(nn.Module):
    """64 MB of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(16))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return {"loss": (x.mean(1) - labels).square().mean()}


def own_memory() -> int:
    """In MB; without the pages of files, which a process has not to have."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10


def most_memory(folder: Path, config: dict[str, Any], resume: str | None) -> int:
    found, ended = [own_memory()], threading.Event()

    def watch() -> None:
        while not ended.wait(0.002):
            found.append(own_memory())

    watching = threading.Thread(target=watch)
    watching.start()
    config = {"transformer_layer_cls_to_wrap": ["Linear"], **config}
    options = SAVING | {"fsdp": True, "fsdp_config": config, "save_steps": 1, "max_steps": 2}
    rows = [{"x": torch.ones(1024), "labels": torch.tensor(0.0)} for _ in range(16)]
    Trainer(Wide(), arguments(folder, **options), train_dataset=rows).train(resume_from_checkpoint=resume)
    ended.set()
    watching.join()
    return max(found) - found[0]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read where Linux tells it")
@pytest.mark.parametrize("config", [{}, WHOLE], ids=["parts", "whole"])
def test_a_resume_takes_no_more_memory_than_a_run(tmp_path: Path, config: dict[str, Any]) -> None:
    begun = run_ranks(most_memory, tmp_path / "run", config, None)
    resumed = run_ranks(most_memory, tmp_path / "again", {}, str(tmp_path / "run" / "checkpoint-1"))
    assert max(resumed) <= max(begun) + 24, (begun, resumed)


def llama(folder: Path, divides: bool, resume: str | None = None) -> list[float]:
    import transformers
    from transformers.distributed import DistributedConfig

    given = {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=2)} if divides else {}
    model = transformers.LlamaForCausalLM.from_pretrained(folder.parent / "llama", **given)
    options: dict[str, Any] = SAVING | {"save_steps": 2, "max_steps": 6}
    if divides:
        options["parallelism_config"] = {"tp_size": 2}
    noting = Noting()
    trainer = Trainer(model, arguments(folder, **options), train_dataset=Rows(40), callbacks=[noting])
    trainer.train(resume_from_checkpoint=resume)
    trainer.save_model(str(folder / "final"))
    return [log["loss"] for log in noting.logs if "loss" in log]


def test_a_model_whose_matrix_products_are_divided(tmp_path: Path) -> None:
    """Of tensor parallelism, where some weights are divided by rows, some by columns, and some not at all."""
    import transformers

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=11, num_key_value_heads=2, max_position_embeddings=8, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    [expected, _] = run_ranks(llama, tmp_path / "run", True)
    checkpoint = tmp_path / "run" / "checkpoint-4"
    assert problems(checkpoint, digests=True) == []
    [found, _] = run_ranks(llama, tmp_path / "again", True, str(checkpoint))
    assert found == expected[2:]
    assert all(torch.equal(value, final(tmp_path / "again")[name]) for name, value in final(tmp_path / "run").items())
    assert llama(tmp_path / "one", False, str(checkpoint)) == pytest.approx(expected[2:], rel=1e-4)
    for name, value in final(tmp_path / "run").items():
        numpy.testing.assert_allclose(value, final(tmp_path / "one")[name], rtol=1e-3, atol=2e-5)
