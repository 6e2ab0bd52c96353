"""NEFTune's noise: that of transformers, in training only, and gone afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from invariants.runs import arguments
from parity import models, rows

import kunren
from kunren.model.features.embedding_noise import add_embedding_noise


def test_noise_in_training_only_and_gone_afterwards() -> None:
    model = models.llama()
    embeddings, ids = model.get_input_embeddings(), torch.arange(8).view(2, 4)
    plain = embeddings(ids)
    take_away = add_embedding_noise(model, alpha=5.0)
    model.eval()
    assert torch.equal(embeddings(ids), plain)
    model.train()
    noise = embeddings(ids) - plain
    size = 5.0 / (4 * 16) ** 0.5
    assert 0.5 * size < noise.abs().max() <= size * (1 + 1e-6)
    assert not torch.equal(embeddings(ids), embeddings(ids))
    take_away()
    assert torch.equal(embeddings(ids), plain)


def test_noise_is_that_of_transformers() -> None:
    from transformers.integrations import neftune

    model, theirs = models.llama(), models.llama()
    add_embedding_noise(model, alpha=5.0)
    embeddings = theirs.get_input_embeddings()
    embeddings.neftune_noise_alpha = 5.0
    embeddings.register_forward_hook(neftune.neftune_post_forward_hook)
    results = []
    for one in (model, theirs):
        one.train()
        torch.manual_seed(3)
        results.append(one.get_input_embeddings()(torch.arange(10).view(2, 5)))
    assert torch.equal(*results)


def test_noise_needs_embeddings() -> None:
    with pytest.raises(ValueError, match="Points has none"):
        add_embedding_noise(models.Points(), alpha=5.0)


@pytest.mark.parametrize("fails", [False, True])
def test_training_takes_the_noise_away(fails: bool, tmp_path: Path) -> None:
    class Failing(kunren.TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            if fails:
                raise KeyboardInterrupt

    model = models.llama()
    trainer = kunren.Trainer(
        model=model,
        args=arguments(tmp_path, neftune_noise_alpha=5.0, max_steps=1),
        train_dataset=rows.tokens(8),
        callbacks=[Failing()],
    )
    if fails:
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    else:
        trainer.train()
    model.train()
    embeddings, ids = model.get_input_embeddings(), torch.arange(8).view(2, 4)
    assert torch.equal(embeddings(ids), embeddings(ids))
