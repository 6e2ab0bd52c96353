"""Train a GPT on the bytes of a text: the same file on a laptop and on 64 GPUs, ended and resumed at any time.

python train.py TEXT OUTPUT_DIR [--name value ...], from any folder. TEXT is any file, its bytes are the tokens: a
README is enough for a try, as in python train.py ../../README.md out --layers 2 --width 64 --steps 20.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from kunren import Trainer, TrainingArguments


def rows_of(path: Path, length: int) -> list[dict[str, torch.Tensor]]:
    text = torch.from_numpy(np.fromfile(path, dtype=np.uint8).astype(np.int64))
    return [{"input_ids": row, "labels": row} for row in text.split(length) if len(row) == length]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path, help="a file that all machines see")
    parser.add_argument("output_dir", help="a folder that all machines see")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--length", type=int, default=512, help="bytes in a row")
    parser.add_argument("--batch", type=int, default=16, help="rows of each process in a step")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--save-steps", type=int, default=500)
    parser.add_argument("--max-minutes", type=float, help="save and stop before so many are over")
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=options.output_dir,
        per_device_train_batch_size=options.batch,
        max_steps=options.steps,
        learning_rate=3e-4,
        lr_scheduler_type="cosine",
        warmup_steps=min(500, options.steps // 10),
        bf16=torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        save_steps=options.save_steps,
        save_total_limit=3,
        max_minutes=options.max_minutes,
        resume_from_checkpoint="auto",  # what was started again goes on; what is new begins
        logging_steps=50,
    )
    config = GPT2Config(
        vocab_size=256,
        n_positions=options.length,
        n_layer=options.layers,
        n_embd=options.width,
        n_head=max(1, options.width // 64),
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows_of(options.text, options.length))
    trainer.train()
    if trainer.was_interrupted:
        return 75  # what schedulers are told here to read as: start me again
    trainer.save_model()
    return 0


if __name__ == "__main__":
    sys.exit(main())
