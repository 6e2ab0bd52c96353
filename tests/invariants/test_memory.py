"""What saves memory changes no number: recomputed activations, compilation, an emptied cache; adapters alone train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from parity import models, rows
from parity.models import flat
from safetensors.torch import load_file
from torch import nn

import kunren
from invariants.runs import arguments, losses
from kunren.engine.backends.plain import PlainBackend

# transformers 5.24 has renamed gradient checkpointing and says so; peft still reads the old name.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*activation_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"),
]


def trained(folder: Path, model: nn.Module, data: Any = None, **settings: Any) -> Any:
    trainer = kunren.Trainer(
        model=model, args=arguments(folder, **{"max_steps": 4, **settings}), train_dataset=data or rows.tokens(16)
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("name", ["activation_checkpointing", "gradient_checkpointing"])
@pytest.mark.parametrize("options", [None, {"use_reentrant": True}])
def test_recomputed_activations_train_the_same_weights_dropout_included(
    tmp_path: Path, name: str, options: dict[str, Any] | None
) -> None:
    plain = trained(tmp_path, models.bert(dropout=0.2), rows.sentences(16))
    given = {name: True, f"{name}_kwargs": options} if options else {name: True}
    recomputed = trained(tmp_path, models.bert(dropout=0.2), rows.sentences(16), **given)
    assert recomputed.model.is_activation_checkpointing
    assert torch.equal(flat(plain.model), flat(recomputed.model))


@pytest.mark.parametrize(("every", "expected"), [(None, []), (1, [1, 2, 3, 4]), (2, [2, 4]), (3, [3])])
def test_the_cache_is_emptied_every_so_many_steps(
    tmp_path: Path, every: int | None, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    emptied: list[int] = []
    made: list[kunren.Trainer] = []
    monkeypatch.setattr(PlainBackend, "empty_cache", lambda self: emptied.append(made[0].state.global_step))
    made.append(
        kunren.Trainer(
            model=models.Points(),
            args=arguments(tmp_path, max_steps=4, torch_empty_cache_steps=every),
            train_dataset=rows.points(16),
        )
    )
    made[0].train()
    assert emptied == expected


def test_a_cpu_keeps_no_cache_and_a_device_empties_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    trainer = trained(tmp_path, models.Points(), rows.points(16), torch_empty_cache_steps=1)
    trainer.engine.empty_cache()
    assert emptied == []
    trainer.engine.device = torch.device("cuda")
    trainer.engine.empty_cache()
    assert emptied == ["cuda"]


@pytest.mark.parametrize("mode", [None, "default"])
def test_a_compiled_model_trains_evaluates_and_saves_under_its_own_names(tmp_path: Path, mode: str | None) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    backend = {"torch_compile_backend": "aot_eager", "torch_compile_mode": mode}
    trainers = []
    for kind, settings in (("compiled", backend), ("plain", {})):
        trainer = kunren.Trainer(
            model=models.Points(dropout=0.0),
            args=arguments(tmp_path / kind, max_steps=4, **saving, **settings),
            # A column that forward does not take: which those are is read through the wrapper.
            train_dataset=rows.Rows([{**row, "extra": torch.tensor(1)} for row in rows.points(16)]),
            eval_dataset=rows.points(8),
        )
        trainer.train()
        trainers.append(trainer)
    compiled, plain = trainers
    assert type(compiled.model) is models.Points
    assert type(compiled.model_wrapped).__name__ == "OptimizedModule"
    assert torch.allclose(flat(compiled.model), flat(plain.model), atol=1e-6)
    assert list(losses(compiled).values()) == pytest.approx(list(losses(plain).values()), rel=1e-5)
    saved = load_file(tmp_path / "compiled" / "checkpoint-4" / "model.safetensors")
    assert saved.keys() == models.Points().state_dict().keys()
    resumed = kunren.Trainer(
        model=models.Points(dropout=0.0),
        args=arguments(tmp_path / "resumed", max_steps=4),
        train_dataset=rows.points(16),
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "compiled" / "checkpoint-2"))
    assert torch.allclose(flat(resumed.model), flat(compiled.model), atol=1e-6)


def adapted() -> Any:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=2, lora_dropout=0.2, target_modules=["query", "value"], task_type="SEQ_CLS")
    return peft.get_peft_model(models.bert(), config)


@pytest.mark.parametrize(
    "settings",
    [{}, {"weight_decay": 0.1, "bf16": True}, {"gradient_checkpointing": True},
     {"parameter_groups": [{"pattern": "lora_B", "learning_rate": 0.1}]}],
    ids=str,
)  # fmt: skip
def test_adapters_alone_are_trained_saved_and_resumed(tmp_path: Path, settings: dict[str, Any]) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2, **settings}
    model = adapted()
    if "gradient_checkpointing" in settings:
        model.enable_input_require_grads()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    straight = trained(tmp_path / "a", model, rows.sentences(16), **saving)
    moved = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert moved == trainable
    assert all("lora" in name or "classifier" in name for name in moved)
    folder = tmp_path / "a" / "checkpoint-2"
    assert not (folder / "model.safetensors").exists()
    saved = load_file(folder / "adapter_model.safetensors")
    assert sum(weight.numel() for weight in saved.values()) == straight.get_num_trainable_parameters()
    again = adapted()
    if "gradient_checkpointing" in settings:
        again.enable_input_require_grads()
    trainer = kunren.Trainer(
        model=again, args=arguments(tmp_path / "b", max_steps=4, **saving), train_dataset=rows.sentences(16)
    )
    trainer.train(resume_from_checkpoint=str(folder))
    assert torch.equal(flat(again), flat(model))
