"""A forecast as a table for people, and as plain values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kunren.planning.measured_step import MeasuredStep
from kunren.planning.rate_curve import RateCurve, can_show_blocks
from kunren.planning.reading import Tokens
from kunren.planning.units import human_rate, human_size, human_time
from kunren.planning.unknown import Unknown

if TYPE_CHECKING:
    from kunren.planning.forecast import Forecast

Row = tuple[str, str]


def table(found: Forecast, ascii_only: bool | None = None) -> str:
    """Sections of two columns, the picture of the learning rate, and warnings. `ascii_only` None: as the output can."""
    ascii_only = not can_show_blocks() if ascii_only is None else ascii_only
    sections = {
        "run": list(_run(found)),
        "data": list(_data(found)),
        f"memory on {found.device}": list(_memory(found)),
        "disk": list(_disk(found)),
        "time": list(_time(found)),
        "learning rate": list(_schedule(found)),
    }
    width = max(len(name) for rows in sections.values() for name, _ in rows) + 2
    lines = [f"What training {found.model_name} into {found.args.output_dir} would take. Nothing was trained."]
    for title, rows in sections.items():
        lines += ["", title, *(f"  {name:<{width}}{value}" for name, value in rows)]
    if isinstance(found.curve, RateCurve):
        lines += ["", *(f"  {line}" for line in found.curve.picture(ascii_only).splitlines())]
    if found.warnings:
        lines += ["", "warnings", *(f"  - {warning}" for warning in found.warnings)]
    return "\n".join(lines)


def _run(found: Forecast) -> Iterator[Row]:
    plan, args = found.plan, found.args
    passes = "" if plan.steps_per_epoch is None else f", {plan.steps_per_epoch:,} in each pass over the data"
    yield "steps", f"{plan.max_steps:,}{passes}"
    yield "epochs", _epochs(found)
    rows = f"{args.per_device_train_batch_size:,} rows on a device"
    if args.batching == "token_budget":
        rows = f"at most {args.token_budget:,} tokens on a device"
    yield "micro-batch", rows
    devices = max(1, args.n_gpu) * args.world_size
    factors = f"{args.per_device_train_batch_size:,} x {_many(devices, 'device')}"
    factors += f" x {_many(plan.accumulation_steps, 'micro-batch', 'micro-batches')}"
    effective = found.effective_batch
    yield "effective batch", str(effective) if isinstance(effective, Unknown) else f"{effective:,} rows = {factors}"
    yield "warm-up", _many(plan.warmup_steps, "step")


def _epochs(found: Forecast) -> str:
    plan = found.plan
    if plan.steps_per_epoch is None:
        return str(Unknown("the data has no length"))
    epochs = plan.max_steps / plan.steps_per_epoch
    return f"{epochs:,.4g}" if found.args.max_steps > 0 else f"{found.args.num_train_epochs:,.4g}"


def _data(found: Forecast) -> Iterator[Row]:
    plan, tokens = found.plan, found.tokens
    yield "examples", _examples(found)
    for name, one in found.training_sets.items():
        batches = "" if one.batches is None else f", {_many(one.batches, 'batch', 'batches')} in the first pass"
        yield "", f"{one.examples:,} of {name!r}{batches}"
    if plan.batches_per_epoch is not None:
        yield "batches", f"{plan.batches_per_epoch:,} in each pass"
    yield "samples", _number(found.samples, "in the whole run")
    if isinstance(tokens, Unknown):
        yield "tokens", str(tokens)
        return
    about = "" if tokens.is_exact else "about "
    source = "" if tokens.is_exact else f" (from {_many(tokens.read_batches, 'batch', 'batches')})"
    yield "tokens", f"{about}{_rounded(tokens.padded, tokens)} in the whole run, padding included{source}"
    yield "useful", f"{about}{_rounded(tokens.real, tokens)}"
    yield "padding", f"{tokens.padding_share:.1%}"


def _examples(found: Forecast) -> str:
    count, in_pass = found.num_examples, found.plan.num_examples
    if count is None:
        return "not known: the data has no length"
    sets = f" in {_many(len(found.training_sets), 'set')}" if found.training_sets else ""
    return f"{count:,}{sets}" + (f"; a pass reads about {in_pass:,} rows, by the weights" if count != in_pass else "")


def _rounded(count: int, tokens: Tokens) -> str:
    """No more digits than are meant."""
    return f"{count:,}" if tokens.is_exact else f"{float(f'{count:.3g}'):,.0f}"


def _memory(found: Forecast) -> Iterator[Row]:
    weights, step, memory = found.weights, found.step, found.memory
    if isinstance(weights, Unknown):
        yield "weights", str(weights)
    else:
        trained = "all" if weights.trained == weights.count else f"{weights.trained:,}"
        buffers = f", and {human_size(weights.buffer_bytes)} of buffers" if weights.buffer_bytes else ""
        size = human_size(weights.parameter_bytes)
        yield "weights", f"{size}: {weights.count:,} numbers, of which {trained} are trained{buffers}"
    if not isinstance(memory, Unknown):
        yield "gradients", human_size(memory.gradients)
    name = found.args.optim if not isinstance(step, MeasuredStep) else step.optimizer_name
    yield "optimizer", _size(step.optimizer_bytes if isinstance(step, MeasuredStep) else step, f" ({name})")
    if isinstance(memory, Unknown):
        yield "a step", str(memory)
    else:
        yield "activations", f"{human_size(memory.activations)}, kept from forward to backward of {found.largest_batch}"
    if found.args.nonfinite == "rollback":
        yield "rollback", "weights and optimizer once more"
    free = "" if found.free_device_bytes is None else f"; {human_size(found.free_device_bytes)} are free now"
    peak = found.peak_bytes
    if not isinstance(peak, Unknown):
        yield "most at once", f"{human_size(peak)}{free}"
    elif free:
        yield "free", f"{human_size(found.free_device_bytes or 0)}"
    if found.snapshot_bytes:
        yield "while saving", f"{human_size(found.snapshot_bytes)} of host memory for the copy"


def _disk(found: Forecast) -> Iterator[Row]:
    kept = found.kept
    yield "a checkpoint", _size(found.checkpoint_bytes)
    if isinstance(kept, Unknown):
        yield "checkpoints", str(kept)
        return
    if kept.saved == 0:
        yield "checkpoints", "none: nothing is saved"
        return
    yield "checkpoints", f"{kept.saved:,} saved, at most {kept.at_once:,} there at once: {kept.why}"
    free = "" if found.free_disk_bytes is None else f"; {human_size(found.free_disk_bytes)} are free now"
    yield "at most", f"{_size(found.disk_bytes)}{free}"


def _time(found: Forecast) -> Iterator[Row]:
    time, each, all_steps = found.time, found.seconds_per_step, found.seconds
    if isinstance(time, Unknown) or isinstance(each, Unknown) or isinstance(all_steps, Unknown):
        yield "a step", str(time)
        return
    timed = f"median of {time.times}"
    loading = f"{human_time(time.load)} loading"
    yield "a micro-batch", f"{human_time(time.micro_batch)} forward and backward, {loading} ({timed})"
    yield "the update", human_time(time.update)
    yield "a step", human_time(each)
    also = {"evaluating": found.args.eval_strategy != "no", "saving": found.saves}
    further = [name for name, is_on in also.items() if is_on]
    on_top = f"; {' and '.join(further)} {'come' if len(further) > 1 else 'comes'} on top" if further else ""
    yield "all steps", f"about {human_time(all_steps)}{on_top}"


def _schedule(found: Forecast) -> Iterator[Row]:
    plan, curve, args = found.plan, found.curve, found.args
    options = ", ".join(f"{name}={value!r}" for name, value in (args.lr_scheduler_kwargs or {}).items())
    name = f"{found.schedule} ({options})" if options else found.schedule
    yield "schedule", name if not plan.warmup_steps else f"{name}, warm-up over {_many(plan.warmup_steps, 'step')}"
    if isinstance(curve, Unknown):
        yield "rate", f"{human_rate(args.learning_rate)} at first; after that {curve}"
        return
    step, highest = curve.highest
    if min(curve.rates) == highest:
        yield "rate", f"{human_rate(highest)} at every step"
        return
    top = f", {human_rate(highest)} at step {step:,}" if 1 < step < plan.max_steps else ""
    yield "rate", f"{human_rate(curve.rates[0])} at first{top}, {human_rate(curve.rates[-1])} at the last"


def _size(size: int | Unknown, further: str = "") -> str:
    return str(size) if isinstance(size, Unknown) else human_size(size) + further


def _number(number: int | Unknown, further: str) -> str:
    return str(number) if isinstance(number, Unknown) else f"{number:,} {further}"


def _many(count: int, one: str, several: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"


def plain_values(found: Forecast) -> dict[str, Any]:
    """Flat: the numbers of the table under names with units; None for what is not known, and why under `unknown`."""
    plan, step = found.plan, found.step
    values: dict[str, Any] = {
        "model": found.model_name,
        "output_dir": found.output_dir,
        "device": found.device,
        "max_steps": plan.max_steps,
        "steps_per_epoch": plan.steps_per_epoch,
        "batches_per_epoch": plan.batches_per_epoch,
        "num_examples": found.num_examples,
        "training_sets": {name: dataclasses.asdict(one) for name, one in found.training_sets.items()},
        "accumulation_steps": plan.accumulation_steps,
        "warmup_steps": plan.warmup_steps,
        "effective_batch": found.effective_batch,
        "samples": found.samples,
        "tokens": found.tokens,
        "weights": found.weights,
        "memory": found.memory,
        "optimizer": step.optimizer_name if isinstance(step, MeasuredStep) else step,
        "optimizer_bytes": step.optimizer_bytes if isinstance(step, MeasuredStep) else step,
        "peak_bytes": found.peak_bytes,
        "snapshot_bytes": found.snapshot_bytes,
        "free_device_bytes": found.free_device_bytes,
        "checkpoint_bytes": found.checkpoint_bytes,
        "checkpoints": found.kept,
        "disk_bytes": found.disk_bytes,
        "free_disk_bytes": found.free_disk_bytes,
        "time": found.time,
        "seconds_per_step": found.seconds_per_step,
        "seconds": found.seconds,
        "schedule": found.schedule,
        "learning_rates": found.curve,
        "warnings": found.warnings,
    }
    unknown = {name: value.why for name, value in values.items() if isinstance(value, Unknown)}
    return {name: None if name in unknown else _plain(value) for name, value in values.items()} | {"unknown": unknown}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value
