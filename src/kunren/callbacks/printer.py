"""Print what is logged."""

from __future__ import annotations

from typing import Any

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback


class PrinterCallback(TrainerCallback):
    """Prints each log entry as a dict; for runs without a progress bar."""

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if state.is_local_process_zero and logs is not None:
            shown = {name: value for name, value in logs.items() if name != "total_flos"}
            print({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in shown.items()})
