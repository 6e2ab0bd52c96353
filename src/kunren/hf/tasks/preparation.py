"""A run as its task prepares it: rows, inputs, model and Trainer, made of the keys of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunren.arguments import TrainingArguments
from kunren.base.random_state import set_seed
from kunren.base.registry import resolve
from kunren.hf.tasks import all_tasks, models, task_named
from kunren.hf.tasks.adapters import adapted, adapter_of
from kunren.hf.tasks.base import Task, TaskError
from kunren.hf.tasks.columns import INPUTS
from kunren.hf.tasks.fitting_metrics import metric_key
from kunren.hf.tasks.request import GENERAL_KEYS, Request
from kunren.hf.tasks.sources import Source, sources_of
from kunren.hf.tasks.token_rows import refuse_bad_labels, refuse_bad_tokens, refuse_long_rows


@dataclass
class PreparedRun:
    """All of a run but its model and its Trainer.

    `rows` are as they were read, `encoded` with what the encoding made, `sets` what the Trainer gets, each by
    train_dataset, eval_dataset, test_dataset. `config` has `task.model_options` already.
    """

    task: Task
    request: Request
    args: TrainingArguments
    sources: dict[str, Source]
    config: Any
    processor: Any
    is_to_train: bool
    rows: dict[str, Any] = field(default_factory=dict)
    encoded: dict[str, Any] = field(default_factory=dict)
    sets: dict[str, Any] = field(default_factory=dict)
    options_of_weights: dict[str, Any] = field(default_factory=dict)
    adapter: Any = None

    def model(self) -> Any:
        """The model, from `seed`: a new head, or a new model, is the same in every run."""
        import transformers

        kind = getattr(transformers, self.task.auto_class)
        is_resumed = self.args.resume_from_checkpoint not in (None, False, "", "false", "False")
        set_seed(self.args.seed)
        if self.is_to_train:
            model = models.with_weights(kind, self.request, self.config, self.options_of_weights, is_resumed)
        else:
            model = kind.from_config(self.config)
        if (finishing := self.task.finishing()) is not None:
            finishing.bound(tokenizer=self.processor)(model)
        return model if self.adapter is None else adapted(model, self.adapter, self.request)

    def trainer(self) -> Any:
        """The Trainer of the run."""
        model = self.model()
        others = self.sets.get("eval_dataset")
        if others is None and not self.is_to_train and self.args.eval_strategy != "no":
            others = self.sets["train_dataset"]
        collator = self.task.collator() if self.processor is not None else None
        preprocess = self.task.preprocess_logits() if self.compute_metrics("eval_dataset") is not None else None
        return self.trainer_class(
            model=model,
            args=self.args,
            train_dataset=self.sets["train_dataset"],
            eval_dataset=others,
            processing_class=self.processor,
            data_collator=collator and collator.bound(tokenizer=self.processor, model=model)(),
            compute_metrics=self.compute_metrics("eval_dataset"),
            preprocess_logits_for_metrics=preprocess and preprocess.bound(),
        )

    def refuse_bad_rows(self, model: Any) -> None:
        """TaskError for rows that the model would fail on, once it comes to them."""
        for key, rows in self.encoded.items():
            if INPUTS in rows.column_names and self.task.name != "multiple-choice":
                refuse_bad_tokens(key, rows, self.config, self.processor)
                refuse_bad_labels(self.task, key, rows, self.config)
                refuse_long_rows(key, rows, model)

    def test(self, trainer: Any) -> dict[str, Any]:
        """What the Trainer's model does on the test set, under test_."""
        trainer.compute_metrics, before = self.compute_metrics("test_dataset"), trainer.compute_metrics
        try:
            measured: dict[str, Any] = trainer.evaluate(self.sets["test_dataset"], metric_key_prefix="test")
        finally:
            trainer.compute_metrics = before
        return measured

    @property
    def trainer_class(self) -> Any:
        generates = getattr(self.args, "predict_with_generate", False)
        return resolve("kunren.seq2seq:Seq2SeqTrainer" if generates else "kunren.trainer:Trainer")

    def compute_metrics(self, key: str) -> Callable[[Any], dict[str, float]] | None:
        """What the task measures on one set besides named metrics; None for nothing."""
        call = self.task.compute_metrics(key) if key in self.sets and self.is_to_train else None
        if call is None:
            return None
        return call.bound(tokenizer=self.processor, rows=self.rows[key], encoded=self.encoded[key])


def prepare(args: TrainingArguments, request: Request, cache: str, is_to_train: bool) -> PreparedRun:
    """Read, check and encode what a run needs. `args` gets the metrics of the task where it has none.

    `cache`: a folder for what `datasets` makes of the files, which has to be there as long as the rows are used.
    """
    try:
        import transformers
    except ImportError as error:
        raise TaskError("A model by name needs transformers: pip install 'kunren[hf]'.") from error
    kind = task_named(request.task)
    _refuse_other_keys(kind, request)
    kind.metrics_by_name(args)
    task = kind(request, args)
    sources = sources_of(request, whole_documents=request.block_size is not None)
    rows = {key: source.read(cache) for key, source in sources.items()}
    config = models.config_of(transformers, request)
    models.refuse_misfit(transformers, kind, config, all_tasks())
    adapter, weights = adapter_of(task, request), models.options_of_weights(transformers, kind, request)
    is_tokenized = INPUTS in rows["train_dataset"].column_names
    processor = models.processor_of(transformers, kind, request, is_needed=not is_tokenized)
    run = PreparedRun(task, request, args, sources, config, processor, is_to_train, rows)
    run.options_of_weights, run.adapter = weights, adapter
    task.look(rows, config, processor)
    for name, value in task.model_options.items():
        setattr(config, name, value)
    _set_metrics(task, args)
    _encode(run, cache)
    return run


def _refuse_other_keys(kind: type[Task], request: Request) -> None:
    own = (*kind.columns, *kind.keys)
    for key, value in request.given().items():
        if isinstance(value, int) and value < (0 if key == "stride" else 1):
            raise TaskError(f"{key} is {value}: it has to be a whole number above 0.")
        if key not in GENERAL_KEYS and key not in own:
            users = [name for name, other in all_tasks().items() if key in (*other.columns, *other.keys)]
            raise TaskError(
                f"{key} is not for {kind.name}, which takes {', '.join(own)}; {key} is for {', '.join(users)}."
            )


def _set_metrics(task: Task, args: TrainingArguments) -> None:
    """Named metrics go to the Trainer; the task's own are those of its `compute_metrics`."""
    from kunren.metrics.names import check_names

    asked, generates = list(args.metrics), getattr(args, "predict_with_generate", False)
    usual = task.metrics_of_run()
    if not asked and not args.prediction_loss_only:
        args.metrics = list(usual)
    names = [metric_key(name) for name in args.metrics]
    task.asked_metrics = tuple(name for name in task.own_metrics if name in names)
    args.metrics = task.metrics_by_name(args)
    try:
        check_names(args.metrics, args.prediction_loss_only, generates)
    except ImportError:
        if asked:
            raise
        args.metrics = []  # nobody asked for them


def _encode(run: PreparedRun, cache: str) -> None:
    for number, (key, rows) in enumerate(run.rows.items()):
        call = run.task.encoding(key)
        if call is None:
            run.encoded[key] = run.sets[key] = rows
            continue
        bound = call.bound(tokenizer=run.processor, processor=run.processor)
        encode = _checked(run.task, key, bound, call.with_indices)
        is_for_a_look = not run.is_to_train and not run.task.changes_rows and not run.task.is_tokenized
        if run.task.is_lazy or is_for_a_look:
            # As they are read. Columns that become others then are not known to the Trainer.
            run.encoded[key] = run.sets[key] = rows.with_transform(encode)
            run.args.remove_unused_columns = False
            continue
        made = rows.map(
            encode,
            batched=True,
            with_indices=True,
            remove_columns=run.task.replaced(rows.column_names),
            cache_file_name=str(Path(cache) / f"tokenized-{number}.arrow"),
            new_fingerprint=f"kunren{number}",  # it is never looked for again, and need not be computed
            desc="Tokenizing",
        )
        if len(made) == 0:
            length = run.request.max_length
            why = "" if length is None else f" With max_length={length} there may be no room for what is to be learnt."
            raise TaskError(f"{key} has no row that {run.task.name} can use: nothing is left of any.{why}")
        run.encoded[key] = made
        run.sets[key] = made.remove_columns([name for name in run.task.kept_from_model() if name in made.column_names])


def _checked(task: Task, key: str, encode: Callable[..., Any], with_indices: bool) -> Callable[..., Any]:
    def checked(batch: Any, numbers: list[int] | None = None) -> Any:
        batch = dict(batch)
        task.check(key, batch, numbers)
        try:
            return encode(batch, numbers) if with_indices else encode(batch)
        except Exception as error:  # ValueError of templates, plain ones of tokenizers
            is_plain = isinstance(error, (ValueError, TaskError)) or type(error) is Exception
            kind = "" if is_plain else f"{type(error).__name__}: "
            raise TaskError(f"{key}: {kind}{error}") from error

    return checked
