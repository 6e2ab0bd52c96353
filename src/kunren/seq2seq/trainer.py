"""Seq2SeqTrainer: evaluation and prediction by what the model writes."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.arguments import TrainingArguments
from kunren.base.random_state import preserved
from kunren.base.registry import resolve
from kunren.base.types import PredictionOutput, TrainOutput
from kunren.data.batching.ranks import Spare
from kunren.data.columns import is_column_dataset
from kunren.data.loaders import is_stream
from kunren.loop.guards.smaller_pieces import is_out_of_memory
from kunren.metrics.declaration import PERPLEXITY
from kunren.metrics.text.reader import TokenReader
from kunren.model.signature import base_of, unwrap
from kunren.seams.validation import name_is_overridden
from kunren.seq2seq.generation import Generation, generate, with_whole_weights
from kunren.seq2seq.options import check_can_generate, check_options, with_defaults, without_unset
from kunren.seq2seq.prompt_columns import COLUMNS, PromptColumns
from kunren.seq2seq.prompts import PROMPT, Prompts, prompts_of_decoder, prompts_of_encoder_decoder
from kunren.trainer import Trainer

logger = logging.getLogger(__name__)

_PACKING_COLLATORS = ("DataCollatorWithFlattening",)


class Seq2SeqTrainer(Trainer):
    """A Trainer that generates where `predict_with_generate=True`: encoder-decoders, and decoder-only models."""

    _gen_kwargs: dict[str, Any] | None = None  # what the evaluation at hand was told; subclasses may set it

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., nn.Module] | None = None,
        compute_loss_func: Callable[..., Any] | None = None,
        compute_metrics: Callable[..., dict[str, Any]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Optimizer | None, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None = None,
        **further: Any,
    ) -> None:
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_loss_func=compute_loss_func,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **further,
        )
        if getattr(self.args, "sortish_sampler", False):
            logger.warning("sortish_sampler=True does nothing: batching='grouped' puts rows of like lengths together.")
        given = getattr(self.args, "generation_config", None)
        self._generation_config = None if given is None else self.load_generation_config(given)
        if self._generates:
            self._check_generation()

    def _check_generation(self) -> None:
        """What would end the first evaluation, told at construction."""
        check_can_generate(self.model)
        check_options(self.model, with_defaults({}, self.args), self._generation_config)
        packs = getattr(self.data_collator, "padding_free", False) is True
        if packs or any(kind.__name__ in _PACKING_COLLATORS for kind in type(self.data_collator).__mro__):
            raise ValueError(
                f"predict_with_generate=True needs one row for each prompt, and {type(self.data_collator).__name__} "
                "packs the rows of a batch into one: take a collator that pads, such as DataCollatorForSeq2Seq, and "
                "batching='packed' for a training without padding."
            )

    @property
    def _generates(self) -> bool:
        return bool(getattr(self.args, "predict_with_generate", False))

    @cached_property
    def _writes_after_its_prompt(self) -> bool:
        """Whether prompt and answer are in one row: a decoder-only model's."""
        config = getattr(base_of(self.model), "config", None)
        return config is not None and not getattr(config, "is_encoder_decoder", False)

    @staticmethod
    def load_generation_config(gen_config_arg: Any) -> Any:
        """The settings that `generation_config` stands for: an object, a dict, a path, or a hub name."""
        return resolve("kunren.hf.generation_config:load_generation_config")(gen_config_arg)

    def token_reader(self) -> TokenReader | None:
        """Makes texts of what is generated, for `metrics=[...]`."""
        has_texts = any(name != PERPLEXITY for name in self.args.metrics)
        return TokenReader(self.processing_class) if self._generates and has_texts else None

    # ---- evaluation

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **gen_kwargs: Any,
    ) -> dict[str, Any]:
        """Loss and metrics; further keywords, such as max_length and num_beams, are those of `model.generate`."""
        with self._told(gen_kwargs):
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)

    def predict(
        self,
        test_dataset: Any,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "test",
        **gen_kwargs: Any,
    ) -> PredictionOutput:
        """What is generated for each row, its labels and the metrics; further keywords are those of `generate`."""
        with self._told(gen_kwargs):
            return super().predict(test_dataset, ignore_keys, metric_key_prefix)

    @contextmanager
    def _told(self, given: Mapping[str, Any]) -> Iterator[None]:
        """Inside, generation is told this, and what a call around this one was told: several sets are one call each."""
        before = self._gen_kwargs
        options = with_defaults({**(before or {}), **given}, self.args)
        if self._generates:
            check_options(self.model, options, self._generation_config)
        self._gen_kwargs = options
        try:
            yield
        finally:
            self._gen_kwargs = before

    def prediction_step(
        self,
        model: nn.Module,
        inputs: Any,
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
        **gen_kwargs: Any,
    ) -> tuple[torch.Tensor | None, Any, Any]:
        """(loss, generated tokens, labels) of one batch; of a decoder-only model, both without the prompts."""
        if not self._generates or prediction_loss_only:
            own = {name: inputs[name] for name in inputs if name not in COLUMNS} if PROMPT in inputs else inputs
            return super().prediction_step(model, own, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        prompts = self._prompts_of(inputs)
        options = gen_kwargs or (with_defaults({}, self.args) if self._gen_kwargs is None else self._gen_kwargs)
        tokens = self._generated(model, prompts, options)
        loss = None if prompts.answers is None else self._loss_beside(model, inputs)
        return loss, tokens, prompts.answers

    def _prompts_of(self, inputs: Any) -> Prompts:
        has_labels = any(inputs.get(name) is not None for name in ("labels", *self.label_names))
        # An override written for transformers takes the prompts away itself, where it has taken the labels before.
        is_theirs = name_is_overridden(self, Seq2SeqTrainer, "prediction_step") and not has_labels
        if self._writes_after_its_prompt and (PROMPT in inputs or not is_theirs):
            return prompts_of_decoder(inputs, self.label_names, self._pad_token)
        return prompts_of_encoder_decoder(inputs, self.label_names)

    def _generated(
        self, model: nn.Module, prompts: Prompts, options: Mapping[str, Any], is_trial: bool = False
    ) -> torch.Tensor:
        engine = self.engine
        how = Generation(
            without_unset(options),
            self._generation_config,
            self._pad_token,
            is_synced=engine.spread_by is not None and engine.world_size > 1,
            is_trial=is_trial,
            is_strict=not self.is_in_train,
        )
        with with_whole_weights(model, engine.spread_by), self.compute_loss_context_manager():
            return generate(unwrap(self.model), prompts, how)

    def _loss_beside(self, model: nn.Module, inputs: Any) -> torch.Tensor:
        own = {name: inputs[name] for name in inputs if name not in COLUMNS}
        with torch.no_grad(), self.compute_loss_context_manager():
            loss, _ = self.compute_loss(model, own, return_outputs=True)
        detached: torch.Tensor = loss.detach().mean()
        return detached

    @property
    def _pad_token(self) -> int | None:
        """What fills rows of tokens: the tokenizer's padding token, its end token, or the model's own."""
        tokenizer, base = getattr(self.processing_class, "tokenizer", self.processing_class), base_of(self.model)
        settings, config = getattr(base, "generation_config", None), getattr(base, "config", None)
        places = ((tokenizer, "pad_token_id"), (tokenizer, "eos_token_id"), (settings, "pad_token_id"))
        found = (getattr(holder, name, None) for holder, name in (*places, (config, "pad_token_id")))
        return next((token for token in found if isinstance(token, int)), None)

    def _pad_tensors_to_max_len(self, tensor: torch.Tensor, max_length: int) -> torch.Tensor:
        """For overrides written for transformers; kunren pads where batches are joined."""
        if self._pad_token is None:
            raise ValueError("There is no padding token: set processing_class.pad_token or model.config.pad_token_id.")
        return nn.functional.pad(tensor, (0, max_length - tensor.shape[1]), value=self._pad_token)

    # ---- prompts in columns of their own

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        if self._generates and self._signature_columns is not None and PROMPT not in self._signature_columns:
            self._signature_columns += COLUMNS

    def _get_dataloader(self, dataset: Any, description: str, *args: Any, **keywords: Any) -> Any:
        names = dataset.column_names if is_column_dataset(dataset) else None
        if not self._generates or (names and PROMPT not in names):
            return super()._get_dataloader(dataset, description, *args, **keywords)
        own = self.data_collator
        keeps = not keywords.get("is_training", False)
        self.data_collator = PromptColumns(own, keeps, self._pad_token)
        try:
            return super()._get_dataloader(dataset, description, *args, **keywords)
        finally:
            self.data_collator = own

    # ---- before the first step

    def steps(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Generator[int, None, TrainOutput]:
        """As `Trainer.steps`, after one token has been generated for a first batch: what fails then, fails now."""
        is_asked_for = self.compute_metrics is not None or self.token_reader() is not None
        if self._generates and self.args.eval_strategy != "no" and is_asked_for:
            self._try_generation()
        return (yield from super().steps(resume_from_checkpoint, trial, ignore_keys_for_eval))

    def _try_generation(self) -> None:
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {None: self.eval_dataset}
        for name, dataset in sets.items():
            if dataset is None or is_stream(dataset):  # a stream may not give its first batch twice
                continue
            with preserved():
                try:
                    batch = next(iter(self.get_eval_dataloader(name)))
                except Exception:  # the evaluation itself will meet and report it
                    logger.debug("The generation could not be tried before training.", exc_info=True)
                    return
                # Where there are fewer rows than processes, some have one of another.
                self._generate_one_token(batch.batch if type(batch) is Spare else batch)

    def _generate_one_token(self, batch: Any) -> None:
        inputs = self._prepare_inputs(batch)
        prompts = self._prompts_of(inputs)
        if self.engine.spread_by is not None:  # weights that are not divided yet may not fit
            return
        from kunren.loop.evaluate import in_eval_mode

        try:
            with in_eval_mode(self.model), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tokens = self._generated(self.model, prompts, with_defaults({}, self.args), is_trial=True)
            reader = self.token_reader()
            if reader is not None:
                reader.texts(tokens)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):  # which an evaluation answers with smaller batches
                raise
