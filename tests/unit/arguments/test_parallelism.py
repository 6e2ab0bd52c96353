"""Sizes in `parallelism_config` that contradict what is beside them are refused with what was given."""

from __future__ import annotations

import pytest

from kunren import TrainingArguments


def refusal(config: dict[str, int], fsdp: bool = True) -> str:
    with pytest.raises(ValueError) as raised:
        TrainingArguments("out", fsdp=fsdp, parallelism_config=config)
    return str(raised.value)


def test_groups_of_one_are_refused_by_what_is_given() -> None:
    told = refusal({"dp_replicate_size": 2, "dp_shard_size": 1})
    assert "parallelism_config={'dp_replicate_size': 2, 'dp_shard_size': 1}" in told
    assert "Raise dp_shard_size to 2 or more" in told
    told = refusal({"dp_replicate_size": 2})
    assert "parallelism_config={'dp_replicate_size': 2} " in told and "Add how many a group has, dp_shard_size" in told


def test_groups_that_divide_the_weights_take_fsdp() -> None:
    assert "set fsdp=True" in refusal({"dp_replicate_size": 2, "dp_shard_size": 2}, fsdp=False)
