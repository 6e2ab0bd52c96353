"""A collator of one's own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kunren.collators import DataCollatorMixin


def test_the_kind_of_arrays_decides_the_method() -> None:
    class Mine(DataCollatorMixin):
        return_tensors = "pt"

        def torch_call(self, features: Any) -> Any:
            return {"x": torch.tensor(features)}

    assert Mine()([1, 2])["x"].tolist() == [1, 2]
    with pytest.raises(NotImplementedError, match="Mine makes no batches for return_tensors='np'"):
        Mine()([1, 2], return_tensors="np")
    with pytest.raises(ValueError, match="return_tensors is 'tf'"):
        Mine()([1, 2], return_tensors="tf")
