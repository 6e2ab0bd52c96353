"""Data seams: loaders, samplers, columns, inputs, and the counting of a window's labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, SequentialSampler

from kunren.base.nested import to_device
from kunren.data.batching.choose import check_order, training_order
from kunren.data.columns import ColumnFilter, drop_unused, is_column_dataset, signature_columns
from kunren.data.loaders import build_loader, examples_in, has_length, is_stream
from kunren.data.wrappers.mixture import Mixture, mix_sets
from kunren.loop.work import operations_per_token, real_tokens_in, tokens_in
from kunren.losses.counting import Count, counted_labels, is_zero
from kunren.model.signature import base_of
from kunren.seams.base import Seams


class DataSeams(Seams):
    """Override `get_train_dataloader` for loaders of your own, `_get_train_sampler` for another order."""

    _eval_dataloaders: dict[int, tuple[Any, DataLoader[Any]]]
    _counts_work: bool
    _counts_tokens: bool
    _hands_out_count: bool
    _window_is_of_all: bool  # whether the labels of all processes have been counted
    _operations_per_token: int

    def get_train_dataloader(self) -> Any:
        """The loader of the training set; the loop reads any iterable of batches. Override for data of your own."""
        if self.train_dataset is None:
            raise ValueError("Training needs data: pass train_dataset to the Trainer.")
        return self._get_dataloader(
            self.train_dataset,
            description="training",
            batch_size=self._train_batch_size,
            sampler_fn=self._get_train_sampler,
            is_training=True,
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader of an evaluation set, given itself or by its name in `eval_dataset`; rows in data-set order."""
        dataset = eval_dataset if eval_dataset is not None else self.eval_dataset
        if isinstance(dataset, str):
            if not isinstance(self.eval_dataset, Mapping) or dataset not in self.eval_dataset:
                known = ", ".join(self.eval_dataset) if isinstance(self.eval_dataset, Mapping) else "none"
                raise ValueError(f"There is no evaluation set named {dataset!r}; the names are: {known}.")
            dataset = self.eval_dataset[dataset]
        if dataset is None:
            raise ValueError("Evaluation needs data: pass eval_dataset to the Trainer or to evaluate().")
        keeps = self.args.dataloader_persistent_workers
        if keeps and id(dataset) in self._eval_dataloaders:
            return self._eval_dataloaders[id(dataset)][1]
        loader = self._get_dataloader(
            dataset, "evaluation", self.args.eval_batch_size, sampler_fn=self._get_eval_sampler
        )
        # Workers that persist are worth keeping: one loader per data set, held with it so that its id stays its own.
        if keeps:
            self._eval_dataloaders[id(dataset)] = (dataset, loader)
        return loader

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The loader of a set to predict; rows in data-set order."""
        return self._get_dataloader(test_dataset, "test", self.args.eval_batch_size, sampler_fn=self._get_eval_sampler)

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Sampler[Any] | None] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> DataLoader[Any]:
        sampler: Sampler[Any] | None = None
        if is_training and isinstance(dataset, Mapping):  # several training sets
            dataset, sampler = mix_sets(
                dataset, self._remove_unused_columns, sampler_fn, self.args, batch_size, self.data_seed
            )
        elif sampler_fn is not None and not is_stream(dataset):
            sampler = sampler_fn(dataset)  # with all columns: that of lengths is none the model takes
        if is_training:
            check_order(self.args, sampler)
        collator: Callable[[list[Any]], Any] = self.data_collator
        if is_column_dataset(dataset) and dataset.column_names:  # unknown of a stream that was mapped
            dataset = self._remove_unused_columns(dataset, description)
        elif not (isinstance(dataset, Mixture) and dataset.has_columns_only):
            collator = self._get_collator_with_removed_columns(collator, description)
        if is_training and self.args.batching == "packed":
            from kunren.data.batching.packed import packing_collator, packing_for

            collator = packing_collator(collator, packing_for(self.model, self.label_names))
        return build_loader(self.args, dataset, collator, batch_size, sampler, is_training)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[Any] | None:
        dataset = train_dataset if train_dataset is not None else self.train_dataset
        if dataset is None or not has_length(dataset):
            return None
        return training_order(self.args, dataset, self._train_batch_size, self.data_seed, self.main_input_name)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler[Any] | None:
        return SequentialSampler(eval_dataset) if has_length(eval_dataset) else None

    @property
    def data_seed(self) -> int:
        """The seed that fixes the order of the data and all randomness in loading it."""
        return self.args.data_seed if self.args.data_seed is not None else self.args.seed

    def num_examples(self, dataloader: Any) -> int:
        """The number of examples behind a loader; 0 when it does not know."""
        return examples_in(dataloader) or 0

    def _set_signature_columns_if_needed(self) -> None:
        """Fill `_signature_columns`, the columns to keep; None keeps all. Override to keep columns of your own."""
        if self._signature_columns is None:
            self._signature_columns = signature_columns(self.signature, self.label_names)

    def _kept_columns(self) -> list[str] | None:
        if not self.args.remove_unused_columns:
            return None
        self._set_signature_columns_if_needed()
        return self._signature_columns

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        return drop_unused(dataset, self._kept_columns(), description or "given", type(base_of(self.model)).__name__)

    def _get_collator_with_removed_columns(
        self, data_collator: Callable[[list[Any]], Any], description: str | None = None
    ) -> Callable[[list[Any]], Any]:
        kept = self._kept_columns()
        return data_collator if kept is None else ColumnFilter(data_collator, kept, description or "given")

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device | None = None
    ) -> tuple[list[Any], Any]:
        """Up to `num_batches` micro-batches, and the number of labels that their loss is a mean over.

        Of several processes each gets its own batches, and the labels of all count.
        """
        batches: list[Any] = []
        count: Count = 0.0
        for batch in epoch_iterator:
            batches.append(batch)
            if len(batches) == num_batches:
                break
        if self.engine.world_size > 1:
            batches, count = self._window_of_all(batches)
        elif batches:
            count = self.counted(batches[0])
            for batch in batches[1:]:
                count = count + self.counted(batch)
            self.window_is_empty = is_zero(count)
        if not batches:
            return batches, None
        # A tensor where code may see it that expects one, as transformers hands it out.
        seen = self._hands_out_count and not isinstance(count, torch.Tensor)
        return batches, torch.tensor(count) if seen else count

    def _window_of_all(self, batches: list[Any]) -> tuple[list[Any], float]:
        from kunren.loop.guards.together import window_of_all

        return window_of_all(self, batches)

    def counted(self, batch: Any) -> Count:
        """The labels of a batch that enter its loss."""
        if self._run is not None and self._run.reader.is_spare(batch):
            return 0.0
        return counted_labels(batch, self.shifts_labels, self.label_names, self.ignored_label)

    def _get_batches(self, epoch_iterator: Iterator[Any], num_batches: int) -> tuple[list[Any], Any, bool]:
        """`get_batch_samples` for the loop, noting what the window really holds."""
        self.window_is_empty = False
        self._window_is_of_all = self.engine.world_size == 1
        batches, num_items = self.get_batch_samples(epoch_iterator, num_batches, self.engine.device)
        if not self._window_is_of_all:  # an override has counted
            batches, self.window_is_empty = self._window_of_all(batches)[0], False
        self.current_gradient_accumulation_steps = len(batches)
        if self._counts_work:
            self._count_work(batches)
        return batches, num_items, self.window_is_empty

    def _count_work(self, batches: list[Any]) -> None:
        seen, before = str(self.args.include_num_input_tokens_seen), self.state.num_input_tokens_seen
        for batch in batches:
            operations = float(self.floating_point_ops(batch))
            self.current_flos += operations
            self._operations_done += operations
            if self._counts_tokens:
                self._tokens_seen += tokens_in(batch, self.main_input_name)
            if seen == "non_padding":
                pad = getattr(self.processing_class, "pad_token_id", None)
                self.state.num_input_tokens_seen += real_tokens_in(batch, self.main_input_name, pad)
            elif seen != "no":
                self.state.num_input_tokens_seen += tokens_in(batch, self.main_input_name)
        if seen != "no" and self.engine.world_size > 1:
            here = torch.tensor((self.state.num_input_tokens_seen - before) * self.engine.brings_data)
            self.state.num_input_tokens_seen = before + int(self.engine.sum(here))

    def floating_point_ops(self, inputs: Any) -> float:
        """Operations of forward and backward on `inputs`; override for a count of your own."""
        return self._operations_per_token * tokens_in(inputs, self.main_input_name)

    def prepare_counting(self) -> None:
        """Decide once per run what has to be counted: most models' operations, or nothing at all."""
        self._operations_per_token = operations_per_token(self.model)
        overridden = type(self).floating_point_ops is not DataSeams.floating_point_ops
        wants_tokens = str(self.args.include_num_input_tokens_seen) != "no"
        self._counts_work = overridden or wants_tokens or self._operations_per_token > 0
        self._counts_tokens, self._tokens_seen = self.main_input_name == "input_ids", 0
        self._operations_done = 0.0

    def _prepare_context_parallel_inputs(self, model: nn.Module, inputs: Any) -> tuple[Callable[[], Any], Any]:
        """A context to compute in, and what of the inputs this process computes. Override to divide long sequences."""
        return nullcontext, inputs

    @contextmanager
    def _divided(self, model: nn.Module, inputs: Any) -> Iterator[Any]:
        """Inside, in the context that an override asks for, the inputs as it divides them; by default as they are."""
        if not self.divides_inputs:
            yield inputs
            return
        context, part = self._prepare_context_parallel_inputs(model, inputs)
        with context():
            yield part

    def _prepare_input(self, data: Any) -> Any:
        """Move tensors, and tensors in containers, to the device."""
        return to_device(data, self.engine.device)

    def _prepare_inputs(self, inputs: Any) -> Any:
        """Move a batch to the device, nested containers too. Override to change inputs before the model sees them."""
        if inputs is None or (isinstance(inputs, (Mapping, list, tuple)) and not inputs):
            raise ValueError(
                "The batch given to the model is empty: the data collator returned nothing that the model takes "
                f"({', '.join(self._signature_columns or self.signature.names)})."
            )
        if self.engine.device.type == "cpu":
            return inputs  # tensors of a loader are there already
        return to_device(inputs, self.engine.device)
