"""A hub for each test, in the place of the real one, and trainings small enough to be pushed in a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import transformers.utils.hub
from huggingface_hub import constants
from parity import models, rows
from unit.hub.hub_server import TOKEN, HubServer

import kunren
from kunren.hub import pusher


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The server, asked by this process and by those that it starts, which are logged in to it."""
    server = HubServer()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)
    monkeypatch.setattr(pusher, "RETRY_AFTER_SECONDS", (0.05,))
    yield server
    server.close()
    huggingface_hub.close_session()


@pytest.fixture
def build(tmp_path: Path) -> Any:
    """A Trainer of a tiny BERT, of kunren or of another library with the same names."""

    def make(library: Any = kunren, cls: Any = None, trainer: dict[str, Any] | None = None, **settings: Any) -> Any:
        arguments = {
            "output_dir": str(tmp_path / "model"),
            "push_to_hub": True,
            "max_steps": 4,
            "save_strategy": "steps",
            "save_steps": 2,
            "logging_steps": 1,
            "per_device_train_batch_size": 4,
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            **settings,
        }
        return (cls or library.Trainer)(
            model=models.bert(),
            args=library.TrainingArguments(**arguments),
            train_dataset=rows.sentences(16),
            **{"eval_dataset": rows.sentences(8), **(trainer or {})},
        )

    return make
