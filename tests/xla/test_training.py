"""A run on XLA has the numbers of the plain CPU, compiles once for each shape, and is gone on with exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kunren import Trainer, TrainingArguments

pytestmark = pytest.mark.xla

ROWS, FEATURES, CLASSES = 40, 8, 3


class Classifier(nn.Module):
    """Two layers of one shape, which only their numbers tell apart in a checkpoint, and two that are tied."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.tied = nn.Linear(FEATURES, FEATURES, bias=False)
        self.tied.weight = self.first.weight
        self.norm, self.dropout = nn.LayerNorm(FEATURES), nn.Dropout(dropout)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.tied(torch.tanh(self.second(torch.tanh(self.first(x)))))
        logits = self.head(self.dropout(self.norm(hidden)))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def rows() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"x": torch.randn(FEATURES, generator=generator), "labels": torch.randint(CLASSES, (), generator=generator)}
        for _ in range(ROWS)
    ]


def trainer(folder: Path, dropout: float = 0.0, **options: Any) -> Trainer:
    torch.manual_seed(0)
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1, "save_strategy": "no",
        "report_to": "none", "run_report": False, "disable_tqdm": True, "learning_rate": 0.01,
    }  # fmt: skip
    args = TrainingArguments(output_dir=str(folder), **{**defaults, **options})
    return Trainer(Classifier(dropout), args, train_dataset=rows(), eval_dataset=rows()[:10])


def trained(folder: Path, resume: str | None = None, **options: Any) -> Trainer:
    made = trainer(folder, **options)
    made.train(resume_from_checkpoint=resume)
    return made


def losses(done: Trainer) -> list[float]:
    return [entry["loss"] for entry in done.state.log_history if "loss" in entry]


def weights(done: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.cpu() for name, tensor in done.model.state_dict().items()}


def measured(metric: str) -> int:
    """How often torch_xla has done so far what it measures under this name."""
    import torch_xla.debug.metrics as metrics

    data = metrics.metric_data(metric)
    return int(data[0]) if data else 0


def test_the_device_is_chosen(tmp_path: Path) -> None:
    here = trainer(tmp_path)
    assert (type(here.engine).__name__, here.args.n_gpu) == ("XlaBackend", 1)
    assert {parameter.device.type for parameter in here.model.parameters()} == {"xla"}
    assert here.model.tied.weight is here.model.first.weight
    assert type(trainer(tmp_path, use_cpu=True).engine).__name__ == "PlainBackend"


@pytest.mark.parametrize(
    "options",
    [
        {"optim": "sgd", "learning_rate": 0.1},
        {"optim": "sgd", "optim_args": "momentum=0.9", "gradient_accumulation_steps": 3},
        {"optim": "adamw_torch_fused", "weight_decay": 0.1},
        {"gradient_accumulation_steps": 3, "max_grad_norm": 0.05, "warmup_steps": 2},
    ],
    ids=["sgd", "momentum, accumulated", "adamw", "adamw, accumulated, clipped"],
)
def test_numbers_of_the_plain_cpu(tmp_path: Path, options: dict[str, Any]) -> None:
    here, plain = (trained(tmp_path, use_cpu=use_cpu, **options) for use_cpu in (False, True))
    assert losses(here) == pytest.approx(losses(plain), abs=1e-5)
    torch.testing.assert_close(weights(here), weights(plain), atol=1e-5, rtol=0)
    assert here.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"], abs=1e-5)
    predictions = [done.predict(rows()[:10]).predictions for done in (here, plain)]
    torch.testing.assert_close(torch.tensor(predictions[0]), torch.tensor(predictions[1]), atol=1e-5, rtol=0)


def test_an_optimizer_made_before(tmp_path: Path) -> None:
    made = []
    for use_cpu in (False, True):
        args = trainer(tmp_path, use_cpu=use_cpu).args
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        done = Trainer(model, args, train_dataset=rows(), optimizers=(optimizer, None))
        done.train()
        made.append(done)
    torch.testing.assert_close(weights(made[0]), weights(made[1]), atol=1e-5, rtol=0)


def test_bfloat16(tmp_path: Path) -> None:
    kinds = []
    here = trainer(tmp_path, bf16=True)
    here.model.head.register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    here.train()
    assert set(kinds) == {torch.bfloat16}
    assert {parameter.dtype for parameter in here.model.parameters()} == {torch.float32}
    plain = trained(tmp_path, bf16=True, use_cpu=True)
    assert losses(here) == pytest.approx(losses(plain), abs=0.02)


def test_resumed_is_undisturbed(tmp_path: Path) -> None:
    options: dict[str, Any] = {"dropout": 0.3, "save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps",
                               "eval_steps": 2}  # fmt: skip
    whole = trained(tmp_path / "whole", **options)
    torch.manual_seed(99)
    resumed = trained(tmp_path / "resumed", str(tmp_path / "whole" / "checkpoint-3"), **options)
    assert losses(resumed) == losses(whole)
    torch.testing.assert_close(weights(resumed), weights(whole), atol=0, rtol=0)


@pytest.mark.parametrize("async_save", [False, True])
def test_a_checkpoint_is_read_on_any_device(tmp_path: Path, async_save: bool) -> None:
    """The run of a TPU goes on where there is none, and the other way round."""
    runs = {}
    for first in (False, True):
        folder = tmp_path / str(first)
        saved = trained(folder, use_cpu=first, save_strategy="steps", save_steps=3, async_save=async_save)
        runs[first] = saved
        resumed = trained(tmp_path / "on", str(folder / "checkpoint-3"), use_cpu=not first)
        assert losses(resumed) == pytest.approx(losses(saved), abs=1e-5)
        torch.testing.assert_close(weights(resumed), weights(saved), atol=1e-5, rtol=0)


def test_the_number_of_compilations_does_not_grow(tmp_path: Path) -> None:
    """Not with the number of steps, and not with the logs that come between them."""
    counts = []
    for steps, logging_steps in ((12, 5), (12, 3), (30, 2)):
        before = measured("CompileTime")
        trained(tmp_path, max_steps=steps, logging_steps=logging_steps, gradient_accumulation_steps=3)
        counts.append(measured("CompileTime") - before)
    assert counts[1:] == [0, 0], counts


def test_nothing_is_waited_for_between_logs(tmp_path: Path) -> None:
    counts = []
    for steps in (5, 20):
        before = measured("TransferFromDeviceTime")
        trained(tmp_path, max_steps=steps, logging_steps=100)
        counts.append(measured("TransferFromDeviceTime") - before)
    assert counts[0] == counts[1]


def test_an_evaluation_computes_each_batch_once(tmp_path: Path) -> None:
    here = trainer(tmp_path, per_device_eval_batch_size=2)
    before = measured("ExecuteTime")
    here.predict(rows()[:10])
    assert measured("ExecuteTime") - before == 5


def pretrained(folder: Path, dropout: float = 0.0, **options: Any) -> Trainer:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=8, resid_pdrop=dropout, embd_pdrop=dropout,
        attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    tokens = [{"input_ids": torch.arange(8) % (n + 3), "labels": torch.arange(8) % (n + 3)} for n in range(8)]
    args = trainer(folder, **{"max_steps": 3, "gradient_accumulation_steps": 2, "optim": "sgd", **options}).args
    torch.manual_seed(0)
    return Trainer(GPT2LMHeadModel(config), args, train_dataset=tokens)


def test_a_pretrained_model(tmp_path: Path) -> None:
    """Its own `save_pretrained` writes what `from_pretrained` reads; embeddings and head stay tied."""
    here, plain = pretrained(tmp_path), pretrained(tmp_path, use_cpu=True)
    for run in (here, plain):
        run.train()
    assert here.model.lm_head.weight is here.model.transformer.wte.weight
    assert losses(here) == pytest.approx(losses(plain), abs=1e-5)
    here.save_model(str(tmp_path / "model"))
    loaded = type(here.model).from_pretrained(tmp_path / "model")
    torch.testing.assert_close(dict(loaded.state_dict()), weights(plain), atol=1e-5, rtol=0)


def test_activations_computed_again(tmp_path: Path) -> None:
    """The dropout of the backward pass is that of the forward pass."""
    runs, calls = [], [0, 0]
    for again in (False, True):
        run = pretrained(tmp_path, 0.3, max_steps=1, gradient_accumulation_steps=1, activation_checkpointing=again)

        def count(*_: Any, place: int = int(again)) -> None:
            calls[place] += 1

        run.model.transformer.h[0].mlp.register_forward_hook(count)
        run.train()
        runs.append(run)
    assert calls == [1, 2]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)
    torch.testing.assert_close(weights(runs[1]), weights(runs[0]), atol=1e-6, rtol=0)


def test_activations_computed_again_of_inputs_that_are_not_trained(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, image_size=4, patch_size=2
    )
    images = [{"pixel_values": torch.randn(3, 4, 4), "labels": torch.tensor(n % 2)} for n in range(8)]
    runs = []
    for again in (False, True):
        args = trainer(tmp_path, max_steps=2, optim="sgd", activation_checkpointing=again).args
        torch.manual_seed(0)
        model = ViTForImageClassification(config)
        model.vit.embeddings.requires_grad_(False)
        run = Trainer(model, args, train_dataset=images)
        run.train()
        runs.append(run)
    torch.testing.assert_close(weights(runs[1]), weights(runs[0]), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fsdp": True, "fsdp_config": {"xla": True, "xla_fsdp_v2": True}}, "xla_fsdp_v2"),
        ({"parallelism_config": {"tp_size": 2}}, "parallelism_config"),
        ({"ddp_backend": "gloo"}, "ddp_backend='gloo'"),
        ({"fp16": True}, "set bf16=True"),
        ({"torch_compile": True}, "torch_compile=False"),
    ],
)
def test_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"(?i){said}"):
        trainer(tmp_path, **options)


def test_a_plan_does_not_guess(tmp_path: Path) -> None:
    assert str(trainer(tmp_path).plan()).count("XLA tells neither memory nor time") == 2


def test_a_backward_pass_before_the_device(tmp_path: Path) -> None:
    script = (
        "import torch; torch.ones(1, requires_grad=True).backward()\n"
        "from kunren import Trainer, TrainingArguments\n"
        f"Trainer(torch.nn.Linear(2, 2), TrainingArguments(output_dir={str(tmp_path)!r}, report_to='none'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=child())
    assert done.returncode == 1
    assert "at the top of the script" in done.stderr


def test_one_of_several(tmp_path: Path) -> None:
    """The group of torch_xla, with one process in it: more do not meet on XLA's CPU device."""
    script = tmp_path / "script.py"
    script.write_text(ONE_OF_SEVERAL)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", str(script)]
    done = subprocess.run(
        launch, capture_output=True, text=True, cwd=tmp_path, env={**child(), "XLA_ALWAYS_ALLREDUCE": "1"}
    )
    assert done.returncode == 0, done.stderr


ONE_OF_SEVERAL = """
from pathlib import Path

import pytest
import torch
import torch_xla.debug.metrics as metrics
from kunren.engine.backends import xla

from xla.test_training import losses, trained, weights

here = trained(Path("here"), gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="steps",
               save_steps=3)
xla.XlaBackend = xla.XlaProcessesBackend
several = trained(Path("several"), gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=3,
                  save_strategy="steps", save_steps=3)
assert type(several.engine).__name__ == "XlaProcessesBackend"
assert torch.distributed.get_backend() == "xla"
assert metrics.counter_value("xla::AllReduceInPlace") > 0
assert losses(several) == pytest.approx(losses(here), abs=1e-6)
torch.testing.assert_close(weights(several), weights(here), atol=1e-6, rtol=0)
assert several.state.log_history[-2]["eval_loss"] == pytest.approx(here.state.log_history[-2]["eval_loss"], abs=1e-6)
assert Path("several/checkpoint-6").is_dir()
"""


def child() -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parents[1]}"}
