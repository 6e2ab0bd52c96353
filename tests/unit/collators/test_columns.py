"""Batches made from columns are those made from rows, by kunren and by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy
import pyarrow
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren import collators
from kunren.base.registry import resolve
from kunren.collators.columns import Column, column_collation, takes_columns, token_column
from kunren.collators.token_padding import pad_at_once
from kunren.data.readers.fetch import fetch
from kunren.data.wrappers.arrow import FetchByColumns, fetch_by_columns

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
NUMBERS = (*INTEGERS, "float32", "float64", "bool_")


def a_tokenizer(folder: Path) -> Any:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(50))]
    (folder / "vocab.txt").write_text("\n".join(words))
    return transformers.BertTokenizerFast(str(folder / "vocab.txt"))


def test_every_name_of_the_package_leads_somewhere() -> None:
    for name in collators.__all__:
        assert getattr(collators, name).__module__.startswith(("kunren.collators.", "collections.abc"))
    for name, function in collators.EQUALS_OF_TRANSFORMERS.items():
        assert hasattr(transformers, name) or hasattr(transformers.data.data_collator, name)
        assert callable(resolve(f"kunren.collators.{function}"))
    with pytest.raises(AttributeError, match=r"module 'kunren\.collators' has no attribute 'DataCollatorForNothing'"):
        collators.DataCollatorForNothing  # noqa: B018


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return a_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer that each example sets as it likes."""
    return a_tokenizer(tmp_path_factory.mktemp("changing"))


def same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    assert list(got) == list(wanted)
    for name, value in wanted.items():
        assert (type(got[name]), got[name].dtype, got[name].shape) == (type(value), value.dtype, value.shape), name
        assert got[name].tolist() == value.tolist(), name


def outcome(make: Any) -> Any:
    """The batch, or what the error says."""
    try:
        return make()
    except (ValueError, TypeError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def agree(got: Any, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert got == wanted
    else:
        same(got, wanted)


class Counted:
    """`fetch` by rows, counting how often it is asked."""

    def __init__(self, dataset: Any, collator: Any) -> None:
        self.dataset, self.collator, self.calls = dataset, collator, 0

    def __call__(self, indices: Any) -> Any:
        self.calls += 1
        return fetch(self.dataset, indices, self.collator)


def by_columns(dataset: Any, collator: Any) -> tuple[FetchByColumns, Counted]:
    rows = Counted(dataset, collator)
    made = fetch_by_columns(dataset, collator, rows)
    assert made is not None
    return made, rows


def list_type(kind: str, values: str, size: int) -> Any:
    inner = getattr(pyarrow, values)()
    if kind == "fixed":
        return pyarrow.list_(inner, size)
    return pyarrow.large_list(inner) if kind == "large" else pyarrow.list_(inner)


def arranged(table: Any, how: str) -> Any:
    """The rows of a table as a data set, in their order or another, in one piece or several."""
    whole = datasets.Dataset(datasets.table.InMemoryTable(table))
    middle = len(whole) // 2
    if how == "concatenated":
        return datasets.concatenate_datasets([whole.select(range(middle)), whole.select(range(middle, len(whole)))])
    if how == "side by side":
        names = whole.column_names
        return datasets.concatenate_datasets([whole.select_columns(names[:1]), whole.select_columns(names[1:])], axis=1)
    if how == "sliced":
        return whole.select(range(1, len(whole)))
    if how == "selected":
        return whole.select([*range(0, len(whole), 2), 1, 1])
    if how == "shuffled":
        return datasets.concatenate_datasets([whole, whole]).shuffle(seed=3)
    return whole


arrangements = st.sampled_from(["plain", "concatenated", "side by side", "sliced", "selected", "shuffled"])


def drawn_rows(data: st.DataObject, length: int) -> list[int]:
    return data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=5))


def options_of(tokenizer: Any, data: st.DataObject) -> dict[str, Any]:
    tokenizer.padding_side = data.draw(st.sampled_from(["left", "right"]))
    tokenizer.pad_token_id = data.draw(st.sampled_from([0, 7]))
    tokenizer._pad_token_type_id = data.draw(st.sampled_from([0, 3]))
    extra = data.draw(
        st.sampled_from(
            [
                {},
                {"pad_to_multiple_of": 8},
                {"padding": "longest", "max_length": 3},
                {"padding": "max_length", "max_length": 12},
                {"padding": "max_length", "max_length": 12, "pad_to_multiple_of": 5},
            ]
        )
    )
    return {**extra, "return_tensors": data.draw(st.sampled_from(["pt", "np"]))}


def tokens_table(data: st.DataObject, rows: int) -> dict[str, Any]:
    fixed = data.draw(st.sampled_from([0, 0, 0, 4]))
    lengths = [fixed or data.draw(st.integers(0, 9)) for _ in range(rows)]
    names = data.draw(
        st.lists(st.sampled_from(["token_type_ids", "attention_mask", "special_tokens_mask"]), unique=True, max_size=3)
    )
    table = {}
    for name in data.draw(st.permutations(["input_ids", *names])):
        kind = list_type(
            "fixed" if fixed else data.draw(st.sampled_from(["list", "large"])),
            data.draw(st.sampled_from(INTEGERS)),
            fixed,
        )
        highest = 54 if name == "input_ids" else 1
        table[name] = pyarrow.array(
            [[(i * 7 + j) % (highest + 1) for j in range(n)] for i, n in enumerate(lengths)], kind
        )
    return table


def other_column(data: st.DataObject, rows: int) -> Any:
    kind = data.draw(st.sampled_from(NUMBERS))
    shape = data.draw(st.sampled_from([(), (), (1,), (3,), (2, 3)]))
    values = numpy.arange(rows * int(numpy.prod(shape))).reshape(rows, *shape) % 5
    values = values % 2 == 0 if kind == "bool_" else values / 3 if kind.startswith("float") else values
    inner = getattr(pyarrow, kind)()
    for size in reversed(shape):
        inner = pyarrow.list_(inner, size) if data.draw(st.booleans()) else pyarrow.list_(inner)
    return pyarrow.array(values.tolist(), inner)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), how=arrangements, label=st.sampled_from([None, "label", "label_ids", "labels", "score"]))
def test_padding_from_columns(changing: Any, data: st.DataObject, how: str, label: str | None) -> None:
    count = data.draw(st.integers(2, 7))
    table = tokens_table(data, count)
    if label:
        table[label] = other_column(data, count)
    dataset = arranged(pyarrow.table(table), how)
    options = options_of(changing, data)
    theirs = transformers.DataCollatorWithPadding(changing, **options)
    ours = collators.DataCollatorWithPadding(changing, **options)
    indices = drawn_rows(data, len(dataset))
    wanted = outcome(lambda: fetch(dataset, indices, ours))
    for collator in (ours, theirs):
        fast, rows = by_columns(dataset, collator)
        agree(outcome(lambda fast=fast: fast(indices)), wanted if collator is ours else fetch(dataset, indices, theirs))
        assert rows.calls == int(not any(dataset[indices]["input_ids"]))  # no token at all
    if not isinstance(wanted, str):
        same(wanted, fetch(dataset, indices, theirs))


@settings(deadline=None, max_examples=60)
@given(data=st.data(), how=arrangements, default_dtype=st.sampled_from([torch.float32, torch.float64]))
def test_stacking_from_columns(data: st.DataObject, how: str, default_dtype: torch.dtype) -> None:
    count = data.draw(st.integers(2, 7))
    names = data.draw(
        st.lists(st.sampled_from(["label", "label_ids", "labels", "x", "y"]), min_size=1, unique=True, max_size=4)
    )
    dataset = arranged(pyarrow.table({name: other_column(data, count) for name in names}), how)
    indices = drawn_rows(data, len(dataset))
    torch.set_default_dtype(default_dtype)
    try:
        for ours in (
            collators.default_data_collator,
            collators.numpy_default_data_collator,
            collators.DefaultDataCollator(),
            collators.DefaultDataCollator("np"),
        ):
            fast, rows = by_columns(dataset, ours)
            got = fast(indices)
            assert rows.calls == 0
            same(got, fetch(dataset, indices, ours))
        for theirs in (transformers.default_data_collator, transformers.DefaultDataCollator()):
            fast, rows = by_columns(dataset, theirs)
            got = fast(indices)
            assert rows.calls == 0
            if isinstance(dataset[0].get("label_ids", []), list):  # theirs fails at anything else
                same(got, fetch(dataset, indices, theirs))
    finally:
        torch.set_default_dtype(torch.float32)


@settings(deadline=None, max_examples=60)
@given(data=st.data(), source=st.sampled_from(["list", "numpy", "torch"]), gap=st.sampled_from([None, "short", "none"]))
def test_padding_of_rows(changing: Any, data: st.DataObject, source: str, gap: str | None) -> None:
    """Rows that are no table's are padded at once too; what is odd about one is told in the same words."""
    make = {"list": list, "numpy": numpy.array, "torch": torch.tensor}[source]
    table = tokens_table(data, data.draw(st.integers(1, 5)))
    rows = [{name: make(value) for name, value in row.items()} for row in pyarrow.table(table).to_pylist()]
    for index, row in enumerate(rows):
        row["labels"] = data.draw(st.sampled_from([index, index / 2, [index, 1]])) if index == 0 else rows[0]["labels"]
    if gap == "short":
        name = data.draw(st.sampled_from(list(table)))
        rows[-1][name] = rows[-1][name][1:]
    elif gap == "none":
        rows[-1]["labels"] = None
    options = options_of(changing, data)
    asked = []

    class Asked(transformers.BertTokenizerFast):
        def pad(self, *args: Any, **options: Any) -> Any:  # one of its own: rows go to it
            asked.append(options)
            return super().pad(*args, **options)

    other = object.__new__(Asked)
    other.__dict__ = dict(vars(changing))
    got = outcome(lambda: collators.DataCollatorWithPadding(changing, **options)(rows))
    assert not asked
    agree(got, outcome(lambda: collators.DataCollatorWithPadding(other, **options)(rows)))
    assert len(asked) == 1
    if gap is None:
        same(got, transformers.DataCollatorWithPadding(changing, **options)(rows))


def test_values_that_are_missing_are_told_as_ever(tokenizer: Any) -> None:
    table = pyarrow.table({"input_ids": [[1], [2, 3], [4]], "label": pyarrow.array([1, None, 0])})
    dataset = datasets.Dataset(datasets.table.InMemoryTable(table))
    for collator in (collators.DataCollatorWithPadding(tokenizer), collators.default_data_collator):
        fast, rows = by_columns(dataset, collator)
        with pytest.raises(ValueError, match="Column 'label' cannot become one array: it is None in row 1"):
            fast([0, 1])
        assert rows.calls == 1


def test_rows_of_other_lengths_are_told_as_ever(tokenizer: Any) -> None:
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]], "spans": [[1], [1, 2]]})
    for collator in (collators.DataCollatorWithPadding(tokenizer), collators.default_data_collator):
        fast, rows = by_columns(dataset, collator)
        with pytest.raises(ValueError, match=r"row 0 has shape \(1,\), row 1 has shape \(2,\)"):
            fast([0, 1])
        assert rows.calls == 1


def test_the_warning_about_an_ignored_length_is_the_tokenizers(tokenizer: Any) -> None:
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]]})
    collator = collators.DataCollatorWithPadding(tokenizer, max_length=8)
    fast, rows = by_columns(dataset, collator)
    with pytest.warns(UserWarning, match="`max_length` is ignored"):
        assert fast([0, 1])["input_ids"].shape == (2, 2)
    assert rows.calls == 0


@pytest.mark.parametrize("padding", [False, "do_not_pad"])
def test_without_padding_the_tokenizer_is_asked(tokenizer: Any, padding: Any) -> None:
    dataset = datasets.Dataset.from_dict({"input_ids": [[1, 4], [2, 3]]})
    fast, rows = by_columns(dataset, collators.DataCollatorWithPadding(tokenizer, padding=padding))
    assert fast([0, 1])["input_ids"].tolist() == [[1, 4], [2, 3]]
    assert rows.calls == 1


def test_what_no_longer_tries() -> None:
    """A collator that always wants rows in the end is given rows without a detour."""
    asked = []

    class Undecided:
        def __call__(self, rows: Any) -> Any:
            return len(rows)

        def collate_columns(self, columns: Any) -> Any:
            asked.append(list(columns))

    fast, rows = by_columns(datasets.Dataset.from_dict({"x": [1, 2, 3]}), Undecided())
    assert [fast([0, 1]) for _ in range(20)] == [2] * 20
    assert rows.calls == 20
    assert len(asked) == 8


class Lengths:
    """A collator of a user's own that takes columns."""

    def __call__(self, rows: Any) -> Any:
        return {"lengths": [len(row["x"]) for row in rows]}

    def collate_columns(self, columns: Any) -> Any:
        return {"lengths": columns["x"].lengths.tolist()}


class Louder(Lengths):
    def __call__(self, rows: Any) -> Any:
        return {name: [-value for value in values] for name, values in super().__call__(rows).items()}


def test_collators_of_users() -> None:
    dataset = datasets.Dataset.from_dict({"x": [[1], [2, 3], [4, 5, 6]]})
    fast, rows = by_columns(dataset, Lengths())
    assert fast([2, 0]) == {"lengths": [3, 1]}
    assert rows.calls == 0
    assert column_collation(Louder()) is None, "what is inherited does not do what __call__ does"
    assert column_collation(lambda rows: rows) is None
    assert column_collation([]) is None

    @takes_columns(lambda columns: {"sum": columns["x"].values.sum()})
    def total(rows: Any) -> Any:
        return {"sum": sum(sum(row["x"]) for row in rows)}

    fast, rows = by_columns(dataset, total)
    assert fast([0, 2]) == {"sum": 16} == total([dataset[0], dataset[2]])
    assert rows.calls == 0


def test_subclasses_are_given_rows(tokenizer: Any) -> None:
    class Mine(collators.DataCollatorWithPadding):
        def __call__(self, features: Any) -> Any:
            return {**super().__call__(features), "mine": True}

    class Theirs(transformers.DataCollatorWithPadding):
        pass

    assert column_collation(Mine(tokenizer)) is None
    assert column_collation(Theirs(tokenizer)) is None
    assert column_collation(transformers.DataCollatorForMultipleChoice(tokenizer)) is None


def test_patched_collators_of_transformers_are_called(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert column_collation(transformers.DataCollatorWithPadding(tokenizer)) is not None
    assert column_collation(transformers.DataCollatorForTokenClassification(tokenizer)) is not None
    one: Any = transformers.DataCollatorForTokenClassification(tokenizer)
    one.torch_call = list
    assert column_collation(one) is None
    monkeypatch.setattr(transformers.DataCollatorWithPadding, "__call__", lambda self, rows: rows)
    assert column_collation(transformers.DataCollatorWithPadding(tokenizer)) is None


def test_tokenizers_with_a_way_of_their_own_are_asked(tokenizer: Any, tmp_path: Path) -> None:
    class Odd(transformers.BertTokenizerFast):
        def _pad(self, *args: Any, **options: Any) -> Any:
            return {**super()._pad(*args, **options), "odd": [1]}

    columns = {"input_ids": Column(numpy.array([1, 2, 3]), numpy.array([1, 2]))}
    assert pad_at_once(tokenizer, columns)["input_ids"].tolist() == [[1, 0], [2, 3]]
    odd = object.__new__(Odd)
    odd.__dict__ = dict(vars(tokenizer))
    assert pad_at_once(odd, columns) is None
    assert list(collators.DataCollatorWithPadding(odd)([{"input_ids": [1]}])) == ["input_ids", "attention_mask", "odd"]
    patched = a_tokenizer(tmp_path)
    patched.pad = lambda features, **options: {"input_ids": [[9]]}
    assert pad_at_once(patched, columns) is None
    assert collators.DataCollatorWithPadding(patched)([{"input_ids": [1]}])["input_ids"].tolist() == [[9]]
    assert pad_at_once(object(), columns) is None
    assert pad_at_once(tokenizer, {"ids": columns["input_ids"]}) is None
    assert pad_at_once(tokenizer, {"input_ids": Column(numpy.array([1.0]), numpy.array([1]))}) is None
    assert pad_at_once(tokenizer, {"input_ids": Column(numpy.array([1]))}) is None


def test_a_tokenizer_without_padding_token_refuses(tmp_path: Path) -> None:
    bare = a_tokenizer(tmp_path)
    bare.pad_token = None
    dataset = datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]]})
    fast, _ = by_columns(dataset, collators.DataCollatorWithPadding(bare))
    with pytest.raises(ValueError, match="does not have a padding token"):
        fast([0, 1])


def test_the_pieces() -> None:
    assert Column(numpy.array([1, 2, 3]), numpy.array([1, 2])).stacked() is None
    assert token_column([[1], [2, 3]]) is not None
    for odd in (
        [[1], numpy.array([2])],
        [[1.5]],
        [[[1]], [[2]]],
        [1, 2],
        [["a"]],
        [[2**70]],
        [numpy.array([[1]])],
        [[]],
    ):
        assert token_column(odd) is None, odd
