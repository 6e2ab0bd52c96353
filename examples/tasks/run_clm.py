"""Causal language modelling: predict the next token of text from txt, json, csv and parquet files.

python run_clm.py --model_name_or_path MODEL --train_file train.txt --validation_file dev.txt --do_train --do_eval
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from itertools import chain

from generated_data import rhymes
from starting_points import (
    byte_pairs,
    checkpoint_to_resume,
    first,
    model_for,
    read_data,
    refuse_idleness,
    small_gpt2,
    tell_data,
    tokenizer_for,
)
from transformers import AutoModelForCausalLM

from kunren import HfArgumentParser, Trainer, TrainingArguments, default_data_collator, set_seed

DEMONSTRATION = """--output_dir runs/run_clm --do_train --do_eval --block_size 64 --max_steps 400 --learning_rate 3e-3
--per_device_train_batch_size 16 --per_device_eval_batch_size 32 --lr_scheduler_type cosine --warmup_steps 40
--max_eval_samples 200 --save_strategy no --logging_steps 50 --report_to none --disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new GPT-2."})
    config_name: str | None = field(default=None, metadata={"help": "A configuration, to train a model from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer other than the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    dtype: str = field(default="auto", metadata={"help": "The number format to load the model in, as in float32."})


@dataclass
class DataTrainingArguments:
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A txt, csv, json, jsonl or parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    text_column: str = field(default="text", metadata={"help": "The column of the text."})
    block_size: int | None = field(default=None, metadata={"help": "Tokens of an example; None: 1024 or fewer."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many blocks only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many only."})
    validation_split_percentage: int = field(default=5, metadata={"help": "Held out where nothing is to evaluate on."})


def main(words: list[str]) -> dict[str, float]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(words[0])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(words or DEMONSTRATION.split())
    refuse_idleness(training_args, "do_train", "do_eval")
    set_seed(training_args.seed)

    data = read_data(data_args, "tiny_shakespeare", rhymes)
    if "validation" not in data:
        parts = data["train"].train_test_split(
            data_args.validation_split_percentage / 100, seed=training_args.data_seed
        )
        data["train"], data["validation"] = parts["train"], parts["test"]
    text = (
        data_args.text_column if data_args.text_column in data["train"].column_names else data["train"].column_names[0]
    )

    tokenizer = tokenizer_for(model_args, byte_pairs, data["train"][text])
    model = model_for(model_args, AutoModelForCausalLM, small_gpt2(tokenizer), dtype=model_args.dtype)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))

    longest = getattr(model.config, "max_position_embeddings", None) or 1024
    block_size = min(data_args.block_size or 1024, longest, tokenizer.model_max_length)

    def blocks(batch):
        """All texts one after the other, cut into blocks; what does not fill one is left out."""
        tokens = list(
            chain.from_iterable(tokenizer(batch[text], return_attention_mask=False, verbose=False)["input_ids"])
        )
        cut = [tokens[start : start + block_size] for start in range(0, len(tokens) - block_size + 1, block_size)]
        return {"input_ids": cut, "labels": [list(block) for block in cut]}

    with training_args.main_process_first(desc="tokenizing"):
        data = data.map(blocks, batched=True, remove_columns=data["train"].column_names)
    train = first(data["train"], data_args.max_train_samples)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=first(data["validation"], data_args.max_eval_samples) if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    results = {}
    if training_args.do_train:
        metrics = trainer.train(resume_from_checkpoint=checkpoint_to_resume(training_args)).metrics
        metrics["train_samples"] = len(train)
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
        results |= metrics
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(trainer.eval_dataset)
        metrics["perplexity"] = math.exp(min(metrics["eval_loss"], 700))
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results |= metrics
    if training_args.push_to_hub:
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="text-generation")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
