"""Extractive question answering: where in a passage the answer stands (XQuAD, English)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import kunren
from tasks.data import MINILM, arguments, minilm, rows, task

pytestmark = task("xquad_en", packages=(MINILM,))

LENGTH, STRIDE, LONGEST_ANSWER = 64, 16, 16
FROZEN_LAYERS = 3  # of six, and the embeddings: less to compute, and 866 questions are few
FLOOR = 0.30  # of F1


def normalized(answer: str) -> list[str]:
    """Words without case, punctuation and articles, as SQuAD's evaluation compares them (Rajpurkar et al., 2016)."""
    answer = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", answer).split()


def word_f1(answer: str, truth: str) -> float:
    answered, wanted = Counter(normalized(answer)), Counter(normalized(truth))
    return 2 * sum((answered & wanted).values()) / max(1, answered.total() + wanted.total())


def test_minilm_finds_answers_in_passages(tmp_path: Path, report: Callable[..., None]) -> None:
    kunren.set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm())
    model = AutoModelForQuestionAnswering.from_pretrained(minilm())
    for part in (model.bert.embeddings, *model.bert.encoder.layer[:FROZEN_LAYERS]):
        part.requires_grad_(False)
    truths: list[str] = []
    passages: list[str] = []

    def encoded(batch: dict[str, Any], keeps_texts: bool) -> Any:
        """The first window of the context that holds the whole answer: there is always one to find."""
        windows = tokenizer(
            batch["question"],
            batch["context"],
            truncation="only_second",
            max_length=LENGTH,
            stride=STRIDE,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        kept: dict[str, list[Any]] = {name: [] for name in (*tokenizer.model_input_names, "offsets")}
        kept |= {"start_positions": [], "end_positions": []}
        done = set()
        for window, row in enumerate(windows["overflow_to_sample_mapping"]):
            answer = batch["answers"][row]
            begin, said = answer["answer_start"][0], answer["text"][0]
            is_context = [part == 1 for part in windows.sequence_ids(window)]
            spans = [
                (left, right) if inside else (-1, -1)
                for (left, right), inside in zip(windows["offset_mapping"][window], is_context, strict=True)
            ]
            starts = [place for place, (left, right) in enumerate(spans) if left <= begin < right]
            ends = [place for place, (left, right) in enumerate(spans) if left < begin + len(said) <= right]
            if row in done or not starts or not ends:
                continue
            done.add(row)
            for name in tokenizer.model_input_names:
                kept[name].append(windows[name][window])
            kept["offsets"].append(spans)
            kept["start_positions"].append(starts[0])
            kept["end_positions"].append(ends[0])
            if keeps_texts:
                truths.append(said)
                passages.append(batch["context"][row])
        return kept

    columns = rows("xquad_en", "train").column_names
    options = {"batched": True, "remove_columns": columns}
    train = rows("xquad_en", "train").map(encoded, fn_kwargs={"keeps_texts": False}, **options)
    test = rows("xquad_en", "test").map(encoded, fn_kwargs={"keeps_texts": True}, **options)
    offsets = test["offsets"][:]

    def compute_metrics(prediction: Any) -> dict[str, float]:
        scores, exact = 0.0, 0
        for start, end, spans, passage, truth in zip(*prediction.predictions, offsets, passages, truths, strict=False):
            outside = torch.tensor([left < 0 for left, _ in spans])
            first = torch.tensor(start[: len(spans)]).masked_fill(outside, -torch.inf)
            last = torch.tensor(end[: len(spans)]).masked_fill(outside, -torch.inf)
            together = (first[:, None] + last[None, :]).triu()
            allowed = torch.ones_like(together).triu().tril(LONGEST_ANSWER - 1).bool()
            best = int(together.masked_fill(~allowed, -torch.inf).argmax())
            begin, finish = divmod(best, len(spans))
            answer = passage[spans[begin][0] : spans[finish][1]]
            scores += word_f1(answer, truth)
            exact += normalized(answer) == normalized(truth)
        return {"f1": scores / len(truths), "exact_match": exact / len(truths)}

    trainer = kunren.Trainer(
        model=model,
        args=arguments(
            tmp_path,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            per_device_eval_batch_size=64,
            learning_rate=2e-4,
            warmup_steps=0.1,
            batching="grouped",
        ),
        train_dataset=train,
        eval_dataset=test,
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    report(
        "question answering, XQuAD, MiniLM",
        f1=after["eval_f1"],
        exact_match=after["eval_exact_match"],
        f1_before=before["eval_f1"],
    )
    assert after["eval_f1"] > FLOOR
    assert after["eval_f1"] > before["eval_f1"] + 0.1
