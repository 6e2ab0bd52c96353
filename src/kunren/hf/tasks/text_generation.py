"""The next word: of plain texts, or of the answers in pairs of prompt and completion, or in conversations."""

from __future__ import annotations

from typing import Any

from kunren.collators import DataCollatorForLanguageModeling, DataCollatorForTokenClassification
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import INPUTS, TEXTS, column_of, optional_column, place_of, refuse_no_text
from kunren.hf.tasks.fitting_metrics import OF_TEXTS, OF_TOKENS
from kunren.hf.tasks.language_rows import encode_blocks, encode_pieces

_TEXT, _PAIRS, _CHATS = "text", "pairs", "chats"


def encode_completions(
    batch: dict[str, list[Any]], tokenizer: Any, prompt: str, completion: str, max_length: int
) -> dict[str, list[list[int]]]:
    """Labels are the tokens of the completion and of its end; rows whose prompt fills `max_length` are left out."""
    made: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    for asked, answered in zip(batch[prompt], batch[completion], strict=True):
        before = tokenizer(asked)["input_ids"]
        while before and before[-1] in {tokenizer.eos_token_id, tokenizer.sep_token_id} - {None}:
            before.pop()  # a tokenizer that ends every text: this one goes on
        answer = [*tokenizer(answered, add_special_tokens=False)["input_ids"], *end]
        if len(before) < max_length:
            made["input_ids"].append((before + answer)[:max_length])
            made["labels"].append(([-100] * len(before) + answer)[:max_length])
    return made


def encode_conversations(
    batch: dict[str, list[Any]], tokenizer: Any, messages: str, max_length: int
) -> dict[str, list[list[int]]]:
    """Labels are the tokens of what the assistant says; rows of which none is within `max_length` are left out."""
    made: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    for conversation in batch[messages]:
        ids, labels = tokens_of_pieces(answers_in(conversation, tokenizer), tokenizer)
        if any(label != -100 for label in labels[:max_length]):
            made["input_ids"].append(ids[:max_length])
            made["labels"].append(labels[:max_length])
    return made


def answers_in(conversation: list[dict[str, Any]], tokenizer: Any) -> list[tuple[str, bool]]:
    """The conversation as the tokenizer's chat template writes it, in pieces, each with whether the assistant says it.

    ValueError where the template writes the beginning of a conversation otherwise once it goes on.
    """
    turns = [{name: value for name, value in turn.items() if value is not None} for turn in conversation]
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    pieces: list[tuple[str, bool]] = []
    done = 0
    for number, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before = tokenizer.apply_chat_template(turns[:number], tokenize=False, add_generation_prompt=True)
        after = tokenizer.apply_chat_template(turns[: number + 1], tokenize=False)
        if not (whole.startswith(before) and whole.startswith(after) and done <= len(before) <= len(after)):
            raise ValueError("the chat template writes a turn otherwise when others follow it")
        pieces += [(whole[done : len(before)], False), (whole[len(before) : len(after)], True)]
        done = len(after)
    return [*pieces, (whole[done:], False)]


def tokens_of_pieces(pieces: list[tuple[str, bool]], tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens of all pieces together, and labels: those of answers, -100 for others."""
    if not tokenizer.is_fast:  # which does not tell where a token stands
        parts = [(tokenizer(piece, add_special_tokens=False)["input_ids"], is_answer) for piece, is_answer in pieces]
        return [token for ids, _ in parts for token in ids], [
            token if is_answer else -100 for ids, is_answer in parts for token in ids
        ]
    spans, done = [], 0
    for piece, is_answer in pieces:
        if is_answer:
            spans.append((done, done + len(piece)))
        done += len(piece)
    text = "".join(piece for piece, _ in pieces)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    labels = [
        token if any(begin <= left and right <= end for begin, end in spans) else -100
        for token, (left, right) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
    ]
    return encoded["input_ids"], labels


class TextGeneration(Task):
    name = "text-generation"
    auto_class = "AutoModelForCausalLM"
    columns = {
        "text_column": TEXTS,
        "prompt_column": ("prompt", "instruction"),
        "completion_column": ("completion", "response", "answer", "output"),
        "messages_column": ("messages", "conversations", "conversation"),
    }
    keys = ("block_size",)
    metrics = OF_TOKENS
    default_metrics = ("perplexity",)
    changes_rows = True
    peft_task = "CAUSAL_LM"
    may_generate = True

    @classmethod
    def fitting_metrics(cls, generates: bool) -> tuple[str, ...]:
        return OF_TEXTS if generates else cls.metrics

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        self._length = self.longest(config, processor)
        self._has_labels = "labels" in rows["train_dataset"].column_names
        if self.is_tokenized:
            return
        self._kind = self._kind_of(rows)
        if self._kind == _TEXT and getattr(self.args, "predict_with_generate", False):
            raise TaskError(
                "predict_with_generate needs prompts: plain texts have none. Give prompt_column or messages."
            )
        if self._kind != _TEXT and self.request.block_size is not None:
            raise TaskError("block_size is for plain texts: answers to prompts stay rows of their own.")
        if self._kind == _CHATS and not getattr(processor, "chat_template", None):
            raise TaskError(
                f"{self._messages!r} holds conversations, and the tokenizer of {self.request.model} has no chat "
                "template: name one that has, as tokenizer, or give prompt_column and completion_column."
            )

    def _kind_of(self, rows: dict[str, Any]) -> str:
        if self.request.text_column is None:
            messages = optional_column(self, rows, "messages_column")
            if messages is not None:
                self._messages = messages
                return _CHATS
            prompt = optional_column(self, rows, "prompt_column")
            if prompt is not None:
                self._prompt, self._completion = prompt, column_of(self, rows, "completion_column")
                return _PAIRS
        self._text = column_of(self, rows, "text_column")
        return _TEXT

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        length = {"max_length": self._length}
        if self._kind == _PAIRS:
            return Call(encode_completions, {"prompt": self._prompt, "completion": self._completion, **length})
        if self._kind == _CHATS:
            return Call(
                encode_conversations, {"messages": self._messages, **length}, needs=(answers_in, tokens_of_pieces)
            )
        if self.request.block_size is not None:
            return Call(encode_blocks, {"text": self._text, "block_size": self.request.block_size})
        return Call(encode_pieces, {"text": self._text, **length})

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        if self._kind == _CHATS:
            self._check_conversations(key, batch[self._messages], numbers)
            return
        for column in [self._text] if self._kind == _TEXT else [self._prompt, self._completion]:
            refuse_no_text(key, column, batch[column])

    def _check_conversations(self, key: str, conversations: list[Any], numbers: list[int] | None) -> None:
        for place, conversation in enumerate(conversations):
            where = place_of(key, numbers[place] if numbers else None)
            is_list = isinstance(conversation, list) and conversation
            if not is_list or not all(
                isinstance(turn, dict) and isinstance(turn.get("role"), str) and "content" in turn
                for turn in conversation
            ):
                raise TaskError(
                    f"{self._messages!r} in {where} has to be a list of turns with role and content, and is "
                    f"{str(conversation)[:80]}."
                )
            if conversation[0]["role"] == "assistant":
                raise TaskError(f"{self._messages!r} in {where} begins with the assistant: begin with what it answers.")
            if all(turn["role"] != "assistant" for turn in conversation):
                raise TaskError(f"{self._messages!r} in {where} has no turn of the role 'assistant': nothing to learn.")

    def metrics_of_run(self) -> tuple[str, ...]:
        return ("exact_match", "chrf") if getattr(self.args, "predict_with_generate", False) else self.default_metrics

    def collator(self) -> Call | None:
        if self._has_labels or not self.is_tokenized and self._kind != _TEXT:
            return Call(DataCollatorForTokenClassification)
        return Call(DataCollatorForLanguageModeling, {"mlm": False})
