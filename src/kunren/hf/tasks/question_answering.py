"""Where in a passage the answer to a question stands; long passages are read through windows that overlap."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

from kunren.collators import DataCollatorWithPadding
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import INPUTS, column_of, place_of, refuse_no_text

_MAX_LENGTH, _STRIDE, _MAX_ANSWER_LENGTH = 384, 128, 30


def encode_windows(
    batch: dict[str, list[Any]],
    row_numbers: list[int],
    tokenizer: Any,
    question: str,
    context: str,
    answers: str,
    max_length: int,
    stride: int,
) -> dict[str, list[Any]]:
    """A row for each window; labels are the first and last token of the answer, or the first of all where it is not.

    `window_of` is the row that a window is of, `offsets` are the places in the passage where its tokens begin and end,
    (-1, -1) for what is not of the passage.
    """
    windows = tokenizer(
        batch[question],
        batch[context],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    made: dict[str, list[Any]] = {name: windows[name] for name in tokenizer.model_input_names if name in windows}
    made |= {name: [] for name in ("start_positions", "end_positions", "window_of", "offsets")}
    for window, row in enumerate(windows["overflow_to_sample_mapping"]):
        of_passage = [part == 1 for part in windows.sequence_ids(window)]
        offsets = [
            pair if inside else (-1, -1)
            for pair, inside in zip(windows["offset_mapping"][window], of_passage, strict=True)
        ]
        first, last = place_of_answer(batch[answers][row], offsets)
        made["start_positions"].append(first)
        made["end_positions"].append(last)
        made["window_of"].append(row_numbers[row])
        made["offsets"].append(offsets)
    return made


def place_of_answer(answer: dict[str, list[Any]], offsets: list[tuple[int, int]]) -> tuple[int, int]:
    """The tokens that the first of the right answers begins and ends in, if the window holds both; else 0 and 0."""
    if not answer["text"]:
        return 0, 0
    begin = answer["answer_start"][0]
    end = begin + len(answer["text"][0])
    first = [token for token, (left, right) in enumerate(offsets) if left <= begin < right]
    last = [token for token, (left, right) in enumerate(offsets) if left < end <= right]
    return (first[0], last[-1]) if first and last else (0, 0)


def likeliest_span(starts: Any, ends: Any, offsets: list[list[int]], longest: int) -> tuple[float, int, int]:
    """The score and the place in the passage of the likeliest answer in a window of at most `longest` tokens."""
    inside = [token for token, (left, _) in enumerate(offsets) if left >= 0]
    if not inside:
        return float("-inf"), 0, 0
    base = inside[0]
    first, last = starts[base : inside[-1] + 1].astype("float64"), ends[base : inside[-1] + 1].astype("float64")
    best = (float("-inf"), 0, 0)
    for width in range(min(longest, len(first))):  # of spans that are one token longer each time
        scores = first[: len(first) - width] + last[width:]
        place = int(scores.argmax())
        if scores[place] > best[0]:
            best = (float(scores[place]), place + base, place + base + width)
    return best[0], offsets[best[1]][0], offsets[best[2]][1]


def words_compared(answer: str) -> list[str]:
    """Words without case, punctuation and English articles, as SQuAD's evaluation compares them (Rajpurkar, 2016)."""
    plain = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def score_answer(answer: str, truths: list[str]) -> tuple[float, float]:
    """F1 of words and exact match, each with the right answer that it is nearest to; no words match no words."""
    given = words_compared(answer)
    found = [(0.0, 0.0)]
    for truth in truths or [""]:
        wanted = words_compared(truth)
        common = sum((Counter(given) & Counter(wanted)).values())
        f1 = 2 * common / (len(given) + len(wanted)) if given and wanted else float(given == wanted)
        found.append((f1, float(given == wanted)))
    return max(f1 for f1, _ in found), max(exact for _, exact in found)


def measure_answers(
    prediction: Any,
    rows: Any,
    encoded: Any,
    context: str,
    answers: str,
    longest: int,
    may_be_none: bool,
    wanted: list[str],
) -> dict[str, float]:
    """F1 and exact match in per cent, of the likeliest answer in all windows of each row.

    With `may_be_none` a question has no answer where the first token of all is likelier in each of its windows.
    """
    starts, ends = prediction.predictions[:2]
    best: dict[int, tuple[float, int, int]] = {}
    none: dict[int, float] = {}
    for window, (row, offsets) in enumerate(zip(encoded["window_of"], encoded["offsets"], strict=True)):
        found = likeliest_span(starts[window], ends[window], offsets, longest)
        best[row] = max(best.get(row, found), found)
        nothing = float(starts[window][0]) + float(ends[window][0])
        none[row] = min(none.get(row, nothing), nothing)
    scores = []
    for row, (passage, truth) in enumerate(zip(rows[context], rows[answers], strict=True)):
        if row not in best:  # of an evaluation that read a part of the windows
            continue
        score, begin, end = best[row]
        is_none = may_be_none and none[row] > score
        scores.append(score_answer("" if is_none else passage[begin:end], truth["text"]))
    found_scores = {
        "f1": 100 * sum(f1 for f1, _ in scores) / len(scores),
        "exact_match": 100 * sum(exact for _, exact in scores) / len(scores),
    }
    return {name: found_scores[name] for name in wanted}


class QuestionAnswering(Task):
    name = "question-answering"
    auto_class = "AutoModelForQuestionAnswering"
    columns = {
        "question_column": ("question",),
        "context_column": ("context", "passage"),
        "answers_column": ("answers", "answer"),
    }
    keys = ("stride", "max_answer_length")
    own_metrics = ("f1", "exact_match")
    default_metrics = ("f1", "exact_match")
    in_per_cent = ("f1", "exact_match")
    changes_rows = True
    peft_task = "QUESTION_ANS"
    has_new_head = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        if self.is_tokenized:
            return
        if not processor.is_fast:
            raise TaskError(f"question-answering needs a fast tokenizer, and {self.request.model} has a slow one.")
        if processor.padding_side != "right":
            raise TaskError("question-answering needs a tokenizer that pads on the right.")
        self._question, self._context, self._answers = (column_of(self, rows, key) for key in self.columns)
        self._may_be_none = False
        self._length = self.longest(config, processor, _MAX_LENGTH)
        self._stride = self.request.stride if self.request.stride is not None else min(_STRIDE, self._length // 4)
        if not 0 <= self._stride < self._length:
            raise TaskError(
                f"stride is {self._stride}: it has to be below max_length={self._length}, and not negative."
            )
        for key, one in rows.items():
            self._check_answers(key, one)

    def _check_answers(self, key: str, rows: Any) -> None:
        columns = rows.select_columns([self._question, self._context, self._answers])
        for number, row in enumerate(columns):
            where, passage, answer = place_of(key, number), row[self._context], row[self._answers]
            for name in (self._question, self._context):
                refuse_no_text(key, name, [row[name]])
            is_right = isinstance(answer, dict) and isinstance(answer.get("text"), list)
            if not is_right or len(answer["text"]) != len(answer.get("answer_start") or ()):
                raise TaskError(
                    f"{self._answers!r} in {where} has to hold two lists of one length, text and answer_start, and is "
                    f"{str(answer)[:80]}."
                )
            if not answer["text"]:
                self._may_be_none = True
            for text, start in zip(answer["text"], answer["answer_start"], strict=True):
                if not isinstance(text, str) or not isinstance(start, int) or isinstance(start, bool):
                    raise TaskError(
                        f"{self._answers!r} in {where} has to hold texts and whole numbers, and has {text!r} at "
                        f"{start!r}."
                    )
                if not text or passage[start : start + len(text)] != text:
                    found = passage.find(text) if text else -1
                    at = f"; it stands at {found}" if found >= 0 else ", nor anywhere in the passage"
                    raise TaskError(
                        f"{self._answers!r} in {where}: at answer_start={start} the passage has "
                        f"{passage[start : start + len(text)]!r}, and not the answer {text!r}{at}. Places count "
                        "characters, from 0."
                    )

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        columns = {"question": self._question, "context": self._context, "answers": self._answers}
        options = {**columns, "max_length": self._length, "stride": self._stride}
        return Call(encode_windows, options, needs=(place_of_answer,), with_indices=True)

    def kept_from_model(self) -> tuple[str, ...]:
        return ("window_of", "offsets")

    def collator(self) -> Call | None:
        return Call(DataCollatorWithPadding)

    def metrics_of_run(self) -> tuple[str, ...]:
        return () if self.is_tokenized else self.default_metrics

    def compute_metrics(self, key: str) -> Call | None:
        if not self.asked_metrics:
            return None
        if self.is_tokenized:
            raise TaskError(f"{self.asked_metrics[0]} is of texts, and the rows are tokenized already.")
        options = {
            "context": self._context,
            "answers": self._answers,
            "longest": self.request.max_answer_length or _MAX_ANSWER_LENGTH,
            "may_be_none": self._may_be_none,
            "wanted": list(self.asked_metrics),
        }
        imports = ("import re", "import string", "from collections import Counter")
        return Call(measure_answers, options, needs=(likeliest_span, words_compared, score_answer), imports=imports)
