"""Memory that runs out in an evaluation: smaller pieces, but not where all processes run each forward pass together."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kunren.loop.guards.out_of_memory import PiecesThatFit

CPU = torch.device("cpu")


def predicted(may_split: bool) -> list[int]:
    done: list[int] = []

    def predict(part: Any, is_last: bool) -> None:
        if len(part["x"]) > 2:
            raise torch.OutOfMemoryError("of this test")
        done.append(len(part["x"]))

    fitting = PiecesThatFit(CPU, lambda event, **details: None, may_split)
    fitting.predict(predict, {"x": torch.ones(5)}, True, lambda: sum(done))
    return done


def test_a_batch_is_predicted_in_pieces() -> None:
    assert predicted(True) == [1, 2, 2]


def test_not_where_the_others_would_wait() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        predicted(False)
