"""What a model writes gets better in training, by its evaluations: of an encoder-decoder, and of a decoder alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import BartConfig, BartForConditionalGeneration, LlamaConfig, LlamaForCausalLM

import kunren
from kunren.seq2seq import Seq2SeqTrainer, Seq2SeqTrainingArguments
from tasks.data import rows, task
from tasks.test_seq2seq import symbol_tokenizer, tokenized, without_stress

pytestmark = task("cmudict_g2p", packages=("torchmetrics",))

LETTERS, TOKENS = "abcdefghijklmnopqrstuvwxyz", {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}


def words(count: int) -> tuple[Any, Any, Any]:
    """A tokenizer of letters and phonemes, so many words to learn from, and others."""
    known = rows("cmudict_g2p", "train").shuffle(seed=0).select(range(count)).map(without_stress)
    others = rows("cmudict_g2p", "test").select(range(200)).map(without_stress)
    symbols = sorted({symbol for spoken in known["phonemes"] for symbol in spoken.split()})
    tokenizer = symbol_tokenizer([*LETTERS, *symbols])
    return tokenizer, *(tokenized(part, tokenizer, "word", "phonemes") for part in (known, others))


def evaluations(model: Any, tokenizer: Any, known: Any, others: Any, folder: Path) -> list[dict[str, Any]]:
    """Before the first step, and after each of two epochs."""
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        num_train_epochs=2,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=100,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        batching="grouped",
        eval_strategy="epoch",
        eval_on_start=True,
        predict_with_generate=True,
        generation_config={"max_new_tokens": 20},
        metrics=["bleu", "chrf", "wer"],
    )
    trainer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=known,
        eval_dataset=others,
        data_collator=kunren.DataCollatorForSeq2Seq(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    return [entry for entry in trainer.state.log_history if "eval_chrf" in entry]


def assert_rising(found: list[dict[str, Any]], kind: str, report: Callable[..., None]) -> None:
    bleu, chrf, errors = ([entry[f"eval_{name}"] for entry in found] for name in ("bleu", "chrf", "wer"))
    report(f"generation, CMUdict, {kind}", bleu=bleu[-1], chrf=chrf[-1], phoneme_error_rate=errors[-1])
    assert chrf[0] < chrf[1] < chrf[2] and chrf[2] > 45
    assert bleu[0] < bleu[2] and errors[2] < errors[1] and errors[2] < 0.35


def test_an_encoder_decoder_learns_to_say_words(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    tokenizer, known, others = words(12_000)
    size = {"layers": 2, "ffn_dim": 256, "attention_heads": 4}
    config = BartConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        dropout=0.0,
        init_std=0.08,
        max_position_embeddings=64,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
        **TOKENS,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in size.items()},
    )
    model = BartForConditionalGeneration(config)
    assert_rising(evaluations(model, tokenizer, known, others, tmp_path), "BART", report)


def test_a_decoder_learns_to_say_words(tmp_path: Path, report: Callable[..., None]) -> None:
    """Letters, an end, and phonemes in one row."""
    kunren.set_seed(0)
    tokenizer, known, others = words(12_000)

    def joined(row: dict[str, Any]) -> dict[str, Any]:
        prompt, answer = row["input_ids"], row["labels"]
        return {
            "input_ids": prompt + answer,
            "attention_mask": [1] * len(prompt + answer),
            "labels": [-100] * len(prompt) + answer,
        }

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.08,
        **TOKENS,
    )
    parts = [part.map(joined) for part in (known, others)]
    assert_rising(evaluations(LlamaForCausalLM(config), tokenizer, *parts, tmp_path), "Llama", report)
