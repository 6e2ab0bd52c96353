"""What a task is: the model that it trains, the columns that it needs, how rows become inputs, how it is measured.

`preparation.py` asks a task in this order, and a script that does the same run can be written from the same answers:

    task = task_named("token-classification")(request, args)
    task.look(rows, config, processor)   # rows by train_dataset, eval_dataset, ...; columns and labels are found
    task.model_options                   # plain values that the configuration gets: num_labels, id2label, ...
    task.encoding("train_dataset")       # a Call: (batch, tokenizer=...) -> the model's columns; None: they are there
    task.collator()                      # a Call of a collator of kunren: (tokenizer=..., model=...); or None
    task.finishing()                     # a Call on the model once it is made: (model, tokenizer=...); or None
    task.compute_metrics("eval_dataset") # a Call: (prediction, rows=..., encoded=...) -> metrics; or None
    task.preprocess_logits()             # a Call: (logits, labels) -> what compute_metrics gets; or None

A `Call` is a function at the top of its file with plain values for its keywords, so that a script can hold both:
`call.source()` is its text, with that of the functions it needs, and `call.options` go through `repr`. What else the
function takes by the names in `call.live` are the objects of the run: the tokenizer (processor, where it is none of
texts), the model, and rows and encoded rows of the set that is measured.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from kunren.base.names import did_you_mean
from kunren.hf.tasks.fitting_metrics import is_among, metric_key
from kunren.metrics.names import known_names

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.hf.tasks.request import Request

logger = logging.getLogger(__name__)

LIVE = ("tokenizer", "processor", "model", "rows", "encoded")


class TaskError(Exception):
    """What was asked for does not go together, or is not there; the message says how to mend it."""


@dataclass(frozen=True)
class Call:
    """A function, or a class of kunren, and plain values for its keywords. `needs`: what of its file it calls.

    `imports`: the statements that the text of all of them rests on. `with_indices`: an encoding that takes, after the
    batch, the numbers of its rows in the set, as `datasets.Dataset.map(with_indices=True)` hands them out.
    """

    function: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    needs: tuple[Callable[..., Any], ...] = ()
    imports: tuple[str, ...] = ()
    with_indices: bool = False

    @property
    def live(self) -> tuple[str, ...]:
        """The objects of the run that it takes by keyword."""
        parameters = inspect.signature(self.function).parameters
        return tuple(name for name in LIVE if name in parameters and name not in self.options)

    def bound(self, **objects: Any) -> Callable[..., Any]:
        """The function with its options and those of `objects` that it takes."""
        return partial(self.function, **self.options, **{name: objects[name] for name in self.live if name in objects})

    @property
    def is_of_kunren(self) -> bool:
        """Whether it is a public name of kunren, which a script imports instead of holding its text."""
        return inspect.isclass(self.function) and self.function.__module__.startswith("kunren.")

    def source(self) -> str:
        """The text of the function, after that of those it needs; `imports` stand above it in a script."""
        return "\n\n".join(inspect.getsource(function) for function in (*self.needs, self.function))


class Task(ABC):
    """One task. Subclasses are final and declare the class variables; an instance belongs to one run."""

    name: ClassVar[str]
    auto_class: ClassVar[str]  # of transformers
    processor_class: ClassVar[str] = "AutoTokenizer"  # of transformers
    columns: ClassVar[dict[str, tuple[str, ...]]] = {}  # key of the file, such as text_column -> the usual names
    keys: ClassVar[tuple[str, ...]] = ()  # further keys of the file that it obeys, besides those that all tasks do
    metrics: ClassVar[tuple[str, ...]] = ()  # names of kunren.metrics that fit
    own_metrics: ClassVar[tuple[str, ...]] = ()  # names that its `compute_metrics` answers
    default_metrics: ClassVar[tuple[str, ...]] = ()
    in_per_cent: ClassVar[tuple[str, ...]] = ()  # of `own_metrics`, those that go up to 100, and not to 1
    splits_words: ClassVar[bool] = False  # whether the tokenizer gets words, each of which begins after a blank
    is_lazy: ClassVar[bool] = False  # whether rows are encoded as they are read, and not once for all
    changes_rows: ClassVar[bool] = False  # whether a row may become several, or none
    peft_task: ClassVar[str | None] = None
    has_new_head: ClassVar[bool] = False  # whether a model that has not been trained for it gets layers for it
    may_generate: ClassVar[bool] = False  # with predict_with_generate, by kunren.seq2seq

    def __init__(self, request: Request, args: TrainingArguments) -> None:
        self.request, self.args = request, args
        self.model_options: dict[str, Any] = {}
        self.is_tokenized = False  # whether the rows have the model's columns already
        self.asked_metrics: tuple[str, ...] = ()  # those of `own_metrics` that this run wants

    @classmethod
    def metrics_by_name(cls, args: TrainingArguments) -> list[str]:
        """Those of `args.metrics` that the Trainer computes; TaskError for one that does not fit the task."""
        fitting = cls.fitting_metrics(getattr(args, "predict_with_generate", False))
        for name in args.metrics:
            if not is_among(name, fitting):
                of_texts = cls.may_generate and is_among(name, cls.fitting_metrics(True))
                is_misspelt = metric_key(name) not in known_names() and not of_texts
                near = did_you_mean(metric_key(name), fitting) if is_misspelt else ""
                choices = f".{near} There are" if near else ": there are"
                more = " Set predict_with_generate: it compares texts." if of_texts else ""
                raise TaskError(f"The metric {name!r} does not fit {cls.name}{choices} {', '.join(fitting)}.{more}")
        return [name for name in args.metrics if metric_key(name) not in cls.own_metrics]

    @classmethod
    def fitting_metrics(cls, generates: bool) -> tuple[str, ...]:
        """The names of metrics that fit; others where texts are generated."""
        return (*cls.own_metrics, *cls.metrics)

    def longest(self, config: Any, processor: Any, usual: int = 512) -> int:
        """`max_length` of the file; else the usual one, or what the model can read if that is less."""
        given = self.request.max_length
        limits = (getattr(config, "max_position_embeddings", None), getattr(processor, "model_max_length", None))
        limit = min((one for one in limits if one), default=usual)
        if given is not None and given > limit:
            logger.warning("max_length=%d: the model was made for at most %d tokens.", given, limit)
        own = getattr(processor, "num_special_tokens_to_add", None)
        if given is not None and own is not None and not self.is_tokenized and given <= own():
            raise TaskError(
                f"max_length is {given}: the tokenizer adds {own()} tokens of its own, and nothing of a text is left."
            )
        return int(given if given is not None else min(usual, limit))

    @abstractmethod
    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        """Find columns and labels in the rows of each set; TaskError for what is missing or does not go together."""

    @abstractmethod
    def encoding(self, key: str) -> Call | None:
        """How a batch of rows becomes columns of the model; None where the rows are as the model wants them."""

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:  # noqa: B027
        """TaskError for rows that cannot be encoded; called before the encoding. `numbers` of the rows, if known."""

    def replaced(self, columns: list[str]) -> list[str]:
        """Columns of the rows that the encoding takes away: all."""
        return columns

    def kept_from_model(self) -> tuple[str, ...]:
        """Columns that the encoding makes for the metrics alone."""
        return ()

    def collator(self) -> Call | None:
        return None

    def finishing(self) -> Call | None:
        return None

    def metrics_of_run(self) -> tuple[str, ...]:
        """Metrics where the file names none. TaskError for one that it names, and that does not fit the labels."""
        return self.default_metrics

    def compute_metrics(self, key: str) -> Call | None:
        return None

    def preprocess_logits(self) -> Call | None:
        return None
