"""Deferred logits are the logits: whatever is done with them, and the loss of them is the chunked one."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import _global_optimizer_pre_hooks

from kunren.losses.functions.chunked_loss import defer_logits
from kunren.losses.functions.deferred_logits import DeferredLogits

CLASSES = 9
SETTINGS = {"chunked_loss": "on", "torch_compile": False, "deepspeed": None, "fsdp": [], "label_smoothing_factor": 0.0}


def arguments(**changes: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**SETTINGS, **changes})


class Head(nn.Module):
    """A head over hidden states (2, 5, 4), which are a parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden = nn.Parameter(torch.randn(2, 5, 4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.hidden * 1.0)
        return logits


Loss = Callable[[torch.Tensor], torch.Tensor]
LABELS = torch.tensor([[1, 2, -100, 3, 8], [0, 0, 4, -100, 5]])
FLAT = LABELS.flatten()
OFFSET = torch.linspace(-1, 1, CLASSES)[None]

# What stays deferred up to the loss, and what does not: the loss is right both times.
CHUNKED: dict[str, Loss] = {
    "view": lambda x: F.cross_entropy(x.view(-1, CLASSES), LABELS.view(-1)),
    "size": lambda x: nn.CrossEntropyLoss()(x.view(-1, x.size(-1)), LABELS.view(-1)),
    "flatten": lambda x: F.cross_entropy(x.flatten(0, 1), FLAT, reduction="sum") / 7,
    "float": lambda x: F.cross_entropy(input=x.float().reshape(-1, x.shape[-1]), target=FLAT.to(x.device)),
    "double": lambda x: F.cross_entropy(x.to(torch.float64).view(10, CLASSES), FLAT).float(),
    "shift": lambda x: F.cross_entropy(x[..., :-1, :].contiguous().view(-1, CLASSES), LABELS[:, 1:].flatten()),
    "rows": lambda x: F.cross_entropy(x[0], LABELS[0]) + F.cross_entropy(x[:, 1], LABELS[:, 1], reduction="sum"),
    "mask": lambda x: F.cross_entropy(x[LABELS != -100], LABELS[LABELS != -100]),
    "indices": lambda x: F.cross_entropy(x[torch.tensor([1, 1]), :, :].view(-1, CLASSES), LABELS[[1, 1]].view(-1)),
    "classes second": lambda x: F.cross_entropy(x.transpose(1, 2), LABELS),
    "permuted": lambda x: F.cross_entropy(x.permute(0, 2, 1), LABELS.clamp(min=0), ignore_index=0),
    "other ignored label": lambda x: F.cross_entropy(x.view(-1, CLASSES), FLAT.clamp(min=0), ignore_index=0),
    "offset": lambda x: F.cross_entropy((x + OFFSET).view(-1, CLASSES), FLAT),
    "detour": lambda x: F.cross_entropy(x.unsqueeze(0).squeeze(0).view(-1, CLASSES), FLAT),
}
COMPUTED: dict[str, Loss] = {
    "soft-capped": lambda x: F.cross_entropy((torch.tanh(x / 3) * 3).view(-1, CLASSES), FLAT),
    "scaled": lambda x: F.cross_entropy((x * 0.3).view(-1, CLASSES), FLAT),
    "smoothed": lambda x: F.cross_entropy(x.view(-1, CLASSES), FLAT, label_smoothing=0.1),
    "class weights": lambda x: F.cross_entropy(x.view(-1, CLASSES), FLAT, OFFSET[0].abs() + 1),
    "each by itself": lambda x: F.cross_entropy(x.view(-1, CLASSES), FLAT, reduction="none").sum(),
    "probabilities": lambda x: F.cross_entropy(x.view(-1, CLASSES), torch.full((10, CLASSES), 1 / CLASSES)),
    "negative log-likelihood": lambda x: F.nll_loss(F.log_softmax(x, -1).view(-1, CLASSES), FLAT),
    "some classes": lambda x: F.cross_entropy(x[..., :9][..., 1:].reshape(-1, CLASSES - 1), FLAT.clamp(max=7)),
    "last class": lambda x: x[..., -1].square().sum() + x[:, :, 0].sum(),
    "rounded": lambda x: F.cross_entropy(x.half().view(-1, CLASSES), FLAT).float(),
    "swapped and more": lambda x: x.transpose(1, 2).square().mean(),
    "regularised": lambda x: F.cross_entropy(x.view(-1, CLASSES), FLAT) + x.logsumexp(-1).square().mean(),
    "joined": lambda x: torch.cat([x, x]).square().mean(),
    "changed in place": lambda x: F.cross_entropy(x.mul_(2).view(-1, CLASSES), FLAT),
    "view of what is changed": lambda x: (x.view(-1, CLASSES), x.mul_(2))[0].square().mean(),
    "copy of what is changed": lambda x: (x.double(), x.mul_(2))[0].square().mean().float(),
    "item assigned": lambda x: (x.__setitem__((..., 0), 0.0), x.square().mean())[1],
    "own function": lambda x: Squares.apply(x).sum(),
    "detached": lambda x: (x.detach().square() * x).mean(),
    "first without a graph": lambda x: (without_graph(x), x.square().mean())[1],
    "gradient": lambda x: torch.autograd.grad(x.square().sum(), x, create_graph=True)[0].square().mean(),
}


def without_graph(logits: torch.Tensor) -> None:
    with torch.no_grad():
        logits.argmax(-1)


class Squares(torch.autograd.Function):
    """Called past `__torch_function__`, as kernels of other people are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, incoming: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.saved_tensors[0] * incoming


@pytest.mark.parametrize("name", [*CHUNKED, *COMPUTED])
@pytest.mark.parametrize("mode", ["plain", "autocast"])
def test_every_use_gives_the_loss_and_gradients_of_the_logits(
    name: str, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    loss_of = {**CHUNKED, **COMPUTED}[name]

    def run(model: Head) -> list[torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode == "autocast"):
            loss = loss_of(model())
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return [loss.detach(), *gradients]

    expected = run(Head())
    model = Head()
    undo = defer_logits(model, arguments(), training=True)
    found = run(model)
    undo()
    tolerance = 1e-5 if mode == "plain" else 3e-2
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.dtype is theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)
    assert len(caplog.records) == (name in COMPUTED)


def test_questions_about_them_are_answered_without_values(caplog: pytest.LogCaptureFixture) -> None:
    plain = Head()()
    model = Head()
    undo = defer_logits(model, arguments(), training=True)
    logits = model()
    undo()
    assert isinstance(logits, DeferredLogits)
    for ask in (
        lambda x: (x.shape, x.size(), x.size(-1), x.dim(), x.ndim, x.numel(), len(x), x.stride()),
        lambda x: (x.dtype, x.device, x.layout, x.requires_grad, x.is_leaf, x.is_contiguous(), x.is_floating_point()),
        lambda x: (x[:, :-1].stride(), x[:, :-1].is_contiguous(), x.transpose(1, 2).shape, x[:, 0].shape),
        lambda x: (torch.is_tensor(x), isinstance(x, torch.Tensor), x in {x: 1}),
    ):
        assert ask(logits) == ask(plain)
    with pytest.raises(RuntimeError, match="view"):
        logits[:, :-1].view(-1, CLASSES)
    assert caplog.records == []


def test_whoever_wants_values_gets_them_once(caplog: pytest.LogCaptureFixture) -> None:
    model = Head()
    plain = model().detach()
    undo = defer_logits(model, arguments(), training=True)
    logits, others = model(), model()
    undo()
    assert torch.equal(logits.detach().cpu(), plain)
    assert torch.equal(pickle.loads(pickle.dumps(logits.detach())), plain)
    assert (others.detach().numpy() == plain.numpy()).all()
    assert others.tolist() == plain.tolist() and str(plain[0, 0, 0].item())[:4] in repr(others.detach()[0, 0, 0])
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "torch.Tensor.cpu" in caplog.text and "chunked_loss='off'" in caplog.text


def test_logits_kept_over_a_step_are_those_before_it() -> None:
    model = Head()
    expected = model()[:, -1].detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    undo = defer_logits(model, arguments(), training=True)
    logits = model()
    last = logits[:, -1]
    F.cross_entropy(logits.view(-1, CLASSES), FLAT).backward()
    del logits
    optimizer.step()
    undo()
    assert torch.equal(last.detach(), expected)


def test_logits_that_cannot_be_computed_any_more_say_so() -> None:
    model = Head()
    undo = defer_logits(model, arguments(), training=True)
    logits = model()
    undo()
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        logits.argmax()


def test_only_what_is_asked_for_is_deferred_and_nothing_remains() -> None:
    model = Head()
    before = set(vars(model.head))
    undo = defer_logits(model, arguments(), training=True)
    within = defer_logits(model, arguments(), training=False)
    assert not isinstance(model(), DeferredLogits)  # an evaluation has no graph
    with torch.no_grad():
        assert isinstance(model(), DeferredLogits)
    within()
    with torch.no_grad():
        assert not isinstance(model(), DeferredLogits)
    assert isinstance(model(), DeferredLogits)
    assert not torch.func.vmap(lambda x: model.head(x))(model.hidden).isnan().any()
    undo()
    assert set(vars(model.head)) == before and not _global_optimizer_pre_hooks


def test_a_copy_or_a_pickle_does_not_defer() -> None:
    model = Head()
    undo = defer_logits(model, arguments(), training=True)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)]
    assert isinstance(model(), DeferredLogits)
    undo()
    with torch.no_grad():
        model.head.weight.zero_()
    for one in copies:
        assert type(one()) is torch.Tensor
        assert not torch.equal(one(), model())  # it is its own weight that the copy multiplies with


@pytest.mark.parametrize(
    "changes",
    [
        {"chunked_loss": "off"},
        {"chunked_loss": "auto"},  # which leaves small logits as they are
        {"torch_compile": True},
        {"deepspeed": {"zero": 1}},
        {"fsdp": ["full_shard"]},
    ],
)
def test_where_the_logits_stay_as_they_are(changes: dict[str, Any]) -> None:
    model = Head()
    undo = defer_logits(model, arguments(**changes), training=True)
    assert type(model()) is torch.Tensor
    undo()


@pytest.mark.parametrize("kind", ["compiled", "quantised", "wrapped", "frozen", "reentrant"])
def test_models_that_are_left_alone(kind: str) -> None:
    class Quantised(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).round()

    model = Head()
    if kind == "compiled":
        model.compile(backend="eager")
    elif kind == "quantised":
        model.head = Quantised(4, CLASSES)
    elif kind == "wrapped":
        plain = model.head.forward
        model.head.forward = lambda x: plain(x)  # type: ignore[method-assign]
    elif kind == "frozen":
        model.requires_grad_(False)
    undo = defer_logits(model, arguments(), training=True)
    if kind == "reentrant":  # a first pass without a graph, whose result gets one afterwards
        logits = torch.utils.checkpoint.checkpoint(model.head, model.hidden, use_reentrant=True)
    elif kind == "compiled":
        logits = model.head(model.hidden)
    else:
        logits = model()
    assert type(logits) is torch.Tensor
    undo()


def test_the_output_layer_of_a_model_that_names_none() -> None:
    class Blocks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 4)) for _ in range(2))
            self.head = nn.Linear(4, 32)
            self.narrow = nn.Linear(32, 2)

    model = Blocks()
    undo = defer_logits(model, arguments(), training=True)
    assert [name for name, module in model.named_modules() if "forward" in vars(module)] == ["head"]
    undo()
