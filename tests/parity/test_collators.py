"""Every collator makes transformers' batches bit for bit: values, types, and the random numbers drawn."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.data import data_collator as theirs

from kunren import collators as ours
from kunren.collators.columns import Column, column_collation
from parity import models
from parity.tokenizer import make_tokenizer

TOKENIZERS = {side: make_tokenizer(padding_side=side) for side in ("right", "left")}
NAMES = [name for name in ours.__all__ if name.startswith("DataCollator") and name != "DataCollator"]

pytestmark = pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays:UserWarning")

examples = settings(deadline=None, max_examples=40)
sides = st.sampled_from(["left", "right"])
kinds = st.sampled_from(["pt", "np"])
sources = st.sampled_from([list, numpy.array, torch.tensor])
multiples = st.sampled_from([None, 1, 4, 8])
seeds = st.sampled_from([None, 0, 7])
paddings = st.sampled_from(
    [{}, {"pad_to_multiple_of": 4}, {"padding": "longest"}, {"padding": "max_length", "max_length": 9}]
)
row_lengths = st.lists(st.integers(1, 9), min_size=1, max_size=4)
token_rows = st.lists(st.lists(st.integers(0, 54), min_size=1, max_size=9), min_size=1, max_size=4)


def seed_all() -> None:
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)


def drawn() -> list[float]:
    """The next number of each global generator: equal if as many were drawn before."""
    return [random.random(), numpy.random.rand(), torch.rand(1).item()]


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert set(got) == set(wanted)
    for name, value in wanted.items():
        assert type(got[name]) is type(value), name
        if hasattr(value, "dtype"):
            assert (got[name].dtype, tuple(got[name].shape)) == (value.dtype, tuple(value.shape)), name
            assert got[name].tolist() == value.tolist(), name
        else:
            assert got[name] == value, name


def check(name: str, rows: Sequence[Any], kind: str, *arguments: Any, times: int = 1, **options: Any) -> Any:
    """Both collators on the same rows from the same random numbers; the rows stay as they were."""
    mine = getattr(ours, name)(*arguments, **options)
    other = getattr(theirs, name)(*arguments, **options)
    for _ in range(times):
        before = copy.deepcopy(rows)
        seed_all()
        got = mine(rows, kind)
        after = drawn()
        assert repr(rows) == repr(before)
        seed_all()
        same(got, other(before, kind))
        assert after == drawn()
    return mine


def check_columns(collator: Any, rows: Sequence[dict[str, Any]], kind: str) -> None:
    """From columns the batch is that from rows."""
    collator.return_tensors = kind
    seed_all()
    wanted = collator(rows)
    seed_all()
    got = column_collation(collator)(columns_of(rows))  # type: ignore[misc]
    same(got, wanted)
    if (equal := equal_of_transformers(collator)) is not None:
        seed_all()
        from_theirs = equal(columns_of(rows))
        if from_theirs is not None:
            same(from_theirs, wanted)


def equal_of_transformers(collator: Any) -> Callable[[Any], Any] | None:
    other = getattr(theirs, type(collator).__name__)
    fields = {field.name: getattr(collator, field.name) for field in dataclasses.fields(collator)}
    if other is theirs.DataCollatorWithFlattening:
        del fields["model"]
    return column_collation(other(**fields))


def columns_of(rows: Sequence[dict[str, Any]]) -> dict[str, Column]:
    columns = {}
    for name, first in rows[0].items():
        values = [row[name] for row in rows]
        if numpy.ndim(first) == 0:
            columns[name] = Column(numpy.array(values))
        else:
            lengths = numpy.array([len(value) for value in values])
            columns[name] = Column(numpy.concatenate([ours.to_numpy(value) for value in values]), lengths)
    return columns


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_methods_are_those_of_transformers(name: str) -> None:
    mine, other = getattr(ours, name), getattr(theirs, name)
    parameters = inspect.signature(mine).parameters
    for parameter in inspect.signature(other).parameters.values():
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            assert parameters[parameter.name].default == parameter.default, parameter.name
    assert dataclasses.is_dataclass(mine) == dataclasses.is_dataclass(other)
    for method, function in vars(other).items():
        if inspect.isfunction(function) and not method.startswith("_") or method == "__call__":
            mine_of_that_name = inspect.signature(getattr(mine, method)).parameters
            assert list(mine_of_that_name) == list(inspect.signature(function).parameters), method


@examples
@given(
    tokens=token_rows, side=sides, kind=kinds, source=sources, options=paddings,
    name=st.sampled_from(["label", "labels", None]),
)  # fmt: skip
def test_token_classification(tokens: Any, side: str, kind: str, source: Any, options: Any, name: str | None) -> None:
    rows = [{"input_ids": ids} for ids in tokens]
    if name is not None:
        rows = [{"input_ids": ids, name: source([token % 3 for token in ids])} for ids in tokens]
    mine = check("DataCollatorForTokenClassification", rows, kind, TOKENIZERS[side], label_pad_token_id=-1, **options)
    check_columns(mine, rows, kind)


@examples
@given(
    tokens=token_rows, targets=row_lengths, side=sides, kind=kinds, source=st.sampled_from([list, numpy.array]),
    options=paddings, with_model=st.booleans(), name=st.sampled_from(["label", "labels"]),
)  # fmt: skip
def test_seq2seq(
    tokens: Any, targets: Any, side: str, kind: str, source: Any, options: Any, with_model: bool, name: str
) -> None:
    rows = [
        {"input_ids": ids, name: source(list(range(5, 5 + count)))} for ids, count in zip(tokens, targets, strict=False)
    ]
    model = T5 if with_model and kind == "pt" else None
    mine = check("DataCollatorForSeq2Seq", rows, kind, TOKENIZERS[side], model, **options)
    check_columns(mine, rows, kind)


T5 = transformers.T5ForConditionalGeneration(
    transformers.T5Config(
        vocab_size=55, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
)


@examples
@given(count=st.integers(1, 3), kind=kinds, labels=st.sampled_from([None, "absent"]))
def test_seq2seq_without_targets(count: int, kind: str, labels: Any) -> None:
    rows = [{"input_ids": [5] * (index + 1), "labels": None} for index in range(count)]
    if labels == "absent":
        rows = [{"input_ids": row["input_ids"]} for row in rows]
    check("DataCollatorForSeq2Seq", rows, kind, TOKENIZERS["right"], T5)


@examples
@given(
    tokens=token_rows, side=sides, kind=kinds, multiple=multiples, seed=seeds,
    form=st.sampled_from(["rows", "rows with masks", "lists", "arrays", "tensors"]),
    probability=st.sampled_from([0.0, 0.15, 0.5, 1.0]),
    shares=st.sampled_from([(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.5, 0.4), (0.5, 0.0)]),
)  # fmt: skip
def test_masked_language_modelling(
    tokens: Any, side: str, kind: str, multiple: Any, seed: Any, form: str, probability: float, shares: Any
) -> None:
    rows: list[Any] = [{"input_ids": ids, "label": len(ids)} for ids in tokens]
    if form == "rows with masks":
        rows = [
            {
                "input_ids": ids,
                "special_tokens_mask": [int(token % 4 == 0) for token in ids],
                "attention_mask": [1] * len(ids),
            }
            for ids in tokens
        ]
    elif form != "rows":
        convert = {"lists": list, "arrays": numpy.array, "tensors": torch.tensor}[form]
        if kind == "np" and form == "tensors":
            convert = numpy.array
        rows = [convert(ids) for ids in tokens]
    mine = check(
        "DataCollatorForLanguageModeling", rows, kind, TOKENIZERS[side], times=2, mlm_probability=probability,
        mask_replace_prob=shares[0], random_replace_prob=shares[1], pad_to_multiple_of=multiple, seed=seed,
    )  # fmt: skip
    if form.startswith("rows") and seed is None:
        check_columns(mine, rows, kind)


@examples
@given(
    words=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=3),
    kind=kinds, seed=seeds, with_special=st.booleans(), probability=st.sampled_from([0.15, 0.6]),
)  # fmt: skip
def test_whole_words(words: Any, kind: str, seed: Any, with_special: bool, probability: float) -> None:
    """transformers takes rows of one length only, so they are cut to it."""
    rows = []
    for row in words:
        offsets, end = [(0, 0)], -1
        for pieces in row:
            end += 1
            for _ in range(pieces):
                offsets.append((end, end + 2))
                end += 2
        offsets.append((0, 0))
        ids = [2, *(5 + index for index in range(len(offsets) - 2)), 3]
        rows.append({"input_ids": ids, "offset_mapping": offsets})
    length = min(len(row["input_ids"]) for row in rows)
    rows = [{name: values[:length] for name, values in row.items()} for row in rows]
    if with_special:
        rows = [{**row, "special_tokens_mask": [int(token < 5) for token in row["input_ids"]]} for row in rows]
    mine = check(
        "DataCollatorForLanguageModeling", rows, kind, TOKENIZERS["right"], times=2, whole_word_mask=True,
        mask_replace_prob=1.0, random_replace_prob=0.0, mlm_probability=probability, seed=seed,
    )  # fmt: skip
    if seed is None:
        check_columns(mine, rows, kind)


@examples
@given(
    tokens=st.lists(st.lists(st.integers(1, 54), min_size=1, max_size=9), min_size=1, max_size=4), side=sides,
    kind=kinds, multiple=multiples, form=st.sampled_from(["rows", "masks", "padded", "lists"]),
)  # fmt: skip
def test_causal_language_modelling(tokens: Any, side: str, kind: str, multiple: Any, form: str) -> None:
    rows: list[Any] = [{"input_ids": ids} for ids in tokens]
    if form == "masks":
        rows = [{"input_ids": ids, "attention_mask": [1] * len(ids), "label": 1} for ids in tokens]
    elif form == "padded":  # before, by somebody who kept no mask
        rows = [{"input_ids": ids + [0, 0]} for ids in tokens]
    elif form == "lists":
        rows = list(tokens)
    mine = check(
        "DataCollatorForLanguageModeling", rows, kind, TOKENIZERS[side], mlm=False, pad_to_multiple_of=multiple
    )
    if form != "lists":
        check_columns(mine, rows, kind)


@examples
@given(
    tokens=st.lists(st.lists(st.integers(0, 54), min_size=2, max_size=9), min_size=1, max_size=3), side=sides,
    form=st.sampled_from([list, numpy.array, torch.tensor, lambda ids: {"input_ids": ids}]),
    probability=st.sampled_from([1 / 6, 1 / 2, 1.0]), span=st.integers(1, 5),
)  # fmt: skip
def test_permutation_language_modelling(tokens: Any, side: str, form: Any, probability: float, span: int) -> None:
    """With torch; for numpy transformers hides spans that are longer than allowed."""
    even = max(map(len, tokens)) // 2 * 2
    rows = [form(ids[:even]) for ids in tokens]
    check(
        "DataCollatorForPermutationLanguageModeling", rows, "pt", TOKENIZERS[side], plm_probability=probability,
        max_span_length=span,
    )  # fmt: skip


@examples
@given(
    lengths=st.lists(st.lists(st.integers(1, 7), min_size=3, max_size=3), min_size=1, max_size=3), side=sides,
    options=paddings, name=st.sampled_from(["label", "labels"]),
)  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_multiple_choice(lengths: Any, side: str, options: Any, name: str) -> None:
    rows = [
        {"input_ids": [[5] * count for count in row], "token_type_ids": [[1] * count for count in row], name: index % 3}
        for index, row in enumerate(lengths)
    ]
    check("DataCollatorForMultipleChoice", rows, "pt", TOKENIZERS[side], **options)


@examples
@given(
    tokens=st.lists(st.lists(st.integers(0, 54), max_size=9), min_size=1, max_size=4), kind=kinds, source=sources,
    options=st.fixed_dictionaries(
        {},
        optional={
            "return_position_ids": st.booleans(),
            "return_flash_attn_kwargs": st.booleans(),
            "return_seq_idx": st.booleans(),
            "separator_id": st.integers(-100, 0),
            "position_ids_start": st.integers(0, 3),
        },
    ),
    with_labels=st.booleans(),
)  # fmt: skip
def test_flattening(tokens: Any, kind: str, source: Any, options: Any, with_labels: bool) -> None:
    if not any(tokens):
        tokens = [*tokens, [5]]
    rows = [{"input_ids": source(ids), "token_type_ids": [0] * len(ids)} for ids in tokens]
    if with_labels:
        rows = [{**row, "labels": source([token + 1 for token in ids])} for row, ids in zip(rows, tokens, strict=True)]
    mine = check("DataCollatorWithFlattening", rows, kind, **options)
    if all(tokens) and source is list:
        check_columns(mine, rows, kind)


def test_a_roberta_is_asked_where_its_positions_begin() -> None:
    tiny = {
        "vocab_size": 55,
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    roberta = transformers.RobertaModel(transformers.RobertaConfig(**tiny, max_position_embeddings=12)).eval()
    for model, start in ((roberta, 2), (models.bert(), 0), (models.llama(), 0)):
        assert ours.DataCollatorWithFlattening(model=model).position_ids_start == start
    batch = ours.DataCollatorWithFlattening(model=roberta)([{"input_ids": [5, 6, 7]}])
    told = roberta(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).last_hidden_state
    assert torch.equal(told, roberta(input_ids=batch["input_ids"]).last_hidden_state)
