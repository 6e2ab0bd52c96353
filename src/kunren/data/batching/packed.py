"""Packed: the rows of each batch one after the other, without padding.

The user's own collator makes the batch it always makes, so that rows, order, random masks and labels are those of a
padded run; then the padding is taken out. Two forms, by what the model does with the batch:

- *Flattened.* Where a model of transformers has a label for every token, everything that is (rows, length) becomes
  (1, tokens), and position ids begin anew with each sequence. A causal model would predict the first token of a
  sequence from the last one of the sequence before: that label becomes -100. No padded run counts it either.
- *Packed inside.* Where the labels belong to rows (classification), or the model is a module around an encoder of
  transformers, the batch stays padded. The encoder's door takes the padding out, and its exit puts it back, so that
  poolers and heads see the shapes that they were written for.

A module of another kind is handed flattened batches if its `forward` takes `cu_seq_lens`: (sequences + 1,) int32, the
ends of the sequences, beginning with 0; and `position_ids`, if it takes them. Keeping attention within these ends is
then its own affair. It sees padded batches, without either, in evaluation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from kunren.collators.columns import Columns, column_collation
from kunren.losses.counting import IGNORED_LABEL, PACKED_LENGTHS
from kunren.model.signature import base_of, is_pretrained, read_signature, shifts_labels, unwrap

PACKED_INDICES = "packed_indices"  # beside PACKED_LENGTHS in a batch that is packed inside the model


@dataclass(frozen=True)
class Packing:
    """How the batches of one model are packed."""

    can_flatten: bool  # whether the model as a whole takes flattened batches
    packs_itself: bool  # its forward takes `cu_seq_lens`
    takes_positions: bool
    first_position: int
    shifts_labels: bool  # whether it lets position n predict label n + 1
    label_names: tuple[str, ...]


def packing_for(model: nn.Module, label_names: Sequence[str]) -> Packing:
    """Look at the model once. ValueError where packing cannot give what padding gives."""
    core, base = unwrap(model), base_of(model)
    signature, shifts, labels = read_signature(model), shifts_labels(model), tuple(label_names)
    if packs_itself(base):
        return Packing(True, True, "position_ids" in signature.names, 0, shifts, labels)
    encoder, name = encoder_in(base), type(base).__name__
    config = getattr(encoder, "config", None)
    if getattr(encoder, "main_input_name", "input_ids") != "input_ids":
        raise cannot_pack(name, "it does not read tokens")
    if getattr(config, "is_encoder_decoder", False):
        raise cannot_pack(name, "in an encoder-decoder, one sequence also attends to another")
    if getattr(config, "attention_chunk_size", None) is not None:
        raise cannot_pack(name, "its attention is in chunks")
    if "start_positions" in labels:
        raise cannot_pack(name, "its loss compares all positions of a padded row, padding included")
    positions = "position_ids" in inspect.signature(encoder.forward).parameters
    reach_encoder = "position_ids" in signature.names or signature.takes_keywords
    adds_tokens = getattr(getattr(core, "active_peft_config", None), "is_prompt_learning", False)
    # What somebody else's forward does with labels of tokens is not known: it is handed padded rows, as ever.
    is_known = inspect.unwrap(type(base).forward).__module__.startswith("transformers.")
    # Several labels for a row may be as many as a batch has tokens in a row: shapes do not tell them apart.
    has_row_labels = "ForSequenceClassification" in name
    flattens = is_known and is_pretrained(base) and positions and reach_encoder
    flattens = flattens and not adds_tokens and not has_row_labels
    return Packing(flattens, False, positions, _first_position(encoder), shifts, labels)


def cannot_pack(name: str, reason: str) -> ValueError:
    """The error, ready to be raised, for a model that cannot be trained this way."""
    return ValueError(f"batching='packed' cannot be used with {name}: {reason}. Use batching='grouped'.")


def packs_itself(base: nn.Module) -> bool:
    """Whether a module's `forward` takes `cu_seq_lens`, the ends of the sequences, and is no model of transformers."""
    return not is_pretrained(base) and "cu_seq_lens" in inspect.signature(base.forward).parameters


def encoder_in(base: nn.Module) -> nn.Module:
    """The one model of transformers in or behind `base`, without its heads."""
    found: list[Any] = []
    pending = [base]
    while pending:
        module = pending.pop()
        if is_pretrained(module) and isinstance(getattr(module, "base_model", None), nn.Module):
            found.append(module)
        else:
            pending += module.children()
    if len(found) != 1:
        held = f"it holds {len(found)} models of transformers" if found else "it is no model of transformers"
        raise cannot_pack(type(base).__name__, f"{held}, and its forward takes no `cu_seq_lens` to pack by itself")
    encoder: nn.Module = found[0].base_model
    return encoder


def _first_position(encoder: nn.Module) -> int:
    """0, but for models after RoBERTa, which count from behind the number of their padding token."""
    for module in encoder.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(getattr(module, "padding_idx", -1)) + 1
    return 0


def packing_collator(collator: Callable[[Any], Any], packing: Packing) -> PackingCollator:
    """The collator around the user's own; one that can be given columns if that one can."""
    return (PackingCollator if column_collation(collator) is None else _OfColumns)(collator, packing)


class PackingCollator:
    """Makes the batch that `collator` makes, and takes the padding out."""

    def __init__(self, collator: Callable[[Any], Any], packing: Packing) -> None:
        self.collator, self.packing = collator, packing

    def __call__(self, features: Sequence[Any]) -> dict[str, Any]:
        batch = self.collator(features)
        return self.packed(batch, _same_length(features))

    def packed(self, batch: Any, has_no_padding: bool = False) -> dict[str, Any]:
        """The batch without padding. `has_no_padding`: known of a batch that comes without an attention mask."""
        tokens = batch.get("input_ids") if isinstance(batch, Mapping) else None
        if not isinstance(tokens, torch.Tensor) or tokens.dim() != 2:
            raise ValueError(
                "batching='packed' needs batches with `input_ids` of shape (rows, length); the data collator returned "
                f"{_described(batch)}. Use batching='grouped'."
            )
        mask = batch.get("attention_mask")
        if mask is None and has_no_padding:
            mask = torch.ones_like(tokens)
        if not isinstance(mask, torch.Tensor) or mask.shape != tokens.shape:
            raise ValueError(
                "batching='packed' has to know what is padding: let the data collator return an `attention_mask` of "
                f"the shape of `input_ids`, {tuple(tokens.shape)}, not "
                f"{'none' if mask is None else tuple(getattr(mask, 'shape', ()))}."
            )
        real = mask != 0
        lengths = [length for length in real.sum(1).tolist() if length]
        indices = real.flatten().nonzero().squeeze(1)
        if self.packing.packs_itself or (self.packing.can_flatten and self._has_token_labels(batch, tokens)):
            return self._flattened(batch, tokens, indices, lengths)
        return {**batch, PACKED_LENGTHS: lengths, PACKED_INDICES: indices}

    def _has_token_labels(self, batch: Mapping[str, Any], tokens: torch.Tensor) -> bool:
        names = {*self.packing.label_names, "labels", "shift_labels"} & batch.keys()
        return bool(names) and all(getattr(batch[name], "shape", ())[:2] == tokens.shape for name in names)

    def _flattened(
        self, batch: Mapping[str, Any], tokens: torch.Tensor, indices: torch.Tensor, lengths: list[int]
    ) -> dict[str, Any]:
        packing, starts = self.packing, [0, *accumulate(lengths)]
        flat = {
            name: flatten(value, indices) if getattr(value, "shape", ())[:2] == tokens.shape else value
            for name, value in batch.items()
            if name != "attention_mask"
        }
        labels = flat.get("labels")
        if packing.shifts_labels and "shift_labels" not in flat and isinstance(labels, torch.Tensor):
            labels[:, starts[:-1]] = IGNORED_LABEL
        if packing.takes_positions and "position_ids" not in flat:
            flat["position_ids"] = positions(lengths, packing.first_position)
        if packing.packs_itself:
            flat["cu_seq_lens"] = torch.tensor(starts, dtype=torch.int32)
        return {**flat, PACKED_LENGTHS: lengths}


class _OfColumns(PackingCollator):
    def collate_columns(self, columns: Columns) -> dict[str, Any] | None:
        """From columns instead of rows; None where rows are needed."""
        collate = column_collation(self.collator)
        batch = None if collate is None else collate(columns)
        if batch is None or (not isinstance(batch.get("attention_mask"), torch.Tensor)):
            return None
        return self.packed(batch)


def flatten(value: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """(rows, length, ...) to (1, tokens, ...)."""
    return value.flatten(0, 1).index_select(0, indices).unsqueeze(0)


def positions(lengths: Sequence[int], first: int, device: torch.device | None = None) -> torch.Tensor:
    """(1, tokens): first, first + 1, ... for each sequence."""
    total = sum(lengths)
    starts = torch.tensor([0, *accumulate(lengths)][:-1], dtype=torch.int64)
    begin = torch.repeat_interleave(starts - first, torch.tensor(lengths, dtype=torch.int64), output_size=total)
    return (torch.arange(total) - begin).unsqueeze(0).to(device, non_blocking=True)


def packed_rows(batch: Any) -> int | None:
    """How many sequences a flattened batch holds; None of any other batch."""
    is_flat = isinstance(batch, Mapping) and PACKED_LENGTHS in batch and PACKED_INDICES not in batch
    return len(batch[PACKED_LENGTHS]) if is_flat else None


def packed_part(batch: Mapping[str, Any], start: int, end: int) -> dict[str, Any]:
    """The sequences `start` to `end` - 1 of a flattened batch, flattened as well."""
    lengths = batch[PACKED_LENGTHS]
    total, first, last = sum(lengths), sum(lengths[:start]), sum(lengths[:end])
    part: dict[str, Any] = {**batch, PACKED_LENGTHS: lengths[start:end]}
    for name, value in batch.items():
        shape = tuple(getattr(value, "shape", ()))
        if name == "cu_seq_lens":
            part[name] = value[start : end + 1] - first
        elif shape[:2] == (1, total):
            part[name] = value[:, first:last]
        elif shape[:1] == (len(lengths),):
            part[name] = value[start:end]
    return part


def without_packing(batch: Any) -> Any:
    """A batch that is packed inside the model, without what its collator knows of it: the padded batch."""
    if not isinstance(batch, Mapping) or PACKED_INDICES not in batch:
        return batch
    return {name: value for name, value in batch.items() if name not in (PACKED_LENGTHS, PACKED_INDICES)}


def _same_length(features: Sequence[Any]) -> bool:
    """Whether the rows say themselves that there is nothing to pad."""
    try:
        return len({len(row["input_ids"]) for row in features}) == 1
    except (TypeError, KeyError, IndexError):
        return False


def _described(batch: Any) -> str:
    if not isinstance(batch, Mapping):
        return f"a {type(batch).__name__}"
    return ", ".join(f"{name} {tuple(getattr(value, 'shape', ()))}" for name, value in batch.items())
