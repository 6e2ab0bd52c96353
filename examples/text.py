"""Train a tiny GPT from scratch on Python's own reference text, and see what it writes before and after.

python text.py "The assignment statement"
"""

from __future__ import annotations

import argparse
import math
import pydoc_data.topics

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from kunren import Trainer, TrainingArguments, set_seed

VOCABULARY, LENGTH, END = 1024, 128, "<|endoftext|>"


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=[END], show_progress=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token=END, pad_token=END)


def blocks(texts: list[str], tokenizer: PreTrainedTokenizerFast) -> list[dict[str, list[int]]]:
    """All texts in one row, cut into pieces of equal length; the model itself shifts the labels by one."""
    ids = tokenizer(END.join(texts), verbose=False)["input_ids"]
    starts = range(0, len(ids) - LENGTH + 1, LENGTH)
    return [{"input_ids": ids[start : start + LENGTH], "labels": ids[start : start + LENGTH]} for start in starts]


def write(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, beginning: str) -> str:
    torch.manual_seed(0)
    inputs = tokenizer(beginning, return_tensors="pt")
    tokens = model.eval().generate(**inputs, max_new_tokens=80, do_sample=True, temperature=0.8, top_k=50)
    return tokenizer.decode(tokens[0], skip_special_tokens=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("beginning", nargs="?", default="The for statement is used to")
    parser.add_argument("--output-dir", default="runs/text")
    options = parser.parse_args()

    texts = [text for _, text in sorted(pydoc_data.topics.topics.items())]
    train_texts = [text for number, text in enumerate(texts) if number % 10 != 0]
    tokenizer = train_tokenizer(train_texts)
    train, test = blocks(train_texts, tokenizer), blocks(texts[::10], tokenizer)

    set_seed(0)
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    size = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 4, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=True, **size, **ends))
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=options.output_dir,
            max_steps=600,
            per_device_train_batch_size=8,
            per_device_eval_batch_size=32,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            warmup_steps=30,
            logging_steps=50,
            save_strategy="no",
            prediction_loss_only=True,
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,
    )
    before, written_before = math.exp(trainer.evaluate()["eval_loss"]), write(model, tokenizer, options.beginning)
    trainer.train()
    after, written_after = math.exp(trainer.evaluate()["eval_loss"]), write(model, tokenizer, options.beginning)
    trainer.save_model()

    print(f"\n--- before\n{written_before}\n\n--- after\n{written_after}\n")
    print(f"perplexity on text it never saw: {before:.0f} before, {after:.0f} after training")
    print(f"the model is in {options.output_dir}: AutoModelForCausalLM.from_pretrained reads it")


if __name__ == "__main__":
    main()
