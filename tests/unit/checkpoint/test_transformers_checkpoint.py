"""A checkpoint that transformers' own Trainer wrote resumes, and transformers resumes one that kunren's parts wrote."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from unit.checkpoint.publishing import publish

from kunren.checkpoint import parts
from kunren.checkpoint.layout import is_whole, problems, resolve
from kunren.checkpoint.parts import Part
from kunren.checkpoint.weights import load_weights, save_weights
from kunren.optim.parameter_groups import build_groups, count_decay_parameters

transformers = pytest.importorskip("transformers")

ROWS = [
    {"input_ids": torch.arange(6) + index, "attention_mask": torch.ones(6, dtype=torch.long), "labels": index % 2}
    for index in range(16)
]


def tiny_bert() -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(**sizes, intermediate_size=16, max_position_embeddings=16)
    )


def trainer(output_dir: Path, model: nn.Module, weight_decay: float, **arguments: Any) -> Any:
    settings = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 2, "logging_steps": 1, **arguments}
    args = transformers.TrainingArguments(
        output_dir=str(output_dir),
        weight_decay=weight_decay,
        learning_rate=0.01,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **settings,
    )
    return transformers.Trainer(model=model, args=args, train_dataset=ROWS)


@pytest.fixture(scope="module", params=[0.0, 0.1], ids=["one group", "two groups"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, float]:
    folder = tmp_path_factory.mktemp("run")
    finished = trainer(folder, tiny_bert(), request.param)
    finished.train()
    return folder, finished, request.param


def ours(weight_decay: float) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = tiny_bert()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    optimizer = torch.optim.AdamW(build_groups(model, weight_decay), lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 4)


def test_it_is_whole_and_every_part_loads(run: tuple[Path, Any, float]) -> None:
    folder, finished, weight_decay = run
    path = resolve(True, folder)
    assert path == folder / "checkpoint-4"
    assert resolve(str(folder / "checkpoint-2"), folder) == folder / "checkpoint-2"
    model, optimizer, scheduler = ours(weight_decay)
    number = count_decay_parameters(model)
    assert load_weights(model, path) == ([], [])
    for (name, one), two in zip(model.named_parameters(), finished.model.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert parts.load_optimizer(optimizer, path, number)
    theirs = dict(finished.optimizer.state)
    by_name = dict(finished.model.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(optimizer.state[parameter]["exp_avg"], theirs[by_name[name]]["exp_avg"]), name
    assert parts.load_scheduler(scheduler, path)
    assert scheduler.last_epoch == 4
    assert len(scheduler.get_last_lr()) == len(optimizer.param_groups) == (1 if weight_decay == 0 else 2)
    optimizer.step()
    scheduler.step()
    state = parts.load_trainer_state(path)
    assert (state.global_step, state.max_steps, len(state.log_history)) == (4, 4, 4)
    assert parts.load_training_args(path) is None
    assert parts.load_cursor(path) is None


def test_its_random_state_is_read(run: tuple[Path, Any, float]) -> None:
    path = run[0] / "checkpoint-2"
    assert parts.load_random_state(path)
    saved = torch.load(path / "rng_state.pth", weights_only=False)
    assert torch.equal(torch.random.get_rng_state(), saved["cpu"])
    assert random.getstate() == saved["python"]
    assert (numpy.random.get_state()[1] == saved["numpy"][1]).all()


def test_damage_without_a_manifest(run: tuple[Path, Any, float], tmp_path: Path) -> None:
    for name, cut in (("model.safetensors", 8), ("optimizer.pt", 100), ("rng_state.pth", 1), ("trainer_state.json", 9)):
        path = tmp_path / name / "checkpoint-4"
        shutil.copytree(run[0] / "checkpoint-4", path)
        assert is_whole(path)
        content = (path / name).read_bytes()
        (path / name).write_bytes(content[:-cut])
        (problem,) = problems(path)
        assert problem.startswith(name)


def test_transformers_resumes_from_our_parts(run: tuple[Path, Any, float], tmp_path: Path) -> None:
    """The checkpoint of step 2, read and written again by kunren, ends where the undisturbed run ended."""
    folder, finished, weight_decay = run
    old = folder / "checkpoint-2"
    model, optimizer, scheduler = ours(weight_decay)
    number = count_decay_parameters(model)
    load_weights(model, old)
    parts.load_optimizer(optimizer, old, number)
    parts.load_scheduler(scheduler, old)
    parts.load_random_state(old)
    state = parts.load_trainer_state(old)

    def none(folder: Path) -> None:
        raise AssertionError("nothing is loaded here")

    everything = [
        Part("weights", lambda path: save_weights(model, path), none),
        Part("optimizer", lambda path: parts.save_optimizer(optimizer, path, number), none),
        Part("scheduler", lambda path: parts.save_scheduler(scheduler, path, groups=2), none),
        Part("random state", parts.save_random_state, none),
        Part("state", lambda path: parts.save_trainer_state(state, path), none),
        Part("arguments", lambda path: parts.save_training_args({"learning_rate": 0.01}, path), none),
        Part("cursor", lambda path: parts.save_cursor({"epoch": 0}, path), none),
    ]
    new = tmp_path / "checkpoint-2"
    publish(new, lambda path: parts.save_parts(everything, path))
    assert is_whole(new, digests=True)
    names = {path.name for path in new.iterdir()}
    assert names == {path.name for path in old.iterdir()} | {"manifest.json", "cursor.json"}

    resumed = trainer(tmp_path, tiny_bert(), weight_decay)
    resumed.train(resume_from_checkpoint=str(new))
    assert resumed.state.global_step == 4
    for (name, one), two in zip(resumed.model.named_parameters(), finished.model.parameters(), strict=True):
        assert torch.equal(one, two), name
