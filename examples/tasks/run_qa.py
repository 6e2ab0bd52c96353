"""Extractive question answering: where in a passage, however long, the answer stands. Data in the shape of SQuAD.

python run_qa.py --model_name_or_path MODEL --train_file train.json --validation_file dev.json --do_train --do_eval
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
from generated_data import facts
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
from text_scores import squad
from transformers import AutoModelForQuestionAnswering

from kunren import (
    DataCollatorWithPadding,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

# A new small model learns no reading from 866 questions, so it gets generated ones. README.md has the line for XQuAD.
DEMONSTRATION = """--output_dir runs/run_qa --do_train --do_eval --do_predict --num_train_epochs 6 --learning_rate 1e-3
--per_device_train_batch_size 32 --per_device_eval_batch_size 64 --max_seq_length 48 --doc_stride 16
--pad_to_max_length false --warmup_steps 0.1 --save_strategy no --logging_steps 50 --report_to none
--disable_tqdm true"""


@dataclass
class ModelArguments:
    model_name_or_path: str | None = field(default=None, metadata={"help": "Folder or name; None: a small new BERT."})
    config_name: str | None = field(default=None, metadata={"help": "A configuration, to train a model from scratch."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "A tokenizer other than the model's own."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads are kept."})


@dataclass
class DataTrainingArguments:
    dataset_name: str | None = field(default=None, metadata={"help": "A data set of the hub."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Its configuration."})
    train_file: str | None = field(default=None, metadata={"help": "A json, jsonl or parquet file."})
    validation_file: str | None = field(default=None, metadata={"help": "The same, to evaluate on."})
    test_file: str | None = field(default=None, metadata={"help": "The same, to predict."})
    max_seq_length: int = field(default=384, metadata={"help": "Tokens of a question with a window of its passage."})
    doc_stride: int = field(default=128, metadata={"help": "Tokens that two windows of a passage have in common."})
    pad_to_max_length: bool = field(default=True, metadata={"help": "Pad to it; false: to the longest of the batch."})
    version_2_with_negative: bool = field(default=False, metadata={"help": "Some questions have no answer."})
    null_score_diff_threshold: float = field(
        default=0.0, metadata={"help": "By how much no answer has to be likelier."}
    )
    n_best_size: int = field(default=20, metadata={"help": "Starts and ends, of the likeliest, that are combined."})
    max_answer_length: int = field(default=30, metadata={"help": "Tokens of an answer at most."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Train on the first so many only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Evaluate on the first so many only."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Predict the first so many only."})


def place_of(answer, spans) -> tuple[int, int]:
    """The first and the last token of an answer; (0, 0), which is [CLS], where a window does not hold it."""
    if not answer["answer_start"]:
        return 0, 0
    begin = answer["answer_start"][0]
    end = begin + len(answer["text"][0])
    starts = [place for place, span in enumerate(spans) if span and span[0] <= begin < span[1]]
    ends = [place for place, span in enumerate(spans) if span and span[0] < end <= span[1]]
    return (starts[0], ends[0]) if starts and ends else (0, 0)


def best_answer(row, windows, spans, starts, ends, data_args):
    """The likeliest text of a passage, over all of its windows; "" where no answer is likelier still."""
    best, text, nothing = -np.inf, "", np.inf
    for window in windows:
        begin, finish = starts[window], ends[window]
        nothing = min(nothing, begin[0] + finish[0])
        for first_token in np.argsort(-begin)[: data_args.n_best_size]:
            for last_token in np.argsort(-finish)[: data_args.n_best_size]:
                is_span = first_token <= last_token < first_token + data_args.max_answer_length
                if not is_span or max(first_token, last_token) >= len(spans[window]):
                    continue
                left, right = spans[window][first_token], spans[window][last_token]
                if left and right and begin[first_token] + finish[last_token] > best:
                    best, text = begin[first_token] + finish[last_token], row["context"][left[0] : right[1]]
    is_nothing = data_args.version_2_with_negative and nothing - best > data_args.null_score_diff_threshold
    return "" if is_nothing else text


def main(words: list[str]) -> dict[str, float]:
    parser = HfArgumentParser((ModelArguments, DataTrainingArguments, TrainingArguments))
    if len(words) == 1 and words[0].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(words[0])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses(words or DEMONSTRATION.split())
    refuse_idleness(training_args, "do_train", "do_eval", "do_predict")
    set_seed(training_args.seed)

    data = read_data(data_args, "", facts)
    tokenizer = tokenizer_for(model_args, word_pieces, [*data["train"]["context"], *data["train"]["question"]])
    model = model_for(model_args, AutoModelForQuestionAnswering, small_bert(tokenizer))

    def encode(batch):
        """Windows of each passage, with the place of the answer."""
        inputs = tokenizer(
            [question.lstrip() for question in batch["question"]],
            batch["context"],
            truncation="only_second",
            max_length=data_args.max_seq_length,
            stride=data_args.doc_stride,
            padding="max_length" if data_args.pad_to_max_length else False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        rows, offsets = inputs.pop("overflow_to_sample_mapping"), inputs.pop("offset_mapping")
        inputs |= {"row": [batch["id"][row] for row in rows], "spans": [], "start_positions": [], "end_positions": []}
        for window, row in enumerate(rows):
            parts = inputs.sequence_ids(window)
            spans = [span if part == 1 else None for span, part in zip(offsets[window], parts, strict=True)]
            start, end = place_of(batch["answers"][row], spans)
            inputs["start_positions"].append(start)
            inputs["end_positions"].append(end)
            inputs["spans"].append(spans)
        return inputs

    limits = {"train": data_args.max_train_samples, "validation": data_args.max_eval_samples}
    rows = {split: first(part, limits.get(split, data_args.max_predict_samples)) for split, part in data.items()}
    with training_args.main_process_first(desc="tokenizing"):
        windows = {
            split: part.map(encode, batched=True, remove_columns=part.column_names) for split, part in rows.items()
        }

    def answers_of(split, predictions):
        """The answer to each question, by its id."""
        own = defaultdict(list)
        for window, name in enumerate(windows[split]["row"]):
            own[name].append(window)
        spans = windows[split]["spans"][:]
        return {row["id"]: best_answer(row, own[row["id"]], spans, *predictions[:2], data_args) for row in rows[split]}

    def scores(split, predictions):
        found = answers_of(split, predictions)
        pairs = [squad(found[row["id"]], row["answers"]["text"]) for row in rows[split]]
        return dict(zip(("exact_match", "f1"), (100 * np.mean(pairs, axis=0)).tolist(), strict=True))

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=windows["train"] if training_args.do_train else None,
        eval_dataset=windows["validation"] if training_args.do_eval else None,
        processing_class=tokenizer,
        data_collator=default_data_collator if data_args.pad_to_max_length else DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda prediction: scores("validation", prediction.predictions),
    )
    results = {}
    if training_args.do_train:
        metrics = trainer.train(resume_from_checkpoint=checkpoint_to_resume(training_args)).metrics
        metrics["train_samples"] = len(windows["train"])
        trainer.save_model()
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
        results |= metrics
    if training_args.do_eval:
        metrics = trainer.evaluate()
        metrics["eval_samples"] = len(windows["validation"])
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
        results |= metrics
    if training_args.do_predict:
        trainer.compute_metrics = lambda prediction: scores("test", prediction.predictions)
        found = trainer.predict(windows["test"], metric_key_prefix="predict")
        trainer.log_metrics("predict", found.metrics)
        trainer.save_metrics("predict", found.metrics)
        if trainer.is_world_process_zero():
            with open(f"{training_args.output_dir}/predict_predictions.json", "w", encoding="utf-8") as file:
                json.dump(answers_of("test", found.predictions), file, ensure_ascii=False, indent=2)
    if training_args.push_to_hub:
        trainer.push_to_hub(finetuned_from=model_args.model_name_or_path, tasks="question-answering")
    tell_data(trainer, data_args)
    return results


if __name__ == "__main__":
    main(sys.argv[1:])
