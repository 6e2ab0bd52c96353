"""Checkpoints of a model that is divided among processes: each saves its part and loads its part, of any division."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import nn
from torch.optim import Optimizer

from kunren.checkpoint import sink
from kunren.checkpoint.formats import SHARDED_OPTIMIZER_NAME, SHARDED_WEIGHTS_NAME, distributed_checkpoint
from kunren.checkpoint.formats.distributed_checkpoint import Box, ObjectPath, Share
from kunren.checkpoint.formats.plain_values import plain
from kunren.checkpoint.layout import OPTIMIZER_NAME
from kunren.checkpoint.spread import held_optimizer, loading
from kunren.checkpoint.spread.gather import gather
from kunren.checkpoint.spread.held import HeldModel, bytes_here, held_by
from kunren.checkpoint.storage import Storage
from kunren.engine import Backend
from kunren.optim.parameter_groups import fit_state, split_state

logger = logging.getLogger(__name__)


@final
class ShardedStorage(Storage):
    """FSDP in both versions, and tensor parallelism: in parts, or whole where `state_dict_type` says so."""

    parts_of_each_process = ("model", "optimizer", "random numbers")

    def __init__(self, engine: Backend) -> None:
        super().__init__(engine)
        self._is_first = engine.process_index == 0
        settings: Mapping[str, Any] = getattr(engine, "settings", {})
        self._is_whole = settings.get("state_dict_type") == "full_state_dict"
        self._model: nn.Module | None = None

    # ---- saving

    def weights_to_save(self, model: nn.Module, folder: Path, in_checkpoint: bool) -> Mapping[str, Any] | None:
        self._model, held = model, held_by(model, self.engine)
        if held is None:
            return None
        if not in_checkpoint:
            self.engine.meet("save_model()")
        adapters = loading.adapter_names(model)
        wanted = [name for name in held.tensors if not adapters or loading.is_of_adapter(name, adapters, held)]
        owned = [(name, held.tensors[name]) for name in wanted if held.tensors[name].is_owner]
        if adapters or self._is_whole or not in_checkpoint:
            # Adapters are small: they are always in the form that others read.
            found = gather(
                [box for name, one in owned for box in one.boxes(name)], self.engine, sink.current().memory_for
            )
            if not self._is_first:
                return {}
            state: dict[str, Any] = {name: found[name] for name in wanted}
            return state | {alias: found[name] for alias, name in held.aliases.items() if name in found} | held.values()
        values = {f"model.{name}": value for name, value in held.values().items()} if self._is_first else {}
        names = [*held.tensors, *held.aliases, *held.values()]
        self._put(
            folder / SHARDED_WEIGHTS_NAME,
            [box for name, one in owned for box in one.boxes(f"model.{name}")],
            values,
            {f"model.{name}": ("model", name) for name in names},
            {f"model.{alias}": f"model.{name}" for alias, name in held.aliases.items()},
        )
        return {}

    def save_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> None:
        held = self._held()
        if held is None:
            if self._is_first:
                super().save_optimizer(optimizer, folder, number_of_decay_parameters)
            return
        state = optimizer.state_dict()
        content = held_optimizer.parts_of(state, optimizer, held, self._is_first)
        if number_of_decay_parameters is not None:
            state = split_state(state, number_of_decay_parameters)
        if self._is_whole:
            tensors = gather(content.boxes, self.engine, sink.current().memory_for)
            values = {name: value for one in self.engine.gather_objects(content.values) for name, value in one.items()}
            if self._is_first:
                whole = {**state, "state": held_optimizer.by_index({**tensors, **values}, content.names)}
                sink.current().put_value(plain(whole, OPTIMIZER_NAME), folder / OPTIMIZER_NAME)
            return
        described = held_optimizer.describe(state, content.names)
        self._put(
            folder / SHARDED_OPTIMIZER_NAME,
            content.boxes,
            {**content.values, **{name: value for name, (_, value) in described.items() if self._is_first}},
            {**content.paths, **{name: path for name, (path, _) in described.items()}},
            {},
        )

    def _put(
        self,
        folder: Path,
        boxes: list[Box],
        values: Mapping[str, Any],
        paths: dict[str, ObjectPath],
        aliases: dict[str, str],
    ) -> None:
        folder.mkdir(exist_ok=True)
        index = self.engine.process_index

        def write(copies: tuple[list[torch.Tensor], dict[str, Any]], digests: dict[Path, str]) -> Share:
            data, values = copies
            parts = [replace(box, data=one) for box, one in zip(boxes, data, strict=True)]
            items, results = distributed_checkpoint.write(parts, values, folder, index, digests)
            return Share(items, results, paths, aliases)

        content = ([box.data for box in boxes], plain(values, folder.name))
        sink.current().put_share(content, write, lambda shares: distributed_checkpoint.finish(shares, folder))

    def estimate_bytes(self, model: nn.Module, optimizer: Optimizer | None, last: Path | None) -> int:
        held = held_by(model, self.engine)
        if held is None or (last is not None and last.is_dir()):
            return super().estimate_bytes(model, optimizer, last)
        of_weights = sum(one.size.numel() * one.dtype.itemsize for one in held.tensors.values())
        # Each other process has about as much of the states as this one.
        states = optimizer.state.values() if optimizer is not None else ()
        here = sum(bytes_here(value) for kept in states for value in kept.values() if isinstance(value, torch.Tensor))
        return of_weights + here * self.engine.world_size

    # ---- loading

    def load_weights(self, model: nn.Module, folder: str | Path, same_model: bool = False) -> None:
        self._model, held = model, held_by(model, self.engine)
        if held is None:
            super().load_weights(model, folder, same_model)
        else:
            loading.load(held, model, Path(folder), same_model)

    def load_optimizer(self, optimizer: Optimizer, folder: Path, number_of_decay_parameters: int | None) -> bool:
        held = self._held()
        if held is None:
            return super().load_optimizer(optimizer, folder, number_of_decay_parameters)
        state = held_optimizer.read(folder, optimizer, held)
        if state is None:
            return False
        fit_state(state, optimizer, number_of_decay_parameters)
        return True

    def _held(self) -> HeldModel | None:
        model = self._model if self._model is not None else getattr(self.engine, "wrapped", None)
        return None if model is None else held_by(model, self.engine)
