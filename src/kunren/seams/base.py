"""What every group of seams may rely on: the Trainer's state, one place for each thing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from kunren.arguments import TrainingArguments
from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks import CallbackHandler
from kunren.engine import Backend
from kunren.loop.account import StepAccount
from kunren.loop.reports import Reports
from kunren.losses.weighting import LossScale
from kunren.model.signature import Signature

if TYPE_CHECKING:
    from kunren.loop.run import Run
    from kunren.losses.functions.binding import NamedLoss
    from kunren.losses.functions.label_smoothing import LabelSmoother


class Seams:
    """The attributes of a Trainer. Subclasses read and assign them; nothing hides behind a property."""

    args: TrainingArguments
    hp_search_backend: Any
    model: nn.Module
    model_wrapped: nn.Module
    model_init: Callable[..., nn.Module] | None
    processing_class: Any
    data_collator: Callable[[list[Any]], Any]
    train_dataset: Any
    eval_dataset: Any
    optimizer: Optimizer | None
    lr_scheduler: Any
    optimizer_cls_and_kwargs: tuple[type[Optimizer], dict[str, Any]] | None
    state: TrainerState
    control: TrainerControl
    callback_handler: CallbackHandler
    engine: Backend

    signature: Signature
    label_names: list[str]
    can_return_loss: bool
    shifts_labels: bool
    ignored_label: int | None
    named_loss: NamedLoss | None
    model_accepts_loss_kwargs: bool
    loss_scale: LossScale
    label_smoother: LabelSmoother | None
    main_input_name: str
    compute_loss_func: Callable[..., Any] | None
    compute_metrics: Callable[..., dict[str, Any]] | None
    preprocess_logits_for_metrics: Callable[[Any, Any], Any] | None
    current_gradient_accumulation_steps: int
    window_is_empty: bool
    divides_inputs: bool  # whether an override of `_prepare_context_parallel_inputs` has its say
    is_in_train: bool
    current_flos: float
    _operations_done: float  # by this process, in this training
    _tokens_seen: int  # by this process, padding included; 0 where inputs are no tokens
    account: StepAccount
    reports: Reports
    hears_micro_batches: bool

    _signature_columns: list[str] | None
    _train_batch_size: int
    gather_function: Callable[[Any], Any]

    _output_dir: str
    _globalstep_last_logged: int
    _merged_decay_parameters: int | None  # how many of the optimizer's one group would decay; None: it is not ours
    _trial: Any
    _run: Run | None
    computes_in_half: bool  # whether the model takes care of its precision by itself
    _is_silent: bool  # while something is tried out that callbacks must not hear of
    _made_optimizer: bool  # by kunren, not given
    _made_scheduler: bool
    _ignore_keys_for_eval: list[str] | None

    def fire(self, event: str, **details: Any) -> None:
        """Tell the callbacks of an event."""
        if self._is_silent:
            return
        self.control = self.callback_handler.call_event(event, self.args, self.state, self.control, **details)

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Inside, something is only tried: neither callbacks nor the log hear of it, nor what a subclass counts."""
        from kunren.loop.guards.put_back import put_back

        with put_back(self):
            self._is_silent = True
            yield

    def is_asked_to_stop(self) -> bool:
        """Whether a signal or the clock has asked the training that is going on to stop."""
        requests = self._run.requests if self._run is not None else None
        return requests is not None and requests.is_asked_to_stop

    def log_in_training(self, logs: dict[str, Any], start_time: float | None = None) -> None:
        """`log`, for what the loop has measured since it logged last."""
        if self.account.is_due:
            self.take_account()
        self.log(logs, start_time)
        self._globalstep_last_logged = self.state.global_step

    def run_folder(self) -> Path:
        """Where the checkpoints of this run lie."""
        return Path(self._get_output_dir(self._trial))

    if TYPE_CHECKING:
        # Each of these belongs to one group of seams, or to the Trainer, and is called from another group.
        def log(self, logs: dict[str, Any], start_time: float | None = None) -> None: ...

        def compute_loss_context_manager(self) -> AbstractContextManager[Any]: ...

        def compute_loss(
            self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any: ...

        def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None: ...

        def take_account(self) -> None: ...

        def report(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None: ...

        def store_flos(self) -> None: ...

        def _report_to_hp_search(self, trial: Any, step: int, metrics: dict[str, float]) -> None: ...

        def _push_from_checkpoint(self, checkpoint_folder: str) -> None: ...

        def at_rest(self, keeps_weights: bool = True) -> AbstractContextManager[None]: ...

        def _get_output_dir(self, trial: Any) -> str: ...
