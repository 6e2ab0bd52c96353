"""Sequence to sequence, from scratch: how English words are spoken, and Japanese sentences in English."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

import kunren
from tasks.data import arguments, rows, task

pytestmark = task("cmudict_g2p", "tanaka_ja_en", packages=("torchmetrics",))

HIGHEST_PHONEME_ERROR_RATE = 0.25
LOWEST_CHRF, LOWEST_TOKEN_ACCURACY = 0.14, 0.42


def symbol_tokenizer(symbols: Sequence[str]) -> PreTrainedTokenizerFast:
    """One token for each symbol between blanks, and an end after the last."""
    vocabulary = {symbol: number for number, symbol in enumerate(["<pad>", "</s>", "<unk>", *symbols])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def tokenized(part: Any, tokenizer: Any, source: str, target: str) -> Any:
    """The characters of the source, and the words of the target as labels."""

    def encoded(batch: dict[str, Any]) -> Any:
        characters = [" ".join(text) for text in batch[source]]
        inputs = tokenizer(characters, return_token_type_ids=False)
        return {**inputs, "labels": tokenizer(batch[target])["input_ids"]}

    return part.map(encoded, batched=True, remove_columns=part.column_names)


def written(model: Any, tokenizer: Any, part: Any, longest: int) -> list[str]:
    """What the model writes for each source, the likeliest token each time."""
    collate = kunren.DataCollatorWithPadding(tokenizer)
    model.eval()
    texts: list[str] = []
    for start in range(0, len(part), 100):
        columns = part[start : start + 100]
        batch = collate([{"input_ids": ids} for ids in columns["input_ids"]])
        with torch.no_grad():
            tokens = model.generate(**batch, max_new_tokens=longest, num_beams=1, do_sample=False)
        texts += tokenizer.batch_decode(tokens, skip_special_tokens=True)
    return texts


def edits(answer: Sequence[str], truth: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements from one to the other (Levenshtein, 1966)."""
    row = list(range(len(truth) + 1))
    for left in answer:
        before, row[0] = row[0], row[0] + 1
        for place, right in enumerate(truth, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (left != right))
    return row[-1]


def chrf(answers: Sequence[str], truths: Sequence[str], longest: int = 6, beta: float = 2.0) -> float:
    """F-score of character n-grams over all sentences (Popović, 2015), 0 to 1."""
    precision = recall = 0.0
    for length in range(1, longest + 1):
        common = answered = wanted = 0
        for pair in zip(answers, truths, strict=True):
            left, right = ("".join(text.split()) for text in pair)
            ours, theirs = (
                Counter(text[i : i + length] for i in range(len(text) - length + 1)) for text in (left, right)
            )
            common, answered, wanted = (
                common + (ours & theirs).total(),
                answered + ours.total(),
                wanted + theirs.total(),
            )
        precision, recall = precision + common / max(1, answered) / longest, recall + common / max(1, wanted) / longest
    return (1 + beta**2) * precision * recall / max(1e-9, beta**2 * precision + recall)


def train(tokenizer: Any, parts: tuple[Any, Any], folder: Path) -> kunren.Trainer:
    """A small BART from scratch; twice through the first part, evaluated on the second."""
    size = {"layers": 2, "ffn_dim": 256, "attention_heads": 4}
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        dropout=0.0,
        init_std=0.08,  # 1 / sqrt(d_model); the default is made for models eight times as wide
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=1,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in size.items()},
    )
    model = BartForConditionalGeneration(config)
    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=100,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=0.1,
            batching="grouped",
            metrics=["token_accuracy"],
        ),
        train_dataset=parts[0],
        eval_dataset=parts[1],
        data_collator=kunren.DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


def without_stress(row: dict[str, str]) -> dict[str, str]:
    return {"phonemes": "".join(character for character in row["phonemes"] if not character.isdigit())}


def test_a_small_bart_says_how_words_are_spoken(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    words, test = (rows("cmudict_g2p", split).map(without_stress) for split in ("train", "test"))
    symbols = sorted({symbol for spoken in words["phonemes"] for symbol in spoken.split()})
    tokenizer = symbol_tokenizer([*"abcdefghijklmnopqrstuvwxyz", *symbols])
    parts = tuple(tokenized(part, tokenizer, "word", "phonemes") for part in (words, test))
    trainer = train(tokenizer, parts, tmp_path)

    answers, truths = written(trainer.model, tokenizer, parts[1], longest=20), test["phonemes"][:]
    wrong = sum(edits(answer.split(), truth.split()) for answer, truth in zip(answers, truths, strict=True))
    rate = wrong / sum(len(truth.split()) for truth in truths)
    accuracy = trainer.evaluate()["eval_token_accuracy"]
    report("seq2seq, CMUdict, small BART", phoneme_error_rate=rate, token_accuracy=accuracy)
    assert rate < HIGHEST_PHONEME_ERROR_RATE


def test_a_small_bart_translates_short_japanese_sentences(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    pairs, test = rows("tanaka_ja_en", "train"), rows("tanaka_ja_en", "test").select(range(200))
    characters = Counter(character for sentence in pairs["ja"] for character in sentence)
    words = Counter(word for sentence in pairs["en"] for word in sentence.split())
    frequent = [symbol for symbol, count in characters.items() if count > 1]
    frequent += [word for word, count in words.items() if count > 2 and characters[word] < 2]  # "!" is in both
    tokenizer = symbol_tokenizer(frequent)
    parts = tuple(tokenized(part, tokenizer, "ja", "en") for part in (pairs, test))
    trainer = train(tokenizer, parts, tmp_path)

    answers = written(trainer.model, tokenizer, parts[1], longest=24)
    score, accuracy = chrf(answers, test["en"][:]), trainer.evaluate()["eval_token_accuracy"]
    report("seq2seq, Japanese to English, small BART", chrf=score, token_accuracy=accuracy)
    print(f"  {test['ja'][0]}  {answers[0]}  (right: {test['en'][0]})")
    assert score > LOWEST_CHRF
    assert accuracy > LOWEST_TOKEN_ACCURACY
