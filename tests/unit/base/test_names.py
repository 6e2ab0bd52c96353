"""Registries, nearest names, and the value types."""

from __future__ import annotations

import pytest

from kunren.arguments.choices import IntervalStrategy, NameEnum, OptimizerNames, SchedulerType
from kunren.base.names import closest_name, did_you_mean
from kunren.base.registry import resolve
from kunren.base.types import EvalPrediction, TrainOutput


def test_the_nearest_name_is_proposed() -> None:
    known = ["learning_rate", "weight_decay", "num_train_epochs"]
    assert closest_name("learningrate", known) == "learning_rate"
    assert did_you_mean("num_epochs", known) == " Did you mean 'num_train_epochs'?"


def test_nothing_is_proposed_where_nothing_is_near() -> None:
    assert closest_name("zzz", ["learning_rate"]) is None
    assert did_you_mean("zzz", []) == ""


def test_entry_is_resolved_to_what_it_names() -> None:
    assert resolve("kunren.base.types:TrainOutput") is TrainOutput


def test_entry_is_imported_on_first_use_only() -> None:
    assert resolve("math:pi") > 3
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        resolve("kunren.no_such_module:thing")


@pytest.mark.parametrize("enum", [IntervalStrategy, SchedulerType, OptimizerNames])
def test_enums_have_the_values_of_transformers(enum: type[NameEnum]) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.training_args import OptimizerNames as TheirOptimizers

    theirs = TheirOptimizers if enum is OptimizerNames else getattr(transformers, enum.__name__, None)
    theirs = theirs or getattr(transformers.trainer_utils, enum.__name__)
    assert {item.name: item.value for item in enum} == {item.name: item.value for item in theirs}


def test_enum_is_its_value() -> None:
    assert IntervalStrategy("steps") == "steps"
    assert str(SchedulerType.COSINE) == "cosine"
    assert f"{SchedulerType.COSINE}" == "cosine"


def test_unknown_value_of_an_enum_names_choices_and_nearest() -> None:
    with pytest.raises(ValueError, match=r"'step' is not a valid IntervalStrategy: .*epoch.*Did you mean 'steps'"):
        IntervalStrategy("step")


def test_prediction_unpacks_into_what_is_there() -> None:
    predictions, labels = EvalPrediction([1], [2])
    assert (predictions, labels) == ([1], [2])
    whole = EvalPrediction([1], [2], inputs=[3], losses=[4])
    assert tuple(whole) == ([1], [2], [3], [4])
    assert (whole[0], whole[-1], len(whole)) == ([1], [4], 4)
    assert tuple(EvalPrediction([1], [2], losses=[4])) == ([1], [2], [4])
    assert (whole.predictions, whole.label_ids, whole.inputs, whole.losses) == ([1], [2], [3], [4])
