"""Translation: what a model generates is compared with translations of people (BLEU and chrF).

python run_translation.py --model_name_or_path MODEL --train_file train.json --do_train --do_eval
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
from generated_data import phrases
from starting_points import (
    byte_pairs,
    checkpoint_to_resume,
    first,
    model_for,
    read_data,
    refuse_idleness,
    small_bart,
    tell_data,
    tokenizer_for,
)
from text_scores import bleu, chrf
from transformers import AutoModelForSeq2SeqLM

from kunren import DataCollatorForSeq2Seq, HfArgumentParser, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

DEMONSTRATION = """--output_dir runs/run_translation --do_train --do_eval --do_predict --predict_with_generate
--source_lang ja --target_lang en --max_source_length 48 --max_target_length 32 --num_train_epochs 2
--max_train_samples 10000 --learning_rate 2e-3 --warmup_steps 0.1 --lr_scheduler_type cosine
--per_device_train_batch_size 32 --per_device_eval_batch_size 100 --max_eval_samples 200 --max_predict_samples 200
--save_strategy no --logging_steps 100 --report_to none --disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new BART."})
    config_name: str | None = field(default=None, metadata={"help": "A configuration, to train a model from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer other than the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})


@dataclass
class DataTrainingArguments:
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A csv, json, jsonl or parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict."})
    source_lang: str | None = field(default=None, metadata={"help": "The language to translate from, as 'en'."})
    target_lang: str | None = field(default=None, metadata={"help": "The language to translate into."})
    source_prefix: str = field(default="", metadata={"help": "What stands before each text, as T5 wants it."})
    max_source_length: int = field(default=1024, metadata={"help": "Tokens that a text is cut to."})
    max_target_length: int = field(default=128, metadata={"help": "Tokens that a translation is cut to."})
    val_max_target_length: int | None = field(default=None, metadata={"help": "Tokens to generate; None: as many."})
    num_beams: int | None = field(default=None, metadata={"help": "Beams to generate with."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to the longest there may be."})
    ignore_pad_token_for_loss: bool = field(default=True, metadata={"help": "Learn nothing from padding."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many only."})


def one_column_each(data):
    """Rows of {"translation": {"en": ..., "ja": ...}} as rows of {"en": ..., "ja": ...}, which others are already."""
    if data["train"].column_names != ["translation"]:
        return data
    return data.map(lambda row: row["translation"], remove_columns=["translation"])


def main(words: list[str]) -> dict[str, float]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(words[0])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(words or DEMONSTRATION.split())
    training_args.generation_max_length = (
        training_args.generation_max_length or data_args.val_max_target_length or data_args.max_target_length
    )
    training_args.generation_num_beams = data_args.num_beams or training_args.generation_num_beams
    refuse_idleness(training_args, "do_train", "do_eval", "do_predict")
    set_seed(training_args.seed)

    data = one_column_each(read_data(data_args, "tanaka_ja_en", phrases))
    columns = data["train"].column_names
    source, target = data_args.source_lang or columns[0], data_args.target_lang or columns[1]
    tokenizer = tokenizer_for(model_args, byte_pairs, [*data["train"][source], *data["train"][target]])
    if hasattr(tokenizer, "src_lang"):  # one of many languages
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
    model = model_for(model_args, AutoModelForSeq2SeqLM, small_bart(tokenizer))

    def encode(batch):
        padding = "max_length" if data_args.pad_to_max_length else False
        texts = [data_args.source_prefix + text for text in batch[source]]
        inputs = tokenizer(texts, max_length=data_args.max_source_length, padding=padding, truncation=True)
        translations = tokenizer(
            text_target=batch[target], max_length=data_args.max_target_length, padding=padding, truncation=True
        )
        inputs["labels"] = translations["input_ids"]
        if padding and data_args.ignore_pad_token_for_loss:
            inputs["labels"] = [
                [-100 if token == tokenizer.pad_token_id else token for token in row] for row in inputs["labels"]
            ]
        return inputs

    with training_args.main_process_first(desc="tokenizing"):
        data = data.map(encode, batched=True, remove_columns=columns)
    train = first(data["train"], data_args.max_train_samples)

    def texts_of(tokens):
        kept = np.where(tokens == -100, tokenizer.pad_token_id, tokens)
        return [text.strip() for text in tokenizer.batch_decode(kept, skip_special_tokens=True)]

    def compute_metrics(prediction):
        answers = texts_of(prediction.predictions)
        length = np.mean([np.count_nonzero(row != tokenizer.pad_token_id) for row in prediction.predictions])
        truths = texts_of(prediction.label_ids)
        return {"bleu": bleu(answers, truths), "chrf": chrf(answers, truths), "gen_len": float(length)}

    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=first(data["validation"], data_args.max_eval_samples) if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(
            tokenizer,
            model=model,
            label_pad_token_id=-100 if data_args.ignore_pad_token_for_loss else tokenizer.pad_token_id,
        ),
        compute_metrics=compute_metrics if training_args.predict_with_generate else None,
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
        metrics = trainer.evaluate(metric_key_prefix="eval")
        metrics["eval_samples"] = len(trainer.eval_dataset)
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results |= metrics
    if training_args.do_predict:
        found = trainer.predict(first(data["test"], data_args.max_predict_samples), metric_key_prefix="predict")
        trainer.log_metrics("predict", found.metrics)
        trainer.save_metrics("predict", found.metrics)
        results |= found.metrics
        if trainer.is_world_process_zero() and training_args.predict_with_generate:
            with open(f"{training_args.output_dir}/generated_predictions.txt", "w", encoding="utf-8") as file:
                file.writelines(text.replace("\n", " ") + "\n" for text in texts_of(found.predictions))
    if training_args.push_to_hub:
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="translation")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
