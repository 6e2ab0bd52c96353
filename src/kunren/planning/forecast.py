"""What a run would do: the record, and how it is filled in from a Trainer or from arguments alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import SGD

from kunren.base.host_memory import free_host_bytes
from kunren.checkpoint.disk import free_bytes
from kunren.data.batching.ranks import rows_together
from kunren.data.loaders import batches_in, examples_in
from kunren.data.wrappers.mixture import Mixture, MixtureBatches
from kunren.optim.schedule import get_scheduler
from kunren.plan import Cursor, Plan, make_plan
from kunren.planning.live_bytes import bytes_of
from kunren.planning.measured_step import MeasuredStep, StepMemory, StepTime, measure_step, missing_host_memory
from kunren.planning.rate_curve import RateCurve, rates_of
from kunren.planning.reading import Reading, Tokens, count_tokens, read_some
from kunren.planning.storage import Kept, checkpoints_kept
from kunren.planning.throwaway import CannotBeCopied, copied_model, undone
from kunren.planning.unknown import Unknown
from kunren.seams.lifecycle import start_state
from kunren.seams.validation import check_training

if TYPE_CHECKING:
    from kunren.trainer import Trainer

NO_MODEL = Unknown("there is no model")


@dataclass(frozen=True)
class Weights:
    """Of the model: numbers of weights, and bytes. Tied ones count once."""

    count: int
    trained: int
    parameter_bytes: int
    buffer_bytes: int


@dataclass(frozen=True)
class TrainingSet:
    """One of several: its rows, and the batches that the first pass takes from it, where that is known."""

    examples: int
    batches: int | None


@dataclass(frozen=True)
class Forecast:
    """What a run would do and take. What cannot be known is an `Unknown` that says why; `str()` is a table of all."""

    args: Any
    plan: Plan
    samples: int | Unknown
    tokens: Tokens | Unknown
    curve: RateCurve | Unknown
    schedule: str
    model_name: str
    device: str
    weights: Weights | Unknown
    step: MeasuredStep | Unknown
    largest_batch: str
    kept: Kept | Unknown
    free_device_bytes: int | None
    free_disk_bytes: int | None
    output_dir: str
    warnings: list[str] = field(default_factory=list)
    training_sets: dict[str, TrainingSet] = field(default_factory=dict)

    @property
    def num_examples(self) -> int | None:
        """Rows of all training sets. With weights a pass reads `plan.num_examples` of them, in the mean."""
        if self.training_sets:
            return sum(one.examples for one in self.training_sets.values())
        return self.plan.num_examples

    @property
    def effective_batch(self) -> int | Unknown:
        """Rows of one optimizer step, of all processes."""
        if self.args.batching == "token_budget":
            return Unknown("with token_budget a batch has as many rows as fit")
        return self.plan.train_batch_size * self.plan.accumulation_steps

    @property
    def memory(self) -> StepMemory | Unknown:
        return self.step.memory if isinstance(self.step, MeasuredStep) else self.step

    @property
    def time(self) -> StepTime | Unknown:
        return self.step.time if isinstance(self.step, MeasuredStep) else self.step

    @property
    def peak_bytes(self) -> int | Unknown:
        """The most that training takes on the device at any moment: weights, optimizer, and the rest of a step."""
        if isinstance(self.weights, Unknown):
            return self.weights
        if not isinstance(self.step, MeasuredStep):
            return self.step
        if isinstance(self.step.memory, Unknown):
            return self.step.memory
        resident = self.weights.parameter_bytes + self.weights.buffer_bytes + self.step.optimizer_bytes
        copies = resident if self.args.nonfinite == "rollback" else 0
        return resident + copies + self.step.memory.beside_weights

    @property
    def checkpoint_bytes(self) -> int | Unknown:
        """Weights and optimizer, or weights alone with `save_only_model`; what else is in it is small."""
        if not isinstance(self.step, MeasuredStep):
            return self.step
        return self.step.checkpoint_bytes[0 if self.args.save_only_model else 1]

    @property
    def disk_bytes(self) -> int | Unknown:
        """All checkpoints that are there at once."""
        if isinstance(self.checkpoint_bytes, Unknown):
            return self.checkpoint_bytes
        return self.checkpoint_bytes * self.kept.at_once if isinstance(self.kept, Kept) else self.kept

    @property
    def saves(self) -> bool:
        """Whether any checkpoint is foreseen."""
        return not isinstance(self.kept, Kept) or self.kept.saved > 0

    @property
    def snapshot_bytes(self) -> int:
        """Host memory for the copy that is written in the background; 0 where none is, or its size is not known."""
        size = self.checkpoint_bytes
        return size if self.saves and self.args.async_save and not isinstance(size, Unknown) else 0

    @property
    def seconds_per_step(self) -> float | Unknown:
        """With loading: added where this process loads, else only where the workers are slower than the model."""
        time = self.time
        if isinstance(time, Unknown):
            return time
        computing = time.micro_batch * self.plan.accumulation_steps + time.update
        loading = time.load * self.plan.accumulation_steps
        workers = self.args.dataloader_num_workers
        return max(computing, loading / workers) if workers else computing + loading

    @property
    def seconds(self) -> float | Unknown:
        """Of all steps. Evaluating and saving come on top."""
        each = self.seconds_per_step
        return each if isinstance(each, Unknown) else each * self.plan.max_steps

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; None where something is not known, and the reason under `unknown`."""
        from kunren.planning.text import plain_values

        return plain_values(self)

    def __str__(self) -> str:
        from kunren.planning.text import table

        return table(self)


def forecast(trainer: Trainer, largest: Any = None) -> Forecast:
    """What `trainer.train()` would do from its beginning. An error is one that it would raise.

    `largest`: a batch to measure memory with, if it is larger than those of the first epoch.
    """
    args = trainer.args
    with undone(trainer):
        check_training(trainer)
        trainer.prepare_loss_scale()
        loader = trainer.get_train_dataloader()
        plan = make_plan(
            trainer.args, batches_per_epoch=batches_in(loader), num_examples=examples_in(loader), start=Cursor()
        )
        start_state(trainer, plan)
        reading = read_some(trainer, loader)
        if largest is not None and isinstance(reading, Reading):
            reading = reading.with_batch(trainer, largest)
        weights, device = _weights_of(trainer.model), trainer.engine.device
        free = _free_on(device)
        step, curve = _step_and_curve(trainer, plan, reading)
        state, training_sets = trainer.state, _training_sets(loader)
    found = Forecast(
        args=args,
        plan=plan,
        samples=_samples(args, plan),
        tokens=_tokens(trainer, plan, reading),
        curve=curve,
        schedule=_schedule_name(args, None if trainer._made_scheduler else trainer.lr_scheduler),
        model_name=type(trainer.model).__name__,
        device=str(device),
        weights=weights,
        step=step,
        largest_batch=reading.largest.form if isinstance(reading, Reading) else "",
        kept=Unknown(""),
        free_device_bytes=free,
        free_disk_bytes=free_bytes(trainer.run_folder()),
        output_dir=str(trainer.run_folder()),
        training_sets=training_sets,
    )
    return _completed(found, state)


def forecast_of_arguments(args: Any, num_examples: int | None) -> Forecast:
    """What arguments tell without a model and data, for a data set of so many rows."""
    from kunren.base.state import TrainerState

    batches = None
    if args.batching == "token_budget" and args.max_steps <= 0:
        raise ValueError(
            "How many batches batching='token_budget' makes depends on the lengths of the rows: give data."
        )
    if num_examples is not None and args.batching != "token_budget":
        size = rows_together(args)
        batches = num_examples // size if args.dataloader_drop_last else -(-num_examples // size)
    plan = make_plan(args, batches_per_epoch=batches, num_examples=num_examples, start=Cursor())
    state = TrainerState()
    state.compute_steps(args, plan.max_steps)
    found = Forecast(
        args=args,
        plan=plan,
        samples=_samples(args, plan),
        tokens=Unknown("there is no data"),
        curve=_curve_of_arguments(args, plan),
        schedule=_schedule_name(args, None),
        model_name="a model",
        device=str(args.device),
        weights=NO_MODEL,
        step=NO_MODEL,
        largest_batch="",
        kept=Unknown(""),
        free_device_bytes=_free_on(args.device),
        free_disk_bytes=free_bytes(Path(args.output_dir)),
        output_dir=str(args.output_dir),
    )
    return _completed(found, state)


def _training_sets(loader: Any) -> dict[str, TrainingSet]:
    """Empty for a single one."""
    mixture, sampler = getattr(loader, "dataset", None), getattr(loader, "batch_sampler", None)
    if not isinstance(mixture, Mixture):
        return {}
    batches = sampler.allotted(0)[0] if isinstance(sampler, MixtureBatches) else [None] * len(mixture.names)
    sizes = zip(mixture.names, mixture.sources, batches, strict=True)
    return {name: TrainingSet(len(source), count) for name, source, count in sizes}


def _batches_of_run(plan: Plan) -> float:
    """Micro-batches of this process; the last window of an epoch may have fewer than the others."""
    if plan.batches_per_epoch is None or plan.steps_per_epoch is None:
        return plan.max_steps * plan.accumulation_steps
    return plan.max_steps / plan.steps_per_epoch * plan.batches_per_epoch


def _samples(args: Any, plan: Plan) -> int | Unknown:
    batches = _batches_of_run(plan)
    if args.batching == "token_budget" and not (plan.num_examples and plan.batches_per_epoch):
        return Unknown("with token_budget a batch has as many rows as fit")
    if not plan.num_examples or not plan.batches_per_epoch or plan.drop_last:
        return round(batches * plan.train_batch_size)
    return round(batches * plan.num_examples / plan.batches_per_epoch)


def _tokens(trainer: Trainer, plan: Plan, reading: Reading | Unknown) -> Tokens | Unknown:
    if isinstance(reading, Unknown):
        return reading
    return count_tokens(reading, _batches_of_run(plan), plan.batches_per_epoch, trainer.main_input_name)


def _completed(found: Forecast, state: Any) -> Forecast:
    """What follows from the rest: the checkpoints, by the clock too, and warnings."""
    from kunren.planning.problems import warnings_about

    seconds = found.seconds
    kept = checkpoints_kept(found.args, found.plan, state, None if isinstance(seconds, Unknown) else seconds)
    found = dataclasses.replace(found, kept=kept)
    return dataclasses.replace(found, warnings=warnings_about(found))


def _step_and_curve(
    trainer: Trainer, plan: Plan, reading: Reading | Unknown
) -> tuple[MeasuredStep | Unknown, RateCurve | Unknown]:
    """Both need the optimizer, which is made for a copy of the model."""
    missing = missing_host_memory(trainer)
    if trainer.args.world_size > 1:
        missing = Unknown("a step of several processes is not measured")
    elif trainer.engine.spread_by is not None:
        missing = Unknown("a step of DeepSpeed is not measured")
    if missing is not None:
        return missing, _curve_of_arguments(trainer.args, plan)
    try:
        with copied_model(trainer):
            step = measure_step(trainer, plan, reading if isinstance(reading, Reading) else None)
            curve: RateCurve | Unknown = Unknown("the optimizer could not be made")
            if trainer.lr_scheduler is not None:
                curve = rates_of(trainer.lr_scheduler, plan.max_steps, plan.warmup_steps)
            return step, curve
    except CannotBeCopied as problem:
        return Unknown(str(problem)), _curve_of_arguments(trainer.args, plan)


def _curve_of_arguments(args: Any, plan: Plan) -> RateCurve | Unknown:
    optimizer = SGD([torch.zeros(1)], lr=args.learning_rate)
    scheduler = get_scheduler(
        args.lr_scheduler_type, optimizer, plan.warmup_steps, plan.max_steps, args.lr_scheduler_kwargs
    )
    return rates_of(scheduler, plan.max_steps, plan.warmup_steps)


def _schedule_name(args: Any, given: Any) -> str:
    return str(args.lr_scheduler_type) if given is None else type(given).__name__


def _weights_of(model: torch.nn.Module) -> Weights:
    parameters = list(model.parameters())
    return Weights(
        count=sum(parameter.numel() for parameter in parameters),
        trained=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        parameter_bytes=bytes_of(parameters),
        buffer_bytes=bytes_of(model.buffers()),
    )


def _free_on(device: torch.device) -> int | None:
    """What the process can still have, what it has reserved included; None where the device does not tell."""
    if device.type == "cpu":
        return free_host_bytes()
    module: Any = getattr(torch, device.type, None)
    if not hasattr(module, "mem_get_info"):
        return None
    reserved = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0] + reserved)
