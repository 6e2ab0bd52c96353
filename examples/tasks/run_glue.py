"""Text classification, or regression, of single texts and pairs: GLUE, or csv, json and parquet files of your own.

python run_glue.py --model_name_or_path MODEL --train_file train.csv --validation_file dev.csv --do_train --do_eval
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import numpy as np
from generated_data import reviews
from starting_points import (
    checkpoint_to_resume,
    first,
    label_maps,
    model_for,
    read_data,
    refuse_idleness,
    small_bert,
    tell_data,
    tokenizer_for,
    word_pieces,
)
from transformers import AutoModelForSequenceClassification

from kunren import (
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

# The columns of the tasks of GLUE.
COLUMNS = {
    "cola": "sentence", "sst2": "sentence", "mnli": "premise,hypothesis", "qnli": "question,sentence",
    "qqp": "question1,question2", **dict.fromkeys(("mrpc", "rte", "stsb", "wnli"), "sentence1,sentence2"),
}  # fmt: skip
DEMONSTRATION = """--output_dir runs/run_glue --do_train --do_eval --do_predict --num_train_epochs 2
--learning_rate 1e-3 --warmup_steps 0.1 --per_device_train_batch_size 32 --per_device_eval_batch_size 64
--max_seq_length 64 --pad_to_max_length false --save_strategy no --logging_steps 100 --report_to none
--disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new BERT."})
    config_name: str | None = field(default=None, metadata={"help": "A configuration other than the model's own."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer other than the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    ignore_mismatched_sizes: bool = field(default=False, metadata={"help": "Take a model with another head."})


@dataclass
class DataTrainingArguments:
    task_name: str | None = field(default=None, metadata={"help": f"A task of GLUE: {', '.join(COLUMNS)}."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A csv, tsv, json, jsonl or parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict."})
    text_column_names: str | None = field(default=None, metadata={"help": "One column, or two with a comma between."})
    label_column_name: str = field(default="label", metadata={"help": "The column of the class or the number."})
    max_seq_length: int = field(default=128, metadata={"help": "Tokens that a text is cut to."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Pad to it; false: to the longest of the batch."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many only."})

    def __post_init__(self) -> None:
        if self.task_name is not None and self.task_name not in COLUMNS:
            raise ValueError(f"task_name={self.task_name!r} is no task of GLUE: choose one of {', '.join(COLUMNS)}.")


def scores(prediction):
    """Accuracy and, for two classes, F1 and Matthews' correlation; for numbers, Pearson's correlation and the error."""
    logits, labels = prediction.predictions, prediction.label_ids
    logits = logits[0] if isinstance(logits, tuple) else logits
    if logits.shape[-1] == 1:
        found = logits[:, 0]
        return {"pearson": float(np.corrcoef(found, labels)[0, 1]), "mse": float(((found - labels) ** 2).mean())}
    found = logits.argmax(-1)
    result = {"accuracy": float((found == labels).mean())}
    if logits.shape[-1] == 2:
        right, said, true = int((found & labels).sum()), int(found.sum()), int(labels.sum())
        result["f1"] = 2 * right / max(1, said + true)
        spread = said * true * (len(labels) - said) * (len(labels) - true)
        result["matthews_correlation"] = (right * len(labels) - said * true) / spread**0.5 if spread else 0.0
    return result


def text_columns(data_args, train) -> list[str]:
    """One column, or the two of a pair."""
    if named := data_args.text_column_names or COLUMNS.get(data_args.task_name):
        return named.split(",")[:2]
    label = data_args.label_column_name
    return [name for name in train.column_names if train.features[name].dtype == "string" and name != label][:2]


def write_predictions(trainer, rows, names: list[str]) -> None:
    found = trainer.predict(rows.remove_columns("label"), metric_key_prefix="predict").predictions
    answers = [names[number] for number in found.argmax(-1)] if names else found[:, 0]
    if trainer.is_world_process_zero():
        with open(f"{trainer.args.output_dir}/predict_results.txt", "w", encoding="utf-8") as file:
            file.write("index\tprediction\n")
            file.writelines(f"{place}\t{answer}\n" for place, answer in enumerate(answers))


def main(words: list[str]) -> dict[str, float]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(words[0])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(words or DEMONSTRATION.split())
    refuse_idleness(training_args, "do_train", "do_eval", "do_predict")
    set_seed(training_args.seed)

    if data_args.task_name:
        data_args.dataset_config_name = data_args.task_name
    data = read_data(data_args, "sst2", reviews, dataset="nyu-mll/glue" if data_args.task_name else None)
    columns, label = text_columns(data_args, data["train"]), data_args.label_column_name
    kind = data["train"].features[label]
    names = [] if kind.dtype.startswith("float") else getattr(kind, "names", None) or sorted(set(data["train"][label]))
    labels = label_maps(names) if names else {"num_labels": 1}  # one output for a number
    tokenizer = tokenizer_for(model_args, word_pieces, data["train"][columns[0]])
    model = model_for(
        model_args,
        AutoModelForSequenceClassification,
        small_bert(tokenizer, **labels),
        labels,
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )
    number_of = {name: number for number, name in enumerate(names)} | {
        number: number for number in range(-1, len(names))
    }

    def encode(batch):
        padding = "max_length" if data_args.pad_to_max_length else False
        texts = [batch[name] for name in columns]
        inputs = tokenizer(*texts, padding=padding, max_length=data_args.max_seq_length, truncation=True)
        if label in batch:
            inputs["label"] = [number_of[value] if names else value for value in batch[label]]
        return inputs

    with training_args.main_process_first(desc="tokenizing"):
        data = data.map(encode, batched=True, remove_columns=[label] if label != "label" else [])
    train, suffix = first(data["train"], data_args.max_train_samples), "_matched" * (data_args.task_name == "mnli")

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=first(data["validation" + suffix], data_args.max_eval_samples) if training_args.do_eval else None,
        compute_metrics=scores,
        processing_class=tokenizer,
        data_collator=default_data_collator if data_args.pad_to_max_length else DataCollatorWithPadding(tokenizer),
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
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results |= metrics
    if training_args.do_predict:
        write_predictions(trainer, first(data["test" + suffix], data_args.max_predict_samples), names)
    if training_args.push_to_hub:
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="text-classification")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
