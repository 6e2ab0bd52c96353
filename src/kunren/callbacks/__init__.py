"""Callbacks: the hooks of a run, their dispatch, the default policy, and a catalogue of ready-made ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kunren.base.registry import on_demand
from kunren.callbacks.callback import TrainerCallback
from kunren.callbacks.flow import DefaultFlowCallback
from kunren.callbacks.handler import CallbackHandler

# The ready-made ones, imported when they are asked for.
_HOMES = {"EarlyStoppingCallback": "early_stopping", "PrinterCallback": "printer", "ProgressCallback": "progress"}

__all__ = ["CallbackHandler", "DefaultFlowCallback", "TrainerCallback", *_HOMES]

if TYPE_CHECKING:
    from kunren.callbacks.early_stopping import EarlyStoppingCallback as EarlyStoppingCallback
    from kunren.callbacks.printer import PrinterCallback as PrinterCallback
    from kunren.callbacks.progress import ProgressCallback as ProgressCallback

__getattr__ = on_demand(__name__, _HOMES)
