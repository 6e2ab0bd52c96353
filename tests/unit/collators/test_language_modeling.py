"""Where language modelling is right and transformers is not; parity is in tests/parity/test_collators.py."""

from __future__ import annotations

import copy
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import models
from parity.rows import Rows
from parity.tokenizer import make_tokenizer

import kunren
from kunren.base.random_state import DataRandomness, seed_for_data
from kunren.collators import DataCollatorForLanguageModeling

WORDS = make_tokenizer()


@contextmanager
def loading(position: int) -> Iterator[None]:
    """As kunren's loader does around the data code of one batch."""
    with DataRandomness():
        seed_for_data(position)
        yield


def labels_of(collator: Any, rows: Any, kind: str = "pt") -> Any:
    return collator(rows, return_tensors=kind)["labels"].tolist()


# ---- causal


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("form", ["masks", "no masks", "lists"])
def test_an_end_token_that_pads_is_learnt(tokenizer_whose_end_pads: Any, kind: str, side: str, form: str) -> None:
    """C1: padding is what was not attended to, whatever its id."""
    tokenizer_whose_end_pads.padding_side = side
    collate = DataCollatorForLanguageModeling(tokenizer_whose_end_pads, mlm=False)
    tokens = [[5, 6, 7, 3], [8, 3]]
    rows: list[Any] = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in tokens]
    if form != "masks":
        rows = tokens if form == "lists" else [{"input_ids": ids} for ids in tokens]
    padded = [8, 3, -100, -100] if side == "right" else [-100, -100, 8, 3]
    assert labels_of(collate, rows, kind) == [[5, 6, 7, 3], padded]


def test_padding_that_rows_bring_is_not_learnt(tokenizer: Any, tokenizer_whose_end_pads: Any) -> None:
    row = {"input_ids": [5, 3, 3, 3], "attention_mask": [1, 1, 0, 0], "labels": [5, 3, 3, 3]}
    collate = DataCollatorForLanguageModeling(tokenizer_whose_end_pads, mlm=False)
    assert labels_of(collate, [row]) == [[5, 3, -100, -100]]
    # Without a mask the id tells, as long as the token means nothing else.
    del row["attention_mask"]
    assert labels_of(collate, [row]) == [[5, 3, 3, 3]]
    unmasked = {"input_ids": [5, 3, 0, 0], "labels": [5, 3, 0, 0]}
    assert labels_of(DataCollatorForLanguageModeling(tokenizer, mlm=False), [unmasked]) == [[5, 3, -100, -100]]


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.lists(st.lists(st.integers(5, 54), min_size=1, max_size=7), min_size=1, max_size=4),
    prompt=st.integers(0, 3), side=st.sampled_from(["left", "right"]), kind=st.sampled_from(["pt", "np"]),
    source=st.sampled_from([list, numpy.array, torch.tensor]), multiple=st.sampled_from([None, 8]),
)  # fmt: skip
def test_given_labels_are_kept_and_padded(
    tokens: Any, prompt: int, side: str, kind: str, source: Any, multiple: Any
) -> None:
    """C2: a prompt that is not to be learnt stays so."""
    tokenizer = make_tokenizer(padding_side=side)
    targets = [[-100] * min(prompt, len(ids)) + ids[prompt:] for ids in tokens]
    rows = [{"input_ids": source(ids), "labels": source(own)} for ids, own in zip(tokens, targets, strict=True)]
    before = copy.deepcopy(rows)
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=multiple)
    batch = collate(rows, return_tensors=kind)
    assert repr(rows) == repr(before)
    assert batch["labels"].shape == batch["input_ids"].shape
    for ids, own, got, mask in zip(
        tokens, targets, batch["labels"].tolist(), batch["attention_mask"].tolist(), strict=True
    ):
        assert [label for label, there in zip(got, mask, strict=True) if there] == own
        assert got.count(-100) == len(got) - len(ids) + own.count(-100)


def test_labels_that_are_no_tokens(tokenizer: Any) -> None:
    collate = DataCollatorForLanguageModeling(tokenizer, mlm=False)
    assert labels_of(collate, [{"input_ids": [5, 6], "labels": 1}]) == [[5, 6]]
    assert labels_of(collate, [{"input_ids": [5, 6], "labels": None}]) == [[5, 6]]
    batch = collate([{"input_ids": [5, 6], "label": 1}, {"input_ids": [5], "label": 0}])
    assert (batch["label"].tolist(), batch["labels"].tolist()) == ([1, 0], [[5, 6], [5, -100]])
    with pytest.raises(ValueError, match="Row 1 of this batch has 2 tokens and 1 labels"):
        collate([{"input_ids": [5], "labels": [5]}, {"input_ids": [5, 6], "labels": [5]}])
    with pytest.raises(ValueError, match="Row 1 of this batch of 2 has no 'labels'"):
        collate([{"input_ids": [5], "labels": [5]}, {"input_ids": [5], "labels": None}])


# ---- masked


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_of_the_chosen_tokens_eighty_percent_are_hidden_and_ten_replaced(tokenizer: Any, kind: str) -> None:
    """S240: 15 % of the tokens; 80 / 10 / 10 of them."""
    rows = [{"input_ids": [2, *[5 + (index * 7 + row) % 50 for index in range(400)], 3]} for row in range(50)]
    batch = DataCollatorForLanguageModeling(tokenizer)(rows, return_tensors=kind)
    inputs, labels = numpy.array(batch["input_ids"].tolist()), numpy.array(batch["labels"].tolist())
    original = numpy.array([row["input_ids"] for row in rows])
    chosen = labels != -100
    assert (labels[chosen] == original[chosen]).all() and (inputs[~chosen] == original[~chosen]).all()
    assert abs(chosen.mean() - 0.15) < 0.01
    hidden, kept = (inputs == 4)[chosen].mean(), (inputs == original)[chosen].mean()
    # A random token is the mask token, or the old one, once in 55 times.
    assert abs(hidden - 0.8 - 0.1 / 55) < 0.03 and abs(kept - 0.1 - 0.1 / 55) < 0.03


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.lists(st.lists(st.integers(0, 54), min_size=1, max_size=9), min_size=1, max_size=4),
    cut=st.integers(0, 9), kind=st.sampled_from(["pt", "np"]), says=st.booleans(),
)  # fmt: skip
def test_special_and_padding_tokens_are_never_chosen(tokens: Any, cut: int, kind: str, says: bool) -> None:
    """C6: also not where rows say of padding that it is not special."""
    rows = []
    for ids in tokens:
        row = {"input_ids": ids, "attention_mask": [int(place < cut) for place in range(len(ids))]}
        rows.append({**row, "special_tokens_mask": [0] * len(ids)} if says else row)
    collate = DataCollatorForLanguageModeling(WORDS, mlm_probability=1.0)
    for ids, labels in zip(tokens, labels_of(collate, rows, kind), strict=True):
        wanted = [ids[place] if place < cut and (says or ids[place] > 4) else -100 for place in range(len(ids))]
        assert labels == wanted + [-100] * (len(labels) - len(ids))


def test_labels_of_rows_that_are_masked_make_way(tokenizer: Any) -> None:
    rows = [{"input_ids": [5, 6], "labels": [5, 6]}, {"input_ids": [7], "labels": [7]}]
    assert labels_of(DataCollatorForLanguageModeling(tokenizer, mlm_probability=1.0), rows) == [[5, 6], [7, -100]]


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_whole_words_of_rows_of_different_lengths(tokenizer: Any, kind: str, side: str) -> None:
    tokenizer.padding_side = side
    rows = [
        {"input_ids": [2, 5, 6, 7, 3], "offset_mapping": [(0, 0), (0, 2), (2, 4), (5, 7), (0, 0)]},
        {"input_ids": [2, 8, 3], "offset_mapping": [(0, 0), (0, 2), (0, 0)]},
    ]
    collate = DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, mlm_probability=0.5)
    seen = set()
    for _ in range(60):
        first, second = labels_of(collate, rows, kind)
        assert (first[1] == -100) == (first[2] == -100)  # one word
        assert {first[0], first[4], *(second[0:4:2] if side == "right" else second[2::2])} == {-100}
        seen.add((first[1] == -100, first[3] == -100))
    assert len(seen) == 4


def test_mask_tokens_leaves_its_input(tokenizer: Any) -> None:
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=1.0)
    for inputs, mask in (
        (torch.tensor([[2, 5, 6]]), collate.torch_mask_tokens),
        (numpy.array([[2, 5, 6]]), collate.numpy_mask_tokens),
    ):
        assert mask(inputs)[1].tolist() == [[-100, 5, 6]]
        assert inputs.tolist() == [[2, 5, 6]]


def test_a_tokenizer_that_decides_itself_what_is_special(tokenizer: Any) -> None:
    class Other(type(tokenizer)):  # type: ignore[misc]
        def get_special_tokens_mask(self, ids: list[int], *_: Any, already_has_special_tokens: bool = False) -> Any:
            return [int(place == 0) for place in range(len(ids))]

    tokenizer.__class__ = Other
    assert labels_of(DataCollatorForLanguageModeling(tokenizer, mlm_probability=1.0), [[5, 6, 3]]) == [[-100, 6, 3]]


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_what_people_override_is_called(tokenizer: Any, kind: str) -> None:
    class Mine(DataCollatorForLanguageModeling):
        def torch_mask_tokens(self, inputs: Any, special_tokens_mask: Any = None) -> Any:
            return inputs, special_tokens_mask

        numpy_mask_tokens = torch_mask_tokens

    assert labels_of(Mine(tokenizer), [{"input_ids": [2, 5]}, {"input_ids": [6]}], kind) == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mlm_probability": 1.2}, "mlm_probability is 1.2"),
        ({"mlm_probability": None}, "mlm_probability is None"),
        ({"mask_replace_prob": -0.1}, "mask_replace_prob is -0.1"),
        ({"random_replace_prob": 2}, "random_replace_prob is 2"),
        ({"mask_replace_prob": 0.9, "random_replace_prob": 0.2}, "0.9 and 0.2: together"),
        ({"mlm": False, "whole_word_mask": True}, "needs mlm=True"),
    ],
)
def test_refusals(tokenizer: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        DataCollatorForLanguageModeling(tokenizer, **options)


def test_what_a_tokenizer_lacks_is_told(tokenizer: Any) -> None:
    with pytest.raises(ValueError, match="needs the column 'offset_mapping'"):
        DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True)([[5, 6]])
    with pytest.raises(ValueError, match="return_tensors is 'tf'"):
        DataCollatorForLanguageModeling(tokenizer, return_tensors="tf")([[5, 6]])
    with pytest.raises(ValueError, match="has no mask token"):
        DataCollatorForLanguageModeling(make_tokenizer(mask_token=None))
    collate = DataCollatorForLanguageModeling(make_tokenizer(pad_token=None), mlm=False)
    assert labels_of(collate, [[5, 6], [7, 8]]) == [[5, 6], [7, 8]]
    with pytest.raises(ValueError, match="no padding token"):
        collate([[5, 6], [7]])
    with pytest.warns(UserWarning, match="have no effect"):
        DataCollatorForLanguageModeling(tokenizer, whole_word_mask=True, mask_replace_prob=0.5)


# ---- random numbers


ROWS = [{"input_ids": [2, *range(5, 45), 3]} for _ in range(3)]


@pytest.mark.parametrize("kind", ["pt", "np"])
@pytest.mark.parametrize("seed", [None, 5])
def test_a_batch_depends_on_its_position_alone(tokenizer: Any, kind: str, seed: int | None) -> None:
    """R2: whatever was fetched before, by whichever worker, and however the global generators stand."""
    collate = DataCollatorForLanguageModeling(tokenizer, seed=seed)
    with loading(17):
        wanted = labels_of(collate, ROWS, kind)
    with loading(18):
        other = labels_of(collate, ROWS, kind)
    for _ in range(3):
        labels_of(collate, ROWS, kind)
    with loading(17):
        again = labels_of(DataCollatorForLanguageModeling(tokenizer, seed=seed), ROWS, kind)
        assert labels_of(collate, ROWS, kind) != wanted or seed is not None
    assert wanted == again != other


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_another_seed_gives_other_masks_at_the_same_position(tokenizer: Any, kind: str) -> None:
    with loading(17):
        drawn = [labels_of(DataCollatorForLanguageModeling(tokenizer, seed=seed), ROWS, kind) for seed in range(4)]
    assert all(drawn.count(labels) == 1 for labels in drawn)


@pytest.mark.parametrize("kind", ["pt", "np"])
def test_loading_does_not_disturb_the_generator_of_a_seed(tokenizer: Any, kind: str) -> None:
    straight = DataCollatorForLanguageModeling(tokenizer, seed=5)
    disturbed = DataCollatorForLanguageModeling(tokenizer, seed=5)
    wanted = [labels_of(straight, ROWS, kind) for _ in range(2)]
    got = [labels_of(disturbed, ROWS, kind)]
    with loading(17):
        labels_of(disturbed, ROWS, kind)
    assert [*got, labels_of(disturbed, ROWS, kind)] == wanted
    assert wanted[0] != wanted[1]


class Noted(torch.nn.Module):
    """A model that keeps the labels it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Any] = []

    def forward(self, input_ids: Any, labels: Any, attention_mask: Any = None) -> Any:
        self.seen.append(labels.tolist())
        return {"loss": self.bias.square()}


def test_workers_change_nothing(tokenizer: Any, tmp_path: Path) -> None:
    seen = []
    for workers in (0, 2):
        model = Noted()
        args = kunren.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=2, num_train_epochs=2, dataloader_num_workers=workers,
            report_to="none", disable_tqdm=True, save_strategy="no", logging_strategy="no",
        )  # fmt: skip
        collate = DataCollatorForLanguageModeling(tokenizer, seed=3)
        kunren.Trainer(model, args, data_collator=collate, train_dataset=Rows(ROWS * 2)).train()
        seen.append(model.seen)
    assert seen[0] == seen[1] and len(seen[0]) == 6
    assert seen[0][:3] != seen[0][3:]  # S240: each epoch has masks of its own


def test_a_generator_is_made_anew_in_another_process(tokenizer: Any) -> None:
    """As in torch's own loader: a worker draws from seed + worker."""
    collate = DataCollatorForLanguageModeling(tokenizer, seed=5)
    labels_of(collate, ROWS)
    loader = torch.utils.data.DataLoader(
        Rows(ROWS * 2), batch_size=3, collate_fn=collate, num_workers=2, multiprocessing_context="fork"
    )
    got = [batch["labels"].tolist() for batch in loader]
    wanted = [labels_of(DataCollatorForLanguageModeling(tokenizer, seed=5 + worker), ROWS) for worker in range(2)]
    assert got == wanted


def test_a_process_that_is_no_worker_is_told(tokenizer: Any) -> None:
    collate = DataCollatorForLanguageModeling(tokenizer, seed=5)
    parent, child = multiprocessing.Pipe()

    def work() -> None:
        try:
            collate(ROWS)
        except ValueError as error:
            child.send(str(error))

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(60)
    assert parent.poll() and "no worker of a torch DataLoader" in parent.recv()


def test_masked_training_resumes_exactly(tokenizer: Any, tmp_path: Path) -> None:
    """A BERT on the masks of two epochs, resumed in the middle, ends where the straight run ends."""
    ends = []
    for resume in (None, str(tmp_path / "checkpoint-2")):
        torch.manual_seed(0)
        model = models.bert("BertForMaskedLM", vocab_size=55, max_position_embeddings=64)
        args = kunren.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=2, num_train_epochs=2, save_strategy="steps", save_steps=2,
            report_to="none", disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        collate = DataCollatorForLanguageModeling(tokenizer, seed=3)
        trainer = kunren.Trainer(model, args, data_collator=collate, train_dataset=Rows(ROWS * 2))
        trainer.train(resume_from_checkpoint=resume)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()]))
    assert torch.equal(*ends)
