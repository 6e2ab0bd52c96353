"""Language modelling: masked (some tokens are hidden and asked for) or causal (each token is asked of those before)."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from kunren.base.random_state import mix, position_seed
from kunren.collators import stacking
from kunren.collators.columns import (
    Array,
    CollateColumns,
    Column,
    Columns,
    as_python_type,
    as_tensor,
)
from kunren.collators.labels import labels_of, pad_labels, refuse_other_lengths, values_of, without
from kunren.collators.mixin import DataCollatorMixin
from kunren.collators.padding import DataCollatorWithPadding
from kunren.collators.ragged import as_kind, end_to_end, lengths_of, pad_token_rows, to_numpy
from kunren.collators.special_tokens import pads_only, special_tokens_mask
from kunren.collators.token_padding import positions
from kunren.collators.word_masks import spread, words_of

IGNORED = -100
_DEFAULT_REPLACEMENT = (0.8, 0.1)
_CLASSES = ("label", "label_ids")  # these stay beside the labels that are made, and are not renamed
_NOT_PADDED = (*_CLASSES, "labels", "offset_mapping")  # by the tokenizer


@dataclass
class DataCollatorForLanguageModeling(DataCollatorMixin):
    """Pads rows (dicts, or plain lists of token ids) and makes their labels.

    Masked: of the tokens chosen with `mlm_probability`, never special or padding ones, `mask_replace_prob` become the
    mask token and `random_replace_prob` any token; the labels are the chosen tokens. `whole_word_mask` chooses words by
    the column `offset_mapping` and hides all of each. Causal: the labels are the tokens, or the rows' own column
    `labels`, without padding.

    Without `seed` the numbers come from the global generators. With it they come from a generator of the collator's
    own; within kunren's loader one that depends on the batch's position, so that a resume draws the same.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.mlm and self.tokenizer.mask_token is None:
            raise ValueError(
                f"{type(self.tokenizer).__name__} has no mask token, which masked language modelling needs. Set "
                "tokenizer.mask_token, or pass mlm=False for causal language modelling."
            )
        if self.whole_word_mask and not self.mlm:
            raise ValueError("whole_word_mask=True needs mlm=True: causal language modelling hides no words.")
        names = ("mlm_probability",) if self.mlm else ()
        for name in (*names, "mask_replace_prob", "random_replace_prob"):
            share = getattr(self, name)
            if share is None or not 0 <= share <= 1:
                raise ValueError(f"{name} is {share!r}: it must be between 0 and 1.")
            setattr(self, name, float(share))
        if self.mask_replace_prob + self.random_replace_prob > 1:
            raise ValueError(
                f"mask_replace_prob and random_replace_prob are {self.mask_replace_prob} and "
                f"{self.random_replace_prob}: together they must not exceed 1."
            )
        if self.whole_word_mask and self.mask_replace_prob < 1:
            if (self.mask_replace_prob, self.random_replace_prob) != _DEFAULT_REPLACEMENT:
                warnings.warn(
                    "whole_word_mask=True replaces every chosen word by mask tokens: mask_replace_prob and "
                    "random_replace_prob have no effect.",
                    stacklevel=2,
                )
            self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0
        self.generator: Any = None
        self._generator_pid: int | None = None

    # ---- random numbers

    def get_generator(self, seed: int, return_tensors: str | None = None) -> Any:
        """A new generator for tensors of this kind: torch's, or numpy's."""
        if (return_tensors or self.return_tensors) == "pt":
            return torch.Generator().manual_seed(seed)
        return numpy.random.default_rng(seed)

    def create_rng(self, return_tensors: str | None = None) -> None:
        """Start `self.generator` from `seed`; in a worker process of a torch DataLoader from seed + worker."""
        if self.seed is None:
            raise ValueError("create_rng needs a seed: pass seed= to the collator.")
        seed = self.seed
        if multiprocessing.current_process().name != "MainProcess":
            worker = torch.utils.data.get_worker_info()
            if worker is None:
                raise ValueError(
                    f"A collator with seed={seed} runs in a process that is no worker of a torch DataLoader, so all "
                    "such processes would draw the same. Collate in the main process or in a DataLoader."
                )
            seed += worker.id
        self.generator = self.get_generator(seed, return_tensors)
        self._generator_pid = os.getpid()

    @contextmanager
    def _seeded(self, kind: str) -> Iterator[None]:
        """Within: `self.generator` is what this batch is drawn from, or None for the global generators."""
        position = position_seed()
        if self.seed is None or position is None:
            wanted = torch.Generator if kind == "pt" else numpy.random.Generator
            if self.seed is not None and (not isinstance(self.generator, wanted) or self._generator_pid != os.getpid()):
                self.create_rng(kind)
            yield
            return
        outside = self.generator
        self.generator = self.get_generator(mix(self.seed, position), kind)
        try:
            yield
        finally:
            self.generator = outside

    # ---- batches

    def torch_call(self, examples: Any) -> Any:
        return self._call(examples, "pt")

    def numpy_call(self, examples: Any) -> Any:
        return self._call(examples, "np")

    def collate_columns(self, columns: Columns) -> Any:
        """The same batch from columns, or None where rows are needed."""
        kind = self.return_tensors
        batch = self._padding(kind).collate_columns(without(columns, _NOT_PADDED))
        if batch is None or not all(columns[name].lengths is None for name in _CLASSES if name in columns):
            return None
        for name in _CLASSES:
            if name in columns:
                values = columns[name].values
                batch[name] = as_tensor(values) if kind == "pt" else as_python_type(values)
        if self.mlm:
            return self._with_masks(batch, kind, columns.get("offset_mapping"))
        return self._with_targets(
            batch, kind, lengths_of(columns["input_ids"]), columns.get("labels"), "attention_mask" in columns
        )

    def _call(self, examples: Any, kind: str) -> Any:
        if not isinstance(examples[0], Mapping):
            batch: Any = {"input_ids": pad_token_rows(examples, self.tokenizer, self.pad_to_multiple_of, kind)}
            return self._with_masks(batch, kind) if self.mlm else self._with_targets(batch, kind, _lengths(examples))
        batch = self._padding(kind)([without(row, _NOT_PADDED) for row in examples])
        for name in _CLASSES:
            values = values_of(examples, name)
            if values is not None:
                batch[name] = stacking.to_tensor(values) if kind == "pt" else stacking.to_array(values)
        if self.mlm:
            pairs = values_of(examples, "offset_mapping") if self.whole_word_mask else None
            return self._with_masks(batch, kind, None if pairs is None else end_to_end(pairs))
        lengths = _lengths([row["input_ids"] for row in examples])
        return self._with_targets(batch, kind, lengths, labels_of(examples, "labels"), "attention_mask" in examples[0])

    def _padding(self, kind: str) -> DataCollatorWithPadding:
        return DataCollatorWithPadding(self.tokenizer, pad_to_multiple_of=self.pad_to_multiple_of, return_tensors=kind)

    # ---- masked

    def _with_masks(self, batch: Any, kind: str, offsets: Column | None = None) -> Any:
        inputs, special, attended = batch["input_ids"], batch.pop("special_tokens_mask", None), None
        if "attention_mask" in batch and batch["attention_mask"].shape == inputs.shape:
            attended = batch["attention_mask"]
        if special is None:
            special = as_kind(special_tokens_mask(self.tokenizer, to_numpy(inputs)), kind)
        known: dict[str, Any] = {"special_tokens_mask": special if attended is None else special | (attended == 0)}
        if offsets is not None:
            present = positions(lengths_of(offsets), inputs.shape[1], self.tokenizer.padding_side)
            pairs = numpy.zeros((*inputs.shape, 2), dtype=numpy.int64)
            pairs[present] = offsets.values.reshape(-1, 2)
            known["offset_mapping"] = as_kind(pairs, kind)
        mask_tokens = self.torch_mask_tokens if kind == "pt" else self.numpy_mask_tokens
        with self._seeded(kind):
            batch["input_ids"], batch["labels"] = mask_tokens(inputs, **known)
        return batch

    def torch_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Masked inputs and labels of `inputs`, a tensor (rows, tokens), which stays as it is."""
        closed, words = self._closed(inputs, special_tokens_mask, offset_mapping)
        # The order and the kind of the draws are transformers', so that a seed gives its numbers.
        chances = torch.full(inputs.shape, self._chance).masked_fill_(torch.from_numpy(closed), 0.0)
        chosen = torch.bernoulli(chances, generator=self.generator).bool()
        if words is not None:
            chosen = torch.from_numpy(spread(words, chosen.numpy()))
        labels = inputs.masked_fill(~chosen, IGNORED)
        hidden = self._torch_draw(inputs.shape, self.mask_replace_prob) & chosen
        masked = inputs.masked_fill(hidden, self.tokenizer.mask_token_id)
        if self._leaves_no_rest:
            return masked, labels
        replaced = self._torch_draw(inputs.shape, self._random_share_of_rest) & chosen & ~hidden
        tokens = torch.randint(len(self.tokenizer), inputs.shape, dtype=torch.long, generator=self.generator)
        return torch.where(replaced, tokens.to(masked.dtype), masked), labels

    def numpy_mask_tokens(
        self, inputs: Any, special_tokens_mask: Any | None = None, offset_mapping: Any | None = None
    ) -> tuple[Any, Any]:
        """Masked inputs and labels of `inputs`, an array (rows, tokens), which stays as it is."""
        closed, words = self._closed(inputs, special_tokens_mask, offset_mapping)
        chances = numpy.full(inputs.shape, self._chance)
        chances[closed] = 0
        chosen = self._numpy_draw(inputs.shape, chances)
        if words is not None:
            chosen = spread(words, chosen)
        labels = numpy.where(chosen, inputs, IGNORED)
        hidden = self._numpy_draw(inputs.shape, self.mask_replace_prob) & chosen
        masked = numpy.where(hidden, self.tokenizer.mask_token_id, inputs)
        if self._leaves_no_rest:
            return masked, labels
        replaced = self._numpy_draw(inputs.shape, self._random_share_of_rest) & chosen & ~hidden
        draw = numpy.random.randint if self.generator is None else self.generator.integers
        masked[replaced] = draw(low=0, high=len(self.tokenizer), size=numpy.count_nonzero(replaced), dtype=numpy.int64)
        return masked, labels

    def _closed(self, inputs: Any, special: Any, offsets: Any) -> tuple[Any, Any]:
        """Where nothing is chosen, bool; and, for whole words, which word each token belongs to."""
        ids = to_numpy(inputs)
        special = special_tokens_mask(self.tokenizer, ids) if special is None else to_numpy(special)
        if not self.whole_word_mask:
            return special.astype(bool, copy=False), None
        if offsets is None:
            raise ValueError(
                "whole_word_mask=True needs the column 'offset_mapping' in every row, which says where words begin. "
                "Tokenize with a fast tokenizer and return_offsets_mapping=True, and set remove_unused_columns=False."
            )
        words, begins = words_of(to_numpy(offsets), special)
        return ~begins, words  # a word is chosen by its first token

    def _torch_draw(self, shape: Any, chance: float) -> torch.Tensor:
        return torch.bernoulli(torch.full(shape, chance), generator=self.generator).bool()

    def _numpy_draw(self, shape: Any, chance: Any) -> Array:
        draw = numpy.random.binomial if self.generator is None else self.generator.binomial
        drawn: Array = draw(1, chance, size=shape).astype(bool)
        return drawn

    @property
    def _chance(self) -> float:
        assert self.mlm_probability is not None  # checked when the collator was made
        return self.mlm_probability

    @property
    def _leaves_no_rest(self) -> bool:
        return self.mask_replace_prob == 1 or self.random_replace_prob == 0

    @property
    def _random_share_of_rest(self) -> float:
        return self.random_replace_prob / (1 - self.mask_replace_prob)

    # ---- causal

    def _with_targets(
        self, batch: Any, kind: str, lengths: Array, given: Column | None = None, has_mask: bool = False
    ) -> Any:
        batch.pop("special_tokens_mask", None)
        inputs = to_numpy(batch["input_ids"])
        if given is None or given.lengths is None:  # none, or one a row: a class, not a token
            labels = inputs.copy()
        else:
            refuse_other_lengths(given, lengths)
            labels = pad_labels("labels", given, IGNORED, self.tokenizer.padding_side, inputs.shape[1])
            labels = labels.copy() if numpy.may_share_memory(labels, given.values) else labels
        mask = to_numpy(batch["attention_mask"]) if has_mask else None
        labels[self._is_padding(inputs, lengths, mask)] = IGNORED
        batch["labels"] = as_kind(labels, kind)
        return batch

    def _is_padding(self, inputs: Array, lengths: Array, mask: Array | None) -> Array:
        """Where nothing is to be learnt: where the rows' attention mask says so.

        Rows without a mask may have been padded before: then a token that is for nothing but padding counts as such.
        An end token that also pads does not, or the model would never learn to stop.
        """
        if mask is not None and mask.shape == inputs.shape:
            outside: Array = mask == 0
            return outside
        outside = ~positions(lengths, inputs.shape[1], self.tokenizer.padding_side)
        return outside | (inputs == self.tokenizer.pad_token_id) if pads_only(self.tokenizer) else outside


def _lengths(rows: Any) -> Array:
    return numpy.fromiter(map(len, rows), numpy.int64, len(rows))


def columns_for(theirs: Any) -> CollateColumns:
    """Masking with numbers from the global generators alone: other batches of theirs are not the same."""
    if not theirs.mlm or theirs.whole_word_mask or theirs.seed is not None:
        return lambda columns: None
    return DataCollatorForLanguageModeling(
        theirs.tokenizer,
        mlm_probability=theirs.mlm_probability,
        mask_replace_prob=theirs.mask_replace_prob,
        random_replace_prob=theirs.random_replace_prob,
        pad_to_multiple_of=theirs.pad_to_multiple_of,
        return_tensors=theirs.return_tensors,
    ).collate_columns
