"""Liger's kernels are asked for where they can run; where not, what is missing is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.model.features.liger_kernels import use_liger_kernels

GPU = torch.device("cuda")


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What a stand-in for the package, which imports on no machine without Triton, is called with."""
    calls: list[dict[str, Any]] = []
    package = SimpleNamespace(_apply_liger_kernel_to_instance=lambda **given: calls.append(given))
    monkeypatch.setitem(sys.modules, "liger_kernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    return calls


def test_a_device_without_triton_is_named(tmp_path: Path, applied: list[dict[str, Any]]) -> None:
    trainer = kunren.Trainer(
        model=models.llama(), args=arguments(tmp_path, use_liger_kernel=True), train_dataset=rows.tokens(8)
    )
    with pytest.raises(ValueError, match="use_liger_kernel=True needs a GPU.*'cpu'"):
        trainer.train()
    assert applied == []


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.delitem(sys.modules, "liger_kernel.transformers", raising=False)
    with pytest.raises(ImportError, match="pip install liger-kernel"):
        use_liger_kernels(models.llama(), GPU, None)


def test_the_package_gets_the_model_under_its_wrappers_and_the_kernels_to_use(applied: list[dict[str, Any]]) -> None:
    model = models.llama()
    use_liger_kernels(torch.compile(model, backend="eager"), GPU, {"rope": False})
    use_liger_kernels(model, GPU, None)
    assert applied == [{"model": model, "rope": False}, {"model": model}]


def test_a_model_that_liger_does_not_know_stays_as_it_is(
    applied: list[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    use_liger_kernels(models.Points(), GPU, None)
    assert applied == []
    assert "Points is no model of transformers" in caplog.text
