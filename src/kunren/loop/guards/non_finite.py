"""Gradients that are not finite: the update is dropped, and what is done then is the user's choice.

"skip" goes on with the next batch; "rollback" goes back to the last good weights and moments before that; "raise" ends
the run, as any error does: with a checkpoint where checkpoints are saved. Several in a row end it in any case, with the
step, the batches and the first module whose output was not finite.

The gradients are looked at by their norm, which the loop has anyway. Reading it costs a wait on a device other than the
CPU; with a fused optimizer under "skip" nothing waits: the kernel itself drops the update, and the count is read with
the log.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any, final

import torch
from torch import nn

from kunren.base.nested import batch_size_of
from kunren.base.random_state import preserved
from kunren.loop.stage import IN_WINDOW

logger = logging.getLogger(__name__)

_ROWS_NAMED = 32


class NonFiniteError(ArithmeticError):
    """The gradients of a run are not finite; the weights are those before the update."""


@final
class NonFiniteGuard:
    """Stands between clipping and the optimizer's step."""

    def __init__(self, policy: str, limit: int, keep_every: int) -> None:
        self.policy, self.limit, self.keep_every = policy, limit, keep_every
        self.dropped = 0  # updates of this run
        self._in_a_row = 0
        self._kept: _LastGood | None = None
        self._buffers = _BuffersBefore()
        self._on_device: torch.Tensor | None = None  # updates dropped by the kernel: (since the last log, in a row)

    def begin(self, run: Any) -> None:
        """Before the forward passes of a step."""
        self._buffers.keep(run.model)

    def step(self, run: Any, do: Any, window: Any) -> bool:
        """`engine.step`, unless the gradients are not finite; whether the schedule moves on."""
        norm = run.gradient_norm if run.gradient_norm is not None else run.meter.last_loss
        if self.policy == "skip" and self._can_leave_it_to_the_kernel(run, norm):
            return self._step_on_device(run, norm)
        scaled, loss = run.engine.scaler is not None, run.meter.last_loss
        if norm is None or _is_finite(norm) or (scaled and (loss is None or _is_finite(loss))):
            # An overflow under fp16 is the scaler's: it drops the update, and lowers the scale. A loss that is not
            # finite, which is not scaled, is no such thing, and no scale cures it.
            self._in_a_row = 0
            due = self._kept is None or run.state.global_step % self.keep_every == 0  # a resumed run keeps its first
            if self.policy == "rollback" and due:
                self._kept = self._kept or _LastGood()
                self._kept.keep(run)
            stepped = bool(run.engine.step(run.optimizer))
            if not stepped:
                self._buffers.restore()
            return stepped
        self.dropped += 1
        self._in_a_row += 1
        if scaled:
            run.engine.step(run.optimizer)  # drops it as well; the scaler has to know that the step is over
        self._buffers.restore()
        run.stage = IN_WINDOW  # there is no update: the weights are whole, should a callback fail
        run.fire("on_nonfinite", action=self.policy, grad_norm=float(norm), step=run.state.global_step + 1)
        run.optimizer._opt_called = True  # or torch's schedules warn, of a first step that was dropped
        step = run.state.global_step + 1
        if self.policy == "raise" or self._in_a_row >= self.limit:
            self._stop(run, do, window)
        logger.warning(
            "The gradients of step %d are not finite (norm %s): its update is dropped.%s",
            step,
            float(norm),
            self._kept.restore(run) if self.policy == "rollback" and self._kept is not None else "",
        )
        return not scaled

    def _stop(self, run: Any, do: Any, window: Any) -> None:
        run.engine.zero_gradients()
        run.stage = IN_WINDOW  # there is no update: the weights are whole
        reason = describe(run, do, window)
        self._buffers.restore()  # it has computed the batch once more
        many = f"{self._in_a_row} steps in a row" if self._in_a_row > 1 else f"step {run.state.global_step + 1}"
        raise NonFiniteError(
            f"The gradients of {many} are not finite. {reason} The weights are those after step "
            f"{run.state.global_step}. A lower learning_rate, max_grad_norm or bf16=True in place of fp16=True are the "
            f"usual remedies; {self._other_ways()}."
        )

    def _other_ways(self) -> str:
        if self.policy == "raise":
            return "nonfinite='skip' or 'rollback' go on without such batches"
        return f"nonfinite_limit, now {self.limit}, says how many in a row may be dropped"

    # ---- on a device, without waiting for it

    def _can_leave_it_to_the_kernel(self, run: Any, norm: Any) -> bool:
        on_device = isinstance(norm, torch.Tensor) and norm.device.type != "cpu"
        return on_device and bool(run.optimizer.defaults.get("fused")) and run.engine.scaler is None

    def _step_on_device(self, run: Any, norm: torch.Tensor) -> bool:
        if self._on_device is None:
            self._on_device = torch.zeros(2, device=norm.device)
        bad = (~torch.isfinite(norm)).float()
        self._on_device[0] += bad
        self._on_device[1] = (self._on_device[1] + 1) * bad
        self._buffers.restore(bad > 0)
        run.optimizer.found_inf = bad  # fused kernels leave weights and moments alone where this is 1
        try:
            return bool(run.engine.step(run.optimizer))
        finally:
            del run.optimizer.found_inf

    def read(self, run: Any) -> None:
        """When a log is due: how many updates a device has dropped since the last one."""
        if self._on_device is None:
            return
        dropped, in_a_row = (int(value) for value in self._on_device.tolist())
        self._on_device[0] = 0
        self.dropped += dropped
        if dropped:
            run.fire("on_nonfinite", action="skip", dropped=dropped, step=run.state.global_step)
            logger.warning("%d updates up to step %d were dropped: not finite.", dropped, run.state.global_step)
        if in_a_row >= self.limit:
            raise NonFiniteError(
                f"The gradients of {in_a_row} steps up to step {run.state.global_step} are not finite. The weights are "
                "those before them. nonfinite='raise' tells the batch and the module."
            )


def _is_finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


@final
class _BuffersBefore:
    """What a forward pass changes: running statistics of norms, say, that a batch of infinite numbers spoils for good.

    Those that are saved with the model; the others are constants, some of them large.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[nn.Module, str, torch.Tensor, torch.Tensor]] = []

    def keep(self, model: nn.Module) -> None:
        self._kept = [
            (module, name, buffer, buffer.detach().clone())
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]

    def restore(self, where: torch.Tensor | None = None) -> None:
        """Put them back; with `where`, a truth value on the device, only if that is so, and nothing waits for it."""
        for module, name, buffer, value in self._kept:
            now = module._buffers[name]
            if where is not None and now is not None:
                value = torch.where(where, value, now)
            buffer.detach().copy_(value)
            module._buffers[name] = buffer  # some are assigned anew


@final
class _LastGood:
    """Weights, buffers and moments in memory, as they were before an update whose gradients were finite."""

    def __init__(self) -> None:
        self.step = 0
        self._copies: list[torch.Tensor] = []
        self._optimizer: dict[Any, dict[str, Any]] = {}
        self._groups: list[dict[str, Any]] = []

    def keep(self, run: Any) -> None:
        self.step = run.state.global_step
        tensors = _tensors_of(run)
        if len(self._copies) != len(tensors):
            self._copies = [torch.empty_like(tensor) for tensor in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        self._optimizer = {parameter: _copied(state) for parameter, state in run.optimizer.state.items()}
        # Some optimizers count in their groups: what is neither an option nor the schedule's is state.
        options = {*inspect.signature(type(run.optimizer)).parameters, "params", "lr", "initial_lr", "weight_decay"}
        self._groups = [
            {name: _copied(value) for name, value in group.items() if name not in options}
            for group in run.optimizer.param_groups
        ]

    def restore(self, run: Any) -> str:
        """Put them back; says so."""
        for copy, tensor in zip(self._copies, _tensors_of(run), strict=True):
            tensor.copy_(copy)
        for parameter in list(run.optimizer.state):
            if parameter in self._optimizer:
                run.optimizer.state[parameter] = _copied(self._optimizer[parameter])
            else:
                del run.optimizer.state[parameter]
        for group, values in zip(run.optimizer.param_groups, self._groups, strict=False):
            group.update(_copied(values))
        if hasattr(run.optimizer, "share_state"):
            run.optimizer.share_state()  # with the optimizers that it runs
        return f" The weights go back to those of step {self.step}."


def _tensors_of(run: Any) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in (*run.model.parameters(), *run.model.buffers())]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {key: _copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def describe(run: Any, do: Any, window: Any) -> str:
    """Where it began: the batches, their rows, and the first module with an output that is not finite."""
    first = window.batches_done - len(window.batches)
    rows = run.reader.rows_of(run.cursor.epoch, first, window.batches_done)
    named = ", ".join(map(str, rows[:_ROWS_NAMED])) + (", ..." if len(rows) > _ROWS_NAMED else "")
    where = f"batches {first + 1} to {window.batches_done}" if len(window.batches) > 1 else f"batch {first + 1}"
    where += f" of epoch {run.cursor.epoch + 1}" + (f", examples {named}" if rows else "")
    parameters = run.engine.bare(run.model).named_parameters()
    weights = [name for name, parameter in parameters if not bool(torch.isfinite(parameter).all())]
    together = run.engine.spread_by is not None  # each forward pass takes all processes: none may know enough before
    if together:
        weights = sum(run.engine.gather_objects(weights), [])
    if weights:
        return f"The weight {weights[0]} was not finite before {where}."
    found: str | None = None
    for batch in window.batches:
        if together or found is None:
            module = first_module_not_finite(run, do, batch)
            found = found or module
    if found is not None:
        return f"It was in {where}: {found}."
    return f"It was in {where}: every output of a module is finite, so it happens in the loss or in the backward pass."


def first_module_not_finite(run: Any, do: Any, batch: Any) -> str | None:
    """The forward pass of a batch once more; the name of the innermost module first to give what is not finite."""
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and _holds_non_finite(output):
                found.append(
                    f"the first output that is not finite is that of {name or 'the model'} ({type(module).__name__})"
                )

        return hook

    model = run.engine.bare(run.model)
    hooks = [module.register_forward_hook(look(name)) for name, module in model.named_modules()]
    try:
        with preserved(), torch.no_grad(), do.silenced(), do.compute_loss_context_manager():
            do.compute_loss(model, do._prepare_inputs(batch), num_items_in_batch=batch_size_of(batch))
    except Exception:
        logger.debug("The batch could not be computed once more.", exc_info=True)
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


def _holds_non_finite(output: Any) -> bool:
    if isinstance(output, torch.Tensor):
        return output.is_floating_point() and not bool(torch.isfinite(output).all())
    if isinstance(output, dict):
        return any(map(_holds_non_finite, output.values()))
    return isinstance(output, (list, tuple)) and any(map(_holds_non_finite, output))
