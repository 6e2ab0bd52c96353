"""Masked language modelling: fill in what was masked, in text from txt, json, csv and parquet files.

python run_mlm.py --model_name_or_path MODEL --train_file train.txt --validation_file dev.txt --do_train --do_eval
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from itertools import chain

from generated_data import rhymes
from starting_points import (
    checkpoint_to_resume,
    first,
    model_for,
    read_data,
    refuse_idleness,
    small_bert,
    tell_data,
    tokenizer_for,
    word_pieces,
)
from transformers import AutoModelForMaskedLM

from kunren import DataCollatorForLanguageModeling, HfArgumentParser, Trainer, TrainingArguments, set_seed

DEMONSTRATION = """--output_dir runs/run_mlm --do_train --do_eval --line_by_line --max_seq_length 48
--num_train_epochs 3 --per_device_train_batch_size 64 --per_device_eval_batch_size 64 --learning_rate 2e-3
--warmup_steps 0.1 --save_strategy no --logging_steps 100 --report_to none --disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new BERT."})
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
    max_seq_length: int | None = field(default=None, metadata={"help": "Tokens of an example; None: 1024 or fewer."})
    mlm_probability: float = field(default=0.15, metadata={"help": "The share of tokens that are masked."})
    line_by_line: bool = field(
        default=False, metadata={"help": "Each line is an example; else all are joined and cut."}
    )
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to max_seq_length, not to the longest."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many examples only."})
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

    data = read_data(data_args, "snips", rhymes)
    if "validation" not in data:
        parts = data["train"].train_test_split(
            data_args.validation_split_percentage / 100, seed=training_args.data_seed
        )
        data["train"], data["validation"] = parts["train"], parts["test"]
    text = (
        data_args.text_column if data_args.text_column in data["train"].column_names else data["train"].column_names[0]
    )

    tokenizer = tokenizer_for(model_args, word_pieces, data["train"][text])
    model = model_for(model_args, AutoModelForMaskedLM, small_bert(tokenizer), dtype=model_args.dtype)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))

    longest = getattr(model.config, "max_position_embeddings", None) or 1024
    length = min(data_args.max_seq_length or 1024, longest, tokenizer.model_max_length)

    def lines(batch):
        kept = [line for line in batch[text] if line and not line.isspace()]
        padding = "max_length" if data_args.pad_to_max_length else False
        return tokenizer(kept, padding=padding, truncation=True, max_length=length, return_special_tokens_mask=True)

    def blocks(batch):
        """All texts one after the other, cut into blocks; what does not fill one is left out."""
        found = tokenizer(batch[text], return_special_tokens_mask=True, verbose=False)
        joined = {name: list(chain.from_iterable(values)) for name, values in found.items()}
        starts = range(0, len(joined["input_ids"]) - length + 1, length)
        return {name: [values[start : start + length] for start in starts] for name, values in joined.items()}

    with training_args.main_process_first(desc="tokenizing"):
        data = data.map(
            lines if data_args.line_by_line else blocks, batched=True, remove_columns=data["train"].column_names
        )
    train = first(data["train"], data_args.max_train_samples)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=first(data["validation"], data_args.max_eval_samples) if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=data_args.mlm_probability),
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
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="fill-mask")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
