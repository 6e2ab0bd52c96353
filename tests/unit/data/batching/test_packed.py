"""Packed batches hold the very tokens and labels of padded ones, and attention stays within each sequence."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
)

import kunren
from kunren.data.batching import packed_attention as attention
from kunren.data.batching.packed import Packing, packing_collator, packing_for, positions
from kunren.data.batching.packed_model import pack_model
from kunren.losses.counting import counted_labels
from kunren.model.signature import read_signature

SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 20,
    "pad_token_id": 1,
}
FLAT = Packing(True, False, True, 0, True, ("labels",))
LENGTHS = st.lists(st.integers(1, 7), min_size=1, max_size=6)


def llama() -> LlamaForCausalLM:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def packing(model: nn.Module) -> Packing:
    return packing_for(model, read_signature(model).label_names)


class Padding:
    """Pads at either side; with `masks`, hides tokens at random, as masked language modelling does."""

    def __init__(self, side: str = "right", masks: bool = False, leaves_out: str = "") -> None:
        self.side, self.masks, self.leaves_out = side, masks, leaves_out

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        width = max(len(row["input_ids"]) for row in rows)

        def padded(values: list[int], fill: int) -> list[int]:
            blank = [fill] * (width - len(values))
            return blank + values if self.side == "left" else values + blank

        tokens = torch.tensor([padded(row["input_ids"], 1) for row in rows])
        mask = torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows])
        labels = tokens.masked_fill(mask == 0, -100)
        if self.masks:
            hidden = (torch.rand(tokens.shape) < 0.4) & (mask == 1)
            labels, tokens = labels.masked_fill(~hidden, -100), tokens.masked_fill(hidden, 4)
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": labels}
        batch["weight"] = torch.tensor([float(len(row["input_ids"])) for row in rows])
        batch.pop(self.leaves_out, None)
        return batch


def rows_of(lengths: list[int]) -> list[dict[str, list[int]]]:
    return [{"input_ids": torch.randint(5, 60, (length,)).tolist()} for length in lengths]


@given(LENGTHS, st.sampled_from(["left", "right"]), st.booleans(), st.booleans(), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_the_padding_goes_and_nothing_else(lengths: list[int], side: str, masks: bool, shifts: bool, seed: int) -> None:
    collator, rows = Padding(side, masks), rows_of(lengths)
    torch.manual_seed(seed)
    padded = collator(rows)
    torch.manual_seed(seed)
    packed = packing_collator(collator, Packing(True, False, True, 0, shifts, ("labels",)))(rows)
    real = padded["attention_mask"] == 1
    assert packed["packed_lengths"] == lengths
    assert torch.equal(packed["input_ids"][0], padded["input_ids"][real])
    assert torch.equal(packed["position_ids"][0], torch.cat([torch.arange(length) for length in lengths]))
    assert torch.equal(packed["weight"], padded["weight"])
    assert "attention_mask" not in packed
    labels, first = padded["labels"][real], packed["position_ids"][0] == 0
    assert torch.equal(packed["labels"][0], labels.masked_fill(first, -100) if shifts else labels)
    if side == "right":
        assert counted_labels(packed, shifts) == counted_labels(padded, shifts)


def test_labels_of_rows_keep_the_padded_form_and_say_where_tokens_lie() -> None:
    def collator(rows: list[Any]) -> dict[str, torch.Tensor]:
        return {**Padding()(rows), "labels": torch.tensor([0] * len(rows))}

    rows = rows_of([3, 5, 2])
    packed = packing_collator(collator, FLAT)(rows)
    assert torch.equal(packed["input_ids"], collator(rows)["input_ids"])
    assert packed["packed_lengths"] == [3, 5, 2]
    assert packed["packed_indices"].tolist() == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]


def test_what_is_padding_has_to_be_known() -> None:
    collator = packing_collator(Padding(leaves_out="attention_mask"), FLAT)
    assert collator(rows_of([4, 4]))["packed_lengths"] == [4, 4]
    with pytest.raises(ValueError, match=r"attention_mask.*\(2, 4\), not none"):
        collator(rows_of([4, 3]))
    with pytest.raises(ValueError, match=r"`input_ids` of shape \(rows, length\)"):
        packing_collator(Padding(leaves_out="input_ids"), FLAT)(rows_of([4, 3]))


def test_the_automatic_collator_is_given_columns_still() -> None:
    class OfColumns:
        def __call__(self, rows: Any) -> Any:
            raise AssertionError("rows were not needed")

        def collate_columns(self, columns: Any) -> Any:
            return Padding()(columns)

    packed = packing_collator(OfColumns(), FLAT)
    assert packed.collate_columns(rows_of([2, 3]))["packed_lengths"] == [2, 3]  # type: ignore[attr-defined]
    assert not hasattr(packing_collator(Padding(), FLAT), "collate_columns")


def test_positions_begin_where_the_model_begins() -> None:
    roberta = RobertaForMaskedLM(RobertaConfig(**SIZES))
    assert packing(roberta).first_position == 2
    assert positions([3, 1], 2).tolist() == [[2, 3, 4, 2]]


def dense(query: Any, key: Any, value: Any, lengths: list[int], causal: bool, window: int | None) -> torch.Tensor:
    """The same by a total x total mask."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    place = torch.arange(len(row))
    distance = place[:, None] - place
    mask = row[:, None] == row
    if causal:
        mask &= distance >= 0
    if window is not None:
        mask &= distance.abs() < window
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=0.3).transpose(1, 2)


def inputs(total: int, heads: int = 4, groups: int = 2) -> list[torch.Tensor]:
    counts = (heads, heads // groups, heads // groups)
    return [torch.randn(1, count, total, 8, dtype=torch.float64).requires_grad_() for count in counts]


@given(LENGTHS, st.booleans(), st.sampled_from([None, 1, 3]))
@settings(max_examples=40, deadline=None)
def test_attention_by_sequence_is_attention_under_the_block_mask(
    lengths: list[int], causal: bool, window: int | None
) -> None:
    parts = inputs(sum(lengths))
    expected = dense(*parts, lengths, causal, window)
    out = attention.by_sequence(*parts, attention.Boundaries(lengths), 0.0, 0.3, causal, window)
    torch.testing.assert_close(out, expected)
    weights = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad((out * weights).sum(), parts), torch.autograd.grad((expected * weights).sum(), parts)
    )


@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3), (False, 3)])
def test_flash_attention_is_told_the_same(causal: bool, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither kernel runs without a GPU: what they are handed is computed here by their documented meaning."""
    lengths = [4, 1, 6]
    parts = inputs(11)
    expected = dense(*parts, lengths, causal, window)

    def compute(query: Any, key: Any, value: Any, ends: torch.Tensor, causal: bool, size: tuple[int, int]) -> Any:
        assert ends.dtype is torch.int32 and ends.tolist() == [0, 4, 5, 11]
        assert size[1] == (0 if causal and size[0] >= 0 else size[0])
        back = [part.transpose(0, 1).unsqueeze(0) for part in (query, key, value)]
        return dense(*back, lengths, causal, None if size[0] < 0 else size[0] + 1)[0]

    def flash(query: Any, key: Any, value: Any, **told: Any) -> Any:
        assert told["max_seqlen_q"] == told["max_seqlen_k"] == 6 and told["softmax_scale"] == 0.3
        assert told["dropout_p"] == 0.0 and told["cu_seqlens_q"] is told["cu_seqlens_k"]
        return compute(query, key, value, told["cu_seqlens_q"], told["causal"], told["window_size"])

    monkeypatch.setitem(sys.modules, "flash_attn", types.SimpleNamespace(flash_attn_varlen_func=flash))
    arguments: Any = (attention.Boundaries(lengths), 0.0, 0.3, causal, window)
    torch.testing.assert_close(attention.by_flash_attention(*parts, *arguments), expected)

    def varlen(query: Any, key: Any, value: Any, ends: Any, same: Any, longest: int, also: int, **told: Any) -> Any:
        assert ends is same and longest == also == 6 and told["scale"] == 0.3 and told["enable_gqa"]
        return compute(query, key, value, ends, told["window_size"] == (-1, 0), (-1, -1))

    if window is None:
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen)
        torch.testing.assert_close(attention.by_torch_varlen(*parts, *arguments), expected)


def test_the_kernel_is_chosen_by_device_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    def query(dtype: torch.dtype, size: int = 64, is_cuda: bool = True) -> Any:
        return types.SimpleNamespace(is_cuda=is_cuda, dtype=dtype, shape=(1, 2, 9, size), device=torch.device("cuda"))

    half = torch.bfloat16
    monkeypatch.setattr(attention, "_has_torch_varlen", lambda device: True)
    monkeypatch.setattr(attention, "_has_flash_attention", lambda: True)
    assert attention._kernel(query(half, is_cuda=False), 0.0, None) is attention.by_sequence
    assert attention._kernel(query(torch.float32), 0.0, None) is attention.by_sequence
    assert attention._kernel(query(half), 0.1, 5) is attention.by_flash_attention
    monkeypatch.setattr(attention, "_has_flash_attention", lambda: False)
    assert attention._kernel(query(half), 0.0, None) is attention.by_torch_varlen
    assert attention._kernel(query(half), 0.1, None) is attention.by_sequence
    assert attention._kernel(query(half), 0.0, 5) is attention.by_sequence
    assert attention._kernel(query(half, size=20), 0.0, None) is attention.by_sequence


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = BertModel(BertConfig(**SIZES)), BertModel(BertConfig(**SIZES))

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        raise AssertionError("refused before it is called")


T5 = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Linear(2, 2), "Linear: it is no model of transformers.*cu_seq_lens"),
        (Pair, "Pair: it holds 2 models of transformers"),
        (lambda: T5ForConditionalGeneration(T5Config(**T5)), "encoder-decoder"),
        (lambda: BertForQuestionAnswering(BertConfig(**SIZES)), "padding included"),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=60, hidden_size=16, n_layer=1, n_head=2)), "not one that"),
        (lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES, num_key_value_heads=2, head_dim=8)), "uses softcap"),
    ],
)
def test_what_cannot_be_packed_is_refused_before_training(make: Any, reason: str) -> None:
    model = make()
    with pytest.raises(ValueError, match=reason) as refusal:
        pack_model(model, packing(model))
    assert "batching='packed'" in str(refusal.value) and "batching='grouped'" in str(refusal.value)
    assert not attention.RUNS


class Mixing(BertModel):
    """Adds up over whatever lies in its row."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state.cumsum(1)
        return output


class Counting(BertModel):
    """Numbers its tokens itself."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, **kwargs: Any) -> Any:
        return super().forward(input_ids, attention_mask=attention_mask)


@pytest.mark.parametrize("kind", [Mixing, Counting])
def test_a_model_whose_tokens_come_out_otherwise_is_refused(kind: type[BertModel]) -> None:
    model = kind(BertConfig(**SIZES))
    with pytest.raises(ValueError, match=f"{kind.__name__}: a few tokens, packed, come out otherwise"):
        pack_model(model, packing(model))


class Twice(nn.Module):
    """Reads two texts a row with one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = BertModel(BertConfig(**SIZES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        one = self.encoder(input_ids, attention_mask=attention_mask).pooler_output
        two = self.encoder(other, attention_mask=(other != 1).long()).pooler_output
        return (one * two).sum()


def test_an_encoder_that_is_called_twice_packs_each_call_by_its_own_mask() -> None:
    model = Twice().train()
    rows: dict[str, Any] = {
        "input_ids": torch.tensor([[5, 6, 7], [8, 1, 1]]),
        "other": torch.tensor([[9, 1], [10, 11]]),
    }
    rows["attention_mask"] = (rows["input_ids"] != 1).long()
    padded = model(**rows)
    expected = torch.autograd.grad(padded, model.encoder.pooler.dense.weight)[0]
    undo = pack_model(model, packing(model))
    packed = model(**rows, packed_lengths=[3, 1], packed_indices=torch.tensor([0, 1, 2, 3]))
    torch.testing.assert_close(packed, padded)
    torch.testing.assert_close(torch.autograd.grad(packed, model.encoder.pooler.dense.weight)[0], expected)
    model.encoder.activation_checkpointing_enable()
    with pytest.raises(ValueError, match="calls its encoder several times"):
        model(**rows)
    undo()


def test_everything_is_put_back() -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES)).train()
    before = model.config._attn_implementation
    hooks = [(len(part._forward_pre_hooks), len(part._forward_hooks)) for part in model.modules()]
    undo = pack_model(model, packing(model))
    tokens = torch.tensor([[5, 6, 7], [8, 9, 1]])
    model(input_ids=tokens, attention_mask=(tokens != 1).long(), labels=torch.tensor([0, 1])).loss.backward()
    assert model.config._attn_implementation == attention.NAME and all(part.training for part in model.modules())
    undo()
    assert model.config._attn_implementation == before and not attention.RUNS
    assert hooks == [(len(part._forward_pre_hooks), len(part._forward_hooks)) for part in model.modules()]


def test_tokens_without_their_boundaries_are_refused_not_mixed() -> None:
    model = llama().train()
    undo = pack_model(model, packing(model))
    with pytest.raises(ValueError, match="not told where sequences end"):
        model(input_ids=torch.tensor([[5, 6, 7, 8]]), position_ids=torch.tensor([[0, 1, 0, 1]]))
    model(input_ids=torch.tensor([[5, 6, 7, 8]]), packed_lengths=[2, 2])
    with pytest.raises(RuntimeError, match="Call the whole model"):
        model.model.layers[0].self_attn(torch.randn(1, 3, 16), (torch.ones(1, 3, 8), torch.zeros(1, 3, 8)))
    undo()


@pytest.mark.parametrize("make", [llama, lambda: BertForMaskedLM(BertConfig(**SIZES))])
def test_nothing_leaks_over_a_boundary(make: Any) -> None:
    """Other tokens in one sequence leave the losses of the others equal to the last bit."""
    model = make().train()
    undo = pack_model(model, packing(model))
    lengths = [4, 6, 5]
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    tokens = torch.randint(5, 60, (1, 15))
    other = tokens.clone()
    other[0, 4:10] = torch.randint(5, 60, (6,))
    logits = [
        model(input_ids=batch, position_ids=positions(lengths, 0), packed_lengths=lengths).logits[0]
        for batch in (tokens, other)
    ]
    undo()
    losses = [nn.functional.cross_entropy(one, tokens[0], reduction="none") for one in logits]
    assert torch.equal(losses[0][:4], losses[1][:4]) and torch.equal(losses[0][10:], losses[1][10:])
    assert not torch.equal(losses[0][4:10], losses[1][4:10])


@pytest.mark.parametrize("option", [{"neftune_noise_alpha": 5.0}, {"torch_compile": True}])
def test_options_that_go_by_padded_rows_are_refused(option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"batching='packed' cannot work.*{next(iter(option))}"):
        kunren.TrainingArguments(output_dir="unused", batching="packed", **option)


def test_rows_without_any_token() -> None:
    assert positions([], 0).shape == (1, 0)
    assert positions([], 0).dtype is torch.int64
