"""Callbacks: the hooks of a run, their dispatch, the default policy, and a catalogue of ready-made ones."""

from kunren.callbacks.callback import HOOKS, ExportableState, TrainerCallback
from kunren.callbacks.early_stopping import EarlyStoppingCallback
from kunren.callbacks.flow import DefaultFlowCallback
from kunren.callbacks.handler import CallbackHandler
from kunren.callbacks.printer import PrinterCallback
from kunren.callbacks.progress import ProgressCallback
from kunren.callbacks.states import collect_states, restore_states

__all__ = [
    "HOOKS",
    "CallbackHandler",
    "DefaultFlowCallback",
    "EarlyStoppingCallback",
    "ExportableState",
    "PrinterCallback",
    "ProgressCallback",
    "TrainerCallback",
    "collect_states",
    "restore_states",
]
