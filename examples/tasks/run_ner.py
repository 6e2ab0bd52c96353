"""Token classification: the class of each word, and how many whole entities are found.

python run_ner.py --model_name_or_path MODEL --train_file train.json --validation_file dev.json --do_train --do_eval
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from generated_data import orders
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
from transformers import AutoModelForTokenClassification

from kunren import DataCollatorForTokenClassification, HfArgumentParser, Trainer, TrainingArguments, set_seed

DEMONSTRATION = """--output_dir runs/run_ner --do_train --do_eval --do_predict --num_train_epochs 3 --learning_rate 2e-3
--per_device_train_batch_size 32 --per_device_eval_batch_size 64 --max_seq_length 48 --warmup_steps 0.1
--max_train_samples 6000 --save_strategy no --logging_steps 100 --report_to none --disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new BERT."})
    config_name: str | None = field(default=None, metadata={"help": "A configuration, to train a model from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer other than the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})
    ignore_mismatched_sizes: bool = field(default=False, metadata={"help": "Take a model with another head."})


@dataclass
class DataTrainingArguments:
    task_name: str = field(default="ner", metadata={"help": "The column of classes is called <task_name>_tags."})
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A json, jsonl or parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict."})
    text_column_name: str = field(default="tokens", metadata={"help": "The column of the lists of words."})
    label_column_name: str | None = field(default=None, metadata={"help": "The column of the lists of classes."})
    max_seq_length: int | None = field(default=None, metadata={"help": "Tokens that a sentence is cut to."})
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to max_seq_length, not to the longest."})
    label_all_tokens: bool = field(default=False, metadata={"help": "All pieces of a word carry its class."})
    return_entity_level_metrics: bool = field(default=False, metadata={"help": "Tell the F1 of each kind as well."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many only."})


def entities(tags: list[str]) -> set[tuple[int, int, str]]:
    """(begin, end, kind) of each; an I- that continues none of its kind begins one, as in CoNLL's script."""
    found, begin, kind = set(), 0, ""
    for place, tag in enumerate([*tags, "O"]):
        if kind and tag != f"I-{kind}":
            found.add((begin, place, kind))
            kind = ""
        if tag != "O" and not kind:
            begin, kind = place, tag[2:] or tag
    return found


def entity_scores(answers: list[list[str]], truths: list[list[str]], of_each_kind: bool = False) -> dict[str, float]:
    """Precision, recall and F1 of whole entities, and the share of right classes."""
    said = {(row, *entity) for row, tags in enumerate(answers) for entity in entities(tags)}
    true = {(row, *entity) for row, tags in enumerate(truths) for entity in entities(tags)}
    right = [
        one == other for row, tags in zip(answers, truths, strict=True) for one, other in zip(row, tags, strict=True)
    ]
    result = {
        "precision": len(said & true) / max(1, len(said)),
        "recall": len(said & true) / max(1, len(true)),
        "f1": 2 * len(said & true) / max(1, len(said) + len(true)),
        "accuracy": sum(right) / max(1, len(right)),
    }
    for kind in sorted({entity[-1] for entity in said | true}) if of_each_kind else ():
        ours, theirs = ({entity for entity in part if entity[-1] == kind} for part in (said, true))
        result[f"{kind}_f1"] = 2 * len(ours & theirs) / (len(ours) + len(theirs))
    return result


def main(words: list[str]) -> dict[str, float]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(words[0])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(words or DEMONSTRATION.split())
    refuse_idleness(training_args, "do_train", "do_eval", "do_predict")
    set_seed(training_args.seed)

    data = read_data(data_args, "snips", orders)
    text, label = data_args.text_column_name, data_args.label_column_name or f"{data_args.task_name}_tags"
    names = getattr(data["train"].features[label].feature, "names", None)
    numbers = {
        name: number for number, name in enumerate(sorted({tag for tags in data["train"][label] for tag in tags}))
    }
    numbers = {number: number for number in range(len(names))} if names else numbers
    names = names or list(numbers)
    tokenizer = tokenizer_for(model_args, word_pieces, (" ".join(tokens) for tokens in data["train"][text]))
    model = model_for(
        model_args,
        AutoModelForTokenClassification,
        small_bert(tokenizer, **label_maps(names)),
        label_maps(names),
        ignore_mismatched_sizes=model_args.ignore_mismatched_sizes,
    )

    def encode(batch):
        """The first piece of a word carries its class; the others, and special tokens, carry -100."""
        padding = "max_length" if data_args.pad_to_max_length else False
        options = {"padding": padding, "truncation": True, "max_length": data_args.max_seq_length}
        inputs = tokenizer(batch[text], is_split_into_words=True, **options)
        inputs["labels"] = []
        for row, tags in enumerate(batch[label]):
            pieces = inputs.word_ids(row)
            carries = [
                word is not None and (data_args.label_all_tokens or word != before)
                for word, before in zip(pieces, [None, *pieces], strict=False)
            ]
            inputs["labels"].append(
                [numbers[tags[word]] if own else -100 for word, own in zip(pieces, carries, strict=True)]
            )
        return inputs

    with training_args.main_process_first(desc="tokenizing"):
        data = data.map(encode, batched=True, remove_columns=data["train"].column_names)
    train = first(data["train"], data_args.max_train_samples)

    def tags_of(predictions, labels):
        rows = zip(predictions.argmax(-1), labels, strict=True)
        return [[names[tag] for tag in row[truth != -100]] for row, truth in rows]

    def compute_metrics(prediction):
        truths = [[names[tag] for tag in row[row != -100]] for row in prediction.label_ids]
        answers = tags_of(prediction.predictions, prediction.label_ids)
        return entity_scores(answers, truths, data_args.return_entity_level_metrics)

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=train if training_args.do_train else None,
        eval_dataset=first(data["validation"], data_args.max_eval_samples) if training_args.do_eval else None,
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
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
        found = trainer.predict(first(data["test"], data_args.max_predict_samples), metric_key_prefix="predict")
        trainer.log_metrics("predict", found.metrics)
        trainer.save_metrics("predict", found.metrics)
        results |= found.metrics
        if trainer.is_world_process_zero():
            with open(f"{training_args.output_dir}/predictions.txt", "w", encoding="utf-8") as file:
                file.writelines(" ".join(tags) + "\n" for tags in tags_of(found.predictions, found.label_ids))
    if training_args.push_to_hub:
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="token-classification")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
