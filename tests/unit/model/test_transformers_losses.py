"""The losses that are transformers' own, with it, without it, and with one that does not know them."""

from __future__ import annotations

import sys

import pytest

from kunren.base.registry import resolve
from kunren.model import transformers_losses

PLACE = "kunren.model.transformers_losses"


def test_with_transformers() -> None:
    from transformers.loss.loss_d_fine import DFineForObjectDetectionLoss

    assert resolve(f"{PLACE}:DFineForObjectDetectionLoss") is DFineForObjectDetectionLoss


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.loss.loss_utils", None)
    with pytest.raises(ImportError, match=r"ParakeetForTDTLoss is a loss of transformers.*pip install kunren\[hf\]"):
        resolve(f"{PLACE}:ParakeetForTDTLoss")


def test_with_a_version_that_does_not_have_it() -> None:
    with pytest.raises(ImportError, match="NewestLoss is a loss that this version of transformers does not have"):
        resolve(f"{PLACE}:NewestLoss")


def test_it_is_a_module_all_the_same() -> None:
    assert not hasattr(transformers_losses, "__path__")
