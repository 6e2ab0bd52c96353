"""What a model is given to generate from, made of the batch that its loss is computed of.

An encoder-decoder reads the source and writes from its start token. A decoder-only model's rows hold prompt and answer
one after the other; it is given the prompts alone, each pushed to the right so that all end where the answers begin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kunren.losses.counting import IGNORED_LABEL, PACKED_LENGTHS

PROMPT, PROMPT_MASK = "generation_input_ids", "generation_attention_mask"
_PACKED = (PACKED_LENGTHS, "packed_indices", "cu_seq_lens", "cu_seq_lens_q", "cu_seq_lens_k", "cu_seqlens", "seq_idx")
_OF_WHOLE_ROWS = ("position_ids", "cache_position", "shift_labels", "num_items_in_batch", "return_loss")


@dataclass
class Prompts:
    """Inputs for `generate`, and the answers that belong to them."""

    inputs: dict[str, Any]
    answers: torch.Tensor | None  # labels without those of the prompts; -100 behind
    lengths: torch.Tensor | None = None  # tokens in each prompt; None: the model writes from its start token


def prompts_of_encoder_decoder(batch: Mapping[str, Any], label_names: Sequence[str]) -> Prompts:
    """Everything but the labels, and what was made of these."""
    labels = _labels_in(batch, label_names)
    made_of_labels = batch.get("decoder_input_ids")
    inputs = _without(batch, [*label_names, "labels", *_OF_WHOLE_ROWS])
    if labels is not None and made_of_labels is not None and made_of_labels.shape == labels.shape:
        inputs = _without(inputs, ["decoder_input_ids", "decoder_attention_mask"])
    return Prompts(inputs, labels)


def prompts_of_decoder(batch: Mapping[str, Any], label_names: Sequence[str], pad_token: int | None) -> Prompts:
    """The prompts, left-padded: those of the column `generation_input_ids`, or what is before the answer.

    The answer is the last run of labels that are not -100, so that of several turns the last is generated. A batch
    without labels is all prompt.
    """
    refuse_packed(batch)
    labels, tokens = _labels_in(batch, label_names), batch.get("input_ids")
    rest = _without(batch, [*label_names, "labels", PROMPT, PROMPT_MASK, *_OF_WHOLE_ROWS])
    if PROMPT in batch:
        per_token = {"input_ids": batch[PROMPT]}
        real = _real_tokens(batch[PROMPT], batch.get(PROMPT_MASK), pad_token)
        # What else has an entry for each token belongs to the whole rows.
        rest = {name: value for name, value in rest.items() if tokens is None or not _is_like(value, tokens)}
        answers = None if labels is None else _to_the_left(labels, _last_run(labels)[1], IGNORED_LABEL)
    elif tokens is None:
        return Prompts(rest, labels)  # embeddings, or images alone: nothing tells a prompt from an answer
    else:
        per_token = {name: value for name, value in rest.items() if _is_like(value, tokens) and name not in _MASK}
        real, answers = _real_tokens(tokens, batch.get("attention_mask"), pad_token), labels
        if labels is not None and labels.shape == tokens.shape:
            start, run = _last_run(labels)
            place = torch.arange(tokens.shape[1], device=tokens.device)
            real = real & ((place < start[:, None]) | (start < 0)[:, None])
            answers = _to_the_left(labels, run, IGNORED_LABEL)
    lengths = real.sum(1)
    _refuse_empty(lengths)
    pads = {"input_ids": pad_token if pad_token is not None else 0}
    moved = {name: _to_the_right(value, real, pads.get(name, 0)) for name, value in per_token.items()}
    moved["attention_mask"] = _to_the_right(real.long(), real, 0)
    return Prompts({**rest, **moved}, answers, lengths)


_MASK = ("attention_mask",)


def refuse_packed(batch: Mapping[str, Any]) -> None:
    """ValueError for rows that lie one after the other in a batch."""
    found = next((name for name in _PACKED if batch.get(name) is not None), None)
    positions, mask = batch.get("position_ids"), batch.get("attention_mask")
    if found is None and mask is None and isinstance(positions, torch.Tensor) and positions.dim() == 2:
        found = "position_ids that begin anew" if bool((positions[:, 1:] < positions[:, :-1]).any()) else None
    if found is None and isinstance(mask, torch.Tensor) and mask.dim() != 2:
        found = f"an attention_mask of shape {tuple(mask.shape)}"
    if found is None and isinstance(mask, Mapping):
        found = "an attention_mask for each kind of attention"
    if found is not None:
        raise ValueError(
            f"predict_with_generate=True needs one row for each prompt, and this batch has {found}: its rows are "
            "packed into one. Give the evaluation padded rows, by a collator such as DataCollatorForSeq2Seq; "
            "batching='packed' packs those of the training only."
        )


def _real_tokens(tokens: torch.Tensor, mask: Any, pad_token: int | None) -> torch.Tensor:
    """Where the tokens of the rows are; without a mask, all but the padding tokens at the beginning and the end."""
    if isinstance(mask, torch.Tensor):
        return mask.bool()
    if pad_token is None:
        return torch.ones_like(tokens, dtype=torch.bool)
    found = tokens != pad_token
    after, before = found.long().cumsum(1) > 0, found.long().flip(1).cumsum(1).flip(1) > 0
    return after & before


def _last_run(labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the last labels without a gap begin in each row, -1 where there are none; and which these are."""
    counted = labels != IGNORED_LABEL
    before = torch.nn.functional.pad(counted, (1, 0))[:, :-1]
    place = torch.arange(labels.shape[1], device=labels.device)
    start = (
        torch.where(counted & ~before, place, -1).amax(1) if labels.shape[1] else labels.new_full((len(labels),), -1)
    )
    return start, counted & (place >= start[:, None])


def _to_the_right(values: torch.Tensor, real: torch.Tensor, fill: int) -> torch.Tensor:
    """The real ones of each row in their order at its end, as wide as the most of them."""
    order = real.long().argsort(dim=1, stable=True)[:, real.shape[1] - int(real.sum(1).max()) :]
    return values.gather(1, order).masked_fill(~real.gather(1, order), fill)


def _to_the_left(values: torch.Tensor, real: torch.Tensor, fill: int) -> torch.Tensor:
    order = (~real).long().argsort(dim=1, stable=True)[:, : max(int(real.sum(1).max()), 1)]
    return values.gather(1, order).masked_fill(~real.gather(1, order), fill)


def _refuse_empty(lengths: torch.Tensor) -> None:
    empty = [row for row, length in enumerate(lengths.tolist()) if not length]
    if empty:
        raise ValueError(
            f"predict_with_generate=True: row {empty[0]} of an evaluation batch has no prompt, for its labels begin "
            f"with its first token. Set the labels of the prompt to -100, or give each row its prompt in {PROMPT!r}."
        )


def _labels_in(batch: Mapping[str, Any], label_names: Sequence[str]) -> torch.Tensor | None:
    found = (batch.get(name) for name in ("labels", *label_names))
    return next((value for value in found if isinstance(value, torch.Tensor)), None)


def _is_like(value: Any, tokens: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == tokens.shape


def _without(batch: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}
