"""`_VALID_DICT_FIELDS`: fields whose JSON text is read, to which subclasses add their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from kunren import TrainingArguments


@dataclass
class Own(TrainingArguments):
    """As TRL and sentence-transformers have it."""

    _VALID_DICT_FIELDS: ClassVar[list[str]] = [*TrainingArguments._VALID_DICT_FIELDS, "prompts", "model_init_kwargs"]

    prompts: Any = None
    model_init_kwargs: dict[str, Any] | str | None = field(default=None)


def test_json_text_of_a_field_of_a_subclass() -> None:
    args = Own("out", model_init_kwargs='{"dtype": "bfloat16", "layers": 2}', lr_scheduler_kwargs=' {"num_cycles": 2}')
    assert args.model_init_kwargs == {"dtype": "bfloat16", "layers": 2}
    assert args.lr_scheduler_kwargs == {"num_cycles": 2}


@pytest.mark.parametrize("value", ["query: ", "", None, {"a": "{b}"}, ["{"]])
def test_everything_else_stays_as_it_is(value: Any) -> None:
    assert Own("out", prompts=value).prompts == value


def test_text_that_is_no_json_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="model_init_kwargs='{dtype}' cannot work: it is not valid JSON"):
        Own("out", model_init_kwargs="{dtype}")


def test_transformers_names_are_there() -> None:
    transformers = pytest.importorskip("transformers")
    assert set(transformers.TrainingArguments._VALID_DICT_FIELDS) == set(TrainingArguments._VALID_DICT_FIELDS)
