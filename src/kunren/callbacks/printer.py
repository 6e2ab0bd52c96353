"""Print what is logged."""

from __future__ import annotations

import logging
import sys
from typing import Any

from kunren.base.state import TrainerControl, TrainerState
from kunren.callbacks.callback import TrainerCallback

logger = logging.getLogger(__name__)


class PrinterCallback(TrainerCallback):
    """Prints each log entry as a dict, once a machine, or once in all where `log_on_each_node` is off."""

    _has_failed = False

    def on_log(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        on_each_node = getattr(args, "log_on_each_node", True)
        prints = state.is_local_process_zero if on_each_node else state.is_world_process_zero
        if not prints or logs is None or self._has_failed:
            return
        shown = [(name, value) for name, value in logs.items() if name != "total_flos"]
        try:
            print_line(str({name: f"{value:.4g}" if isinstance(value, float) else value for name, value in shown}))
        except Exception as error:  # a closed pipe is no reason to lose a run
            self._has_failed = True
            logger.warning("Logs cannot be printed (%s: %s); the run goes on.", type(error).__name__, error)


def print_line(text: str) -> None:
    """Print on standard output at once; characters that its encoding lacks are written as escapes."""
    print(encodable(text, sys.stdout), flush=True)


def encodable(text: str, stream: Any) -> str:
    """`text` with the characters that `stream` cannot encode replaced by backslash escapes."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: str) -> str:
    """`text` with line ends and other control characters written as escapes."""
    return text if text.isprintable() else repr(text)[1:-1]
