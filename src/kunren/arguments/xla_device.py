"""Whether a run is to be on XLA, as on a TPU: the environment says so, by torch_xla's own variable."""

from __future__ import annotations

import importlib.util
import os

import torch

from kunren.base.environment import visible_device_count


def is_asked_for(use_cpu: bool) -> bool:
    """Whether PJRT_DEVICE names a TPU, or the CPU where torch_xla is installed. Imports nothing."""
    asked = "" if use_cpu else os.environ.get("PJRT_DEVICE", "").upper()
    if asked != "CPU":
        return asked == "TPU"
    # torch_xla sets this itself where it is imported and finds no TPU, so it says little: a GPU comes before.
    return visible_device_count(use_cpu) == 0 and importlib.util.find_spec("torch_xla") is not None


def xla_device() -> torch.device:
    """The device of this process; ImportError, with what to install, where there is no torch_xla for this torch."""
    try:
        importlib.import_module("torch_xla")
    except (ImportError, OSError) as error:  # one for another torch cannot be loaded
        raise ImportError(
            f"PJRT_DEVICE={os.environ['PJRT_DEVICE']} asks for XLA, and torch_xla cannot be imported beside torch "
            f"{torch.__version__} ({error}). Install a pair of the same version, such as "
            "`pip install torch==2.9.0 'torch_xla[tpu]==2.9.0'`, or unset PJRT_DEVICE."
        ) from error
    return torch.device("xla")  # without an index: asking for it would start the runtime, for one process
