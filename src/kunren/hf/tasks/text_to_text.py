"""One text made of another: a summary, a translation, or anything else."""

from __future__ import annotations

from typing import Any, ClassVar

from kunren.collators import DataCollatorForSeq2Seq
from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import INPUTS, column_of, place_of, refuse_no_text, require
from kunren.hf.tasks.fitting_metrics import OF_TEXTS, OF_TOKENS

_MAX_TARGET_LENGTH = 128
_NESTED = "translation"  # a column of {"en": ..., "de": ...}
_SOURCES = ("source", "document", "article", "text", "dialogue", "input", "question")
_TARGETS = ("target", "summary", "highlights", "output", "answer", "label")


def encode_text_pairs(
    batch: dict[str, list[Any]],
    tokenizer: Any,
    source: str,
    target: str,
    nested: str | None,
    prefix: str,
    max_length: int,
    max_target_length: int,
) -> dict[str, list[Any]]:
    """The tokens of `source`, after `prefix`, and under labels those of `target`.

    `nested`: the column whose values have both under their names.
    """
    sources = batch[source] if nested is None else [row[source] for row in batch[nested]]
    targets = batch[target] if nested is None else [row[target] for row in batch[nested]]
    inputs = dict(tokenizer([prefix + text for text in sources], truncation=True, max_length=max_length))
    labels = tokenizer(text_target=targets, truncation=True, max_length=max_target_length)["input_ids"]
    return {**inputs, "labels": labels}


def begin_with_language(model: Any, tokenizer: Any, language: str) -> None:
    """What is generated begins with the token of the target language."""
    token = tokenizer.convert_tokens_to_ids(language)
    if token is not None and token != tokenizer.unk_token_id:
        model.generation_config.forced_bos_token_id = token


class TextToText(Task):
    """Sources and targets in two columns. `usual_metrics`: of generated texts."""

    name = "text2text-generation"
    auto_class = "AutoModelForSeq2SeqLM"
    columns = {"source_column": _SOURCES, "target_column": _TARGETS}
    keys: ClassVar[tuple[str, ...]] = ("max_target_length", "source_prefix", "source_lang", "target_lang")
    metrics = OF_TOKENS
    peft_task = "SEQ_2_SEQ_LM"
    may_generate = True
    usual_metrics: ClassVar[tuple[str, ...]] = ("exact_match", "chrf")

    @classmethod
    def fitting_metrics(cls, generates: bool) -> tuple[str, ...]:
        return OF_TEXTS if generates else cls.metrics

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self.is_tokenized = INPUTS in rows["train_dataset"].column_names
        self._length = self.longest(config, processor)
        if self.is_tokenized:
            return
        self._nested = self._nested_column(rows)
        if self._nested is None:
            self._source, self._target = (column_of(self, rows, key) for key in ("source_column", "target_column"))
            if self._source == self._target:
                raise TaskError(f"{self._source!r} is both source and target: set source_column and target_column.")
        else:
            self._source, self._target = self._languages(rows["train_dataset"][0][self._nested])
        for option, language in (("src_lang", self.request.source_lang), ("tgt_lang", self.request.target_lang)):
            if language is not None:
                self._set_language(processor, option, language)

    def _nested_column(self, rows: dict[str, Any]) -> str | None:
        train = rows["train_dataset"]
        if _NESTED not in train.column_names or not isinstance(train[0][_NESTED], dict):
            return None
        require(rows, [_NESTED], "column of translations")
        return _NESTED

    def _languages(self, first: dict[str, Any]) -> tuple[str, str]:
        """Those that the file names, or the two that there are."""
        request, there = self.request, list(first)
        source = request.source_column or self._in_languages(request.source_lang, there)
        target = request.target_column or self._in_languages(request.target_lang, there)
        if len(there) == 2:
            source = source or next(one for one in there if one != target)
            target = target or next(one for one in there if one != source)
        for key, name in (("source_column", source), ("target_column", target)):
            if name not in there:
                raise TaskError(f"{key} is {name!r}: {_NESTED!r} has {', '.join(there)}. Set {key}.")
        return str(source), str(target)

    @staticmethod
    def _in_languages(code: str | None, there: list[str]) -> str | None:
        """A tokenizer's code such as de_DE or deu_Latn may begin with the data's."""
        return None if code is None else next((one for one in there if code == one or code[:2] == one), None)

    def _set_language(self, tokenizer: Any, option: str, language: str) -> None:
        key = "source_lang" if option == "src_lang" else "target_lang"
        if not hasattr(tokenizer, option):
            if self._nested is None:
                raise TaskError(f"{key}={language!r}: the tokenizer of {self.request.model} knows no languages.")
            return
        codes = getattr(tokenizer, "lang_code_to_id", None)
        if codes and language not in codes:
            raise TaskError(f"{key}={language!r} is no language of {self.request.model}: {', '.join(codes)}.")
        setattr(tokenizer, option, language)

    def encoding(self, key: str) -> Call | None:
        if self.is_tokenized:
            return None
        request = self.request
        options = {"source": self._source, "target": self._target, "nested": self._nested}
        lengths = {
            "max_length": self._length,
            "max_target_length": request.max_target_length or _MAX_TARGET_LENGTH,
        }
        return Call(encode_text_pairs, {**options, "prefix": request.source_prefix or "", **lengths})

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        if self._nested is None:
            for name in (self._source, self._target):
                refuse_no_text(key, name, batch[name])
            return
        for place, row in enumerate(batch[self._nested]):
            for name in (self._source, self._target):
                if not isinstance((row or {}).get(name), str):
                    where = place_of(key, numbers[place] if numbers else None)
                    raise TaskError(f"{self._nested!r} in {where} has no text under {name!r}: leave it out.")

    def collator(self) -> Call | None:
        return Call(DataCollatorForSeq2Seq)

    def finishing(self) -> Call | None:
        language = None if self.is_tokenized else self.request.target_lang
        return None if language is None else Call(begin_with_language, {"language": language})

    def metrics_of_run(self) -> tuple[str, ...]:
        return self.usual_metrics if getattr(self.args, "predict_with_generate", False) else ("perplexity",)


class Summarization(TextToText):
    name = "summarization"
    columns = {
        "source_column": ("document", "article", "text", "dialogue", "source", "input"),
        "target_column": ("summary", "highlights", "target", "output", "abstract"),
    }
    keys = ("max_target_length", "source_prefix")
    usual_metrics = ("rouge1", "rouge2", "rougeL")


class Translation(TextToText):
    name = "translation"
    usual_metrics = ("sacrebleu", "chrf")
