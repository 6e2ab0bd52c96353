"""Callbacks: the hooks of a run, their dispatch, the default policy, and a catalogue of ready-made ones."""

from kunren.callbacks.callback import TrainerCallback
from kunren.callbacks.early_stopping import EarlyStoppingCallback
from kunren.callbacks.flow import DefaultFlowCallback
from kunren.callbacks.handler import CallbackHandler
from kunren.callbacks.printer import PrinterCallback
from kunren.callbacks.progress import ProgressCallback

__all__ = [
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerCallback",
]
