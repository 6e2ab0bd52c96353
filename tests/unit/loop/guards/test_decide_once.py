"""A decision for all, in a run of one process; and the resume that needs one: "auto"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from distributed.tasks_of_ranks import trained

from kunren import TrainingArguments
from kunren.engine.choose import choose
from kunren.loop.guards.decide_once import decided_once


def test_alone_it_is_what_is_found_or_raised(tmp_path: Path) -> None:
    engine = choose(TrainingArguments(str(tmp_path), use_cpu=True))
    assert decided_once(engine, lambda: "found") == "found"
    error = KeyError("as it was")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as raised:
        decided_once(engine, fail)
    assert raised.value is error


@pytest.mark.parametrize("word", ["auto", "AUTO"])
def test_auto_begins_and_goes_on(word: str, tmp_path: Path) -> None:
    def run(**options: Any) -> int:
        return len(trained(tmp_path, save_strategy="steps", save_steps=4, **options)["losses"])

    assert run(resume=word) == 8
    assert run(resume_from_checkpoint=word, max_steps=10) == 2
    (tmp_path / "checkpoint-10" / "model.safetensors").write_bytes(b"cut")
    assert run(resume=word, max_steps=10) == 2  # the damaged one is passed over
