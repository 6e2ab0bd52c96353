"""The arithmetic of several devices in one process: the loss and the gradients are those of the whole batch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from kunren import Trainer, TrainingArguments
from kunren.engine.backends.data_parallel import DataParallelBackend, DevicesTogether, divided, joined
from kunren.engine.backends.plain import PlainBackend
from kunren.model.signature import unwrap

CPU = torch.device("cpu")


class Tagger(nn.Module):
    def __init__(self, takes_count: bool) -> None:
        super().__init__()
        self.takes_count = takes_count
        generator = torch.Generator().manual_seed(1)
        self.head = nn.Embedding(7, 5)
        self.head.weight.data.normal_(generator=generator)

    def forward(self, input_ids: Any, labels: Any, num_items_in_batch: Any = None) -> dict[str, Any]:
        logits = self.head(input_ids)
        total = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
        own = (labels != -100).sum()
        return {
            "loss": total / (num_items_in_batch if self.takes_count and num_items_in_batch else own),
            "logits": logits,
        }


def batch_of(lengths: list[int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    tokens = torch.randint(5, (len(lengths), 4), generator=generator)
    counted = torch.arange(4) < torch.tensor(lengths)[:, None]
    return {"input_ids": tokens, "labels": torch.where(counted, tokens, -100)}


def on_devices(model: nn.Module, batch: dict[str, Any], devices: int) -> Any:
    parts = divided((), batch, devices)
    return joined([model(*part.inputs, **part.keywords) for part in parts], [part.weight for part in parts], CPU)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=9).filter(any),
    devices=st.integers(2, 4),
    takes_count=st.booleans(),
    count=st.sampled_from([None, 11, torch.tensor(11.0)]),
)
def test_loss_and_gradients_are_those_of_one_device(
    lengths: list[int], devices: int, takes_count: bool, count: Any
) -> None:
    model, batch = Tagger(takes_count), batch_of(lengths) | ({} if count is None else {"num_items_in_batch": count})
    found = {}
    for run in ("one", "several"):
        outputs = model(**batch) if run == "one" else on_devices(model, batch, devices)
        model.zero_grad()
        outputs["loss"].backward()
        found[run] = (outputs["loss"].item(), outputs["logits"], model.head.weight.grad.clone())
    assert found["several"][0] == pytest.approx(found["one"][0], rel=1e-5)
    torch.testing.assert_close(found["several"][2], found["one"][2])
    assert torch.equal(found["several"][1], found["one"][1])


def test_outputs_keep_their_form() -> None:
    transformers = pytest.importorskip("transformers.modeling_outputs")
    parts = [
        transformers.CausalLMOutputWithPast(
            loss=torch.tensor(float(index)),
            logits=torch.full((2, 3), index),
            hidden_states=(torch.ones(2), torch.ones(2)),
        )
        for index in range(2)
    ]
    whole = joined(parts, [0.25, 0.75], CPU)
    assert type(whole) is type(parts[0])
    assert whole.loss == 0.75 and whole.logits.shape == (4, 3) and whole.past_key_values is None
    assert [state.shape for state in whole.hidden_states] == [(4,), (4,)]
    assert joined([{"cache": object(), "n": 1}] * 2, [0.5, 0.5], CPU) == {"n": 1}
    assert joined([torch.ones(1, 2)] * 3, [1 / 3] * 3, CPU).shape == (3, 2)


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"x": torch.ones(4, 2), "lengths": torch.ones(3)}, r"tensors of \[3, 4\] rows"),
        ({"x": torch.ones(4, 2), "boxes": [{}]}, "a list"),
    ],
)
def test_what_has_no_rows_is_refused(batch: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        divided((), batch, 2)


def test_a_short_batch_takes_fewer_devices() -> None:
    assert [len(part.inputs[0]) for part in divided((torch.ones(5, 2),), {}, 4)] == [2, 2, 1]
    assert [part.weight for part in divided((torch.ones(5, 2),), {"scale": torch.tensor(2.0)}, 4)] == [0.4, 0.4, 0.2]


def test_what_cannot_be_right_is_refused() -> None:
    args = SimpleNamespace(device=CPU, n_gpu=2, torch_compile=False)
    with pytest.raises(ValueError, match="2 GPUs are used, and the model trains on the CPU"):
        DataParallelBackend(args)
    args = SimpleNamespace(device=torch.device("cuda", 0), n_gpu=2, torch_compile=True)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node=2"):
        DataParallelBackend(args)


def test_the_user_finds_the_model() -> None:
    model = Tagger(False)
    assert unwrap(DevicesTogether(model, [0, 1], ["labels"])) is model


class TwoParts(PlainBackend):
    """As with two devices, whose copies of the model are the model."""

    def prepare(self, model: nn.Module, optimizer: Any) -> nn.Module:
        together = DevicesTogether(super().prepare(model, optimizer), [0, 1], ["labels"])
        together.device_ids, together.src_device_obj = [0, 1], CPU
        together.replicate = lambda module, devices: [module] * len(devices)  # type: ignore[method-assign]
        together.parallel_apply = lambda replicas, inputs, named: [  # type: ignore[method-assign]
            replica(*given, **of_replica) for replica, given, of_replica in zip(replicas, inputs, named, strict=True)
        ]
        return together


@pytest.mark.parametrize("takes_count", [False, True])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_training_has_the_numbers_of_one_device(tmp_path: Path, takes_count: bool, accumulation: int) -> None:
    batch = batch_of([3, 0, 4, 1, 0, 0, 2, 4, 1, 1, 0, 3])
    rows = [{name: value[index] for name, value in batch.items()} for index in range(12)]
    found = []
    for kind in (PlainBackend, TwoParts):

        class OnBackend(Trainer):
            def create_accelerator_and_postprocess(self, kind: type[PlainBackend] = kind) -> None:
                super().create_accelerator_and_postprocess()
                self.engine = kind(self.args)

        args = TrainingArguments(
            str(tmp_path / kind.__name__),
            per_device_train_batch_size=4,
            per_device_eval_batch_size=5,
            gradient_accumulation_steps=accumulation,
            num_train_epochs=2,
            learning_rate=0.1,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
            run_report=False,
        )
        model = Tagger(takes_count)
        model.accepts_loss_kwargs = takes_count
        trainer = OnBackend(model, args, train_dataset=rows, eval_dataset=rows)
        trainer.train()
        losses = [log.get("loss", log.get("eval_loss")) for log in trainer.state.log_history[:-1]]
        found.append((losses, model.head.weight.detach(), trainer.predict(rows).predictions))
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[0][1])
    torch.testing.assert_close(found[1][2], found[0][2])
