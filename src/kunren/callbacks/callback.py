"""What a callback is: hooks that do nothing, and the form in which callbacks keep state in a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kunren.base.state import TrainerControl, TrainerState

if TYPE_CHECKING:
    from typing_extensions import Self  # in typing only from Python 3.11 on


class TrainerCallback:
    """Override the hooks you need: they get the arguments, the run's state and the control flags they may set.

    Every hook also gets the keywords `model`, `processing_class`, `optimizer`, `lr_scheduler`, `train_dataloader` and
    `eval_dataloader`. Returning the control is optional. A hook that nobody overrides is never called.
    """

    def on_init_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """The trainer is built."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Everything is ready for the first step; after a resume, `state` is that of the checkpoint."""

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """The run is over, early or not."""

    def on_epoch_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A pass over the data begins."""

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A pass over the data is over, early or not; flags set here are obeyed at once."""

    def on_step_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An optimizer step begins, before its first micro-batch."""

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Gradients are complete and clipped."""

    def on_optimizer_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Weights are updated; gradients are still there."""

    def on_substep_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A micro-batch that is not the last of its optimizer step is done."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An optimizer step is done and counted; flags set here are obeyed at once."""

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An evaluation is done; its numbers are the keyword `metrics`."""

    def on_predict(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: dict[str, Any], **kwargs: Any
    ) -> Any:
        """A prediction is done."""

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """A checkpoint is written."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Numbers are logged: the keyword `logs`."""

    def on_prediction_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """One batch of an evaluation or prediction is done."""

    def on_push_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """An upload to the hub is about to start."""

    # What follows, transformers does not have.

    def on_checkpoint_loaded(
        self, args: Any, state: TrainerState, control: TrainerControl, checkpoint: Any = None, **kwargs: Any
    ) -> Any:
        """The run goes on from the folder `checkpoint`: weights, optimizer and state are those of it."""

    def on_batch_fetched(
        self, args: Any, state: TrainerState, control: TrainerControl, batch: Any = None, **kwargs: Any
    ) -> Any:
        """A micro-batch is about to be computed: `batch`, as the collator made it."""

    def on_before_backward(
        self, args: Any, state: TrainerState, control: TrainerControl, loss: Any = None, **kwargs: Any
    ) -> Any:
        """`loss` is what gradients are about to be computed of: this micro-batch's share of the step's loss."""

    def on_after_backward(
        self, args: Any, state: TrainerState, control: TrainerControl, loss: Any = None, **kwargs: Any
    ) -> Any:
        """The gradients of a micro-batch are added to those of the step; `loss` is detached."""

    def on_nonfinite(
        self, args: Any, state: TrainerState, control: TrainerControl, action: str = "warn", **kwargs: Any
    ) -> Any:
        """Gradients or loss were not finite; `action` is what becomes of it: "warn", "skip", "rollback" or "raise"."""

    def on_out_of_memory(
        self, args: Any, state: TrainerState, control: TrainerControl, rows: int = 0, **kwargs: Any
    ) -> Any:
        """Memory ran out; from here on `rows` examples at most are computed at once."""

    def on_exception(
        self, args: Any, state: TrainerState, control: TrainerControl, exception: Any = None, **kwargs: Any
    ) -> Any:
        """`exception` ends the run; what was trained is saved already, where checkpoints are saved at all."""


HOOKS = tuple(name for name in vars(TrainerCallback) if name.startswith("on_"))


class ExportableState:
    """Mixin for what a checkpoint should remember: implement `state`, and a resume calls `load_state` with it."""

    def state(self) -> dict[str, dict[str, Any]]:
        """{"args": what the constructor takes, "attributes": what changes during a run}, as JSON can hold it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no `state` method: return {{'args': {{...}}, 'attributes': {{...}}}}."
        )

    def load_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Take over the attributes; constructor arguments stay those of the present run."""
        for name, value in state.get("attributes", {}).items():
            setattr(self, name, value)

    @classmethod
    def from_state(cls, state: dict[str, dict[str, Any]]) -> Self:
        """A new object like the one that `state` was taken from."""
        instance = cls(**state["args"])
        instance.load_state(state)
        return instance
