"""The table of parameter groups: what it counts, and how it is read."""

from __future__ import annotations

import torch
from torch import nn

from kunren.optim.groups.table import summary, table_of


def test_it_counts_names_weights_rates_and_what_is_frozen() -> None:
    model = nn.ModuleDict({"body": nn.Linear(4, 3), "head": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(
        [{"params": [model["body"].weight, model["head"].weight], "weight_decay": 0.1},
         {"params": [model["head"].bias], "lr": 0.5, "rank": 4}],
        lr=0.25,
    )  # fmt: skip
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)  # the rate at the top counts, not that of now
    table = table_of(torch.compile(model, backend="eager"), optimizer.param_groups)
    first, second = table.groups
    assert first.names == ("body.weight", "head.weight")
    assert (first.weights, first.learning_rate, first.weight_decay, first.further) == (18, 0.25, 0.1, "")
    assert (second.weights, second.learning_rate, second.weight_decay, second.further) == (2, 0.5, 0.0, "rank=4")
    assert table.frozen == 3
    lines = [line.split() for line in str(table).splitlines()]
    assert lines == [
        ["group", "parameters", "tensors", "weights", "rate", "decay", "options"],
        ["0", "body.weight,", "head.weight", "2", "18", "0.25", "0.1"],
        ["1", "head.bias", "1", "2", "0.5", "0", "rank=4"],
        ["frozen", "3"],
    ]
    assert [line.split()[-1] for line in table.text(all_names=True).splitlines()] == [
        "options", "0.1", "head.weight", "rank=4", "3",
    ]  # fmt: skip


def test_names_are_summed_up() -> None:
    layers = [f"model.layers.{place}.{kind}.weight" for place in range(2) for kind in ("q", "k", "v")]
    assert summary(layers[:1]) == "model.layers.0.q.weight"
    assert summary(layers[::3]) == "model.layers.*.q.weight"
    assert summary(layers[:3]) == "model.layers.0.{q.weight, k.weight, 1 more}"
    assert summary([*layers, "head.weight"]) == "model.layers.*.q.weight, model.layers.*.k.weight, 2 more"
