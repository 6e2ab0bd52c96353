"""`report_to`: names of trackers, what each needs installed, and the callbacks that a trainer gets for them."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from typing import Any

from kunren.base.names import did_you_mean
from kunren.base.registry import resolve
from kunren.trackers.local_log import LocalLogCallback
from kunren.trackers.run_events import RunEventsCallback

logger = logging.getLogger(__name__)

CALLBACKS = {
    "clearml": "kunren.trackers.clearml:ClearMLCallback",
    "codecarbon": "kunren.trackers.codecarbon:CodeCarbonCallback",
    "comet_ml": "kunren.trackers.comet:CometCallback",
    "dvclive": "kunren.trackers.dvclive:DVCLiveCallback",
    "mlflow": "kunren.trackers.mlflow:MLflowCallback",
    "neptune": "kunren.trackers.neptune:NeptuneCallback",
    "swanlab": "kunren.trackers.swanlab:SwanLabCallback",
    "tensorboard": "kunren.trackers.tensorboard:TensorBoardCallback",
    "trackio": "kunren.trackers.trackio:TrackioCallback",
    "wandb": "kunren.trackers.wandb:WandbCallback",
}
_MODULES = {"tensorboard": ("tensorboard", "tensorboardX")}  # any of them; the others' are called like the tracker

# Bound to a server, which reads what another tracker, or the output folder, has.
ELSEWHERE = {
    "azure_ml": "Azure ML reads MLflow: `pip install mlflow azureml-mlflow`, report_to='mlflow' (on Azure's machines "
    "the address is set; elsewhere set MLFLOW_TRACKING_URI to the workspace's)",
    "dagshub": "DagsHub reads MLflow: `pip install mlflow dagshub`, call dagshub.init(...) before training, which sets "
    "the address, and use report_to='mlflow'",
    "flyte": "a Flyte task returns files: return the output folder, which has metrics.jsonl and the checkpoints, from "
    "your task (`pip install flytekit`)",
    "kubeflow": "Kubeflow reads what a container prints or writes: metrics.jsonl in the output folder is one JSON "
    "object a line; mount that folder, or name the file in the metrics collector",
}


checks_elsewhere: list[Callable[[str], bool]] = []  # of transformers, where its names give kunren's


def is_installed(name: str) -> bool:
    """Whether the package of a tracker is there, and nobody has said that it is not; imports nothing."""
    modules = _MODULES.get(name, (name,))
    is_there = any(module in sys.modules or importlib.util.find_spec(module) is not None for module in modules)
    return is_there and all(check(name) for check in checks_elsewhere)


def tracker_names(report_to: Iterable[str], source: str = "report_to=") -> list[str]:
    """The trackers that `report_to` asks for, with "all" resolved to those that are installed.

    ValueError for a name that is none; ImportError, which says what to install, for one whose package is missing.
    """
    found: list[str] = []
    for name in report_to:
        if name == "all":
            found += [known for known in CALLBACKS if is_installed(known)]
        elif name in ELSEWHERE:
            logger.warning("report_to=%r: nothing is sent there by kunren itself. %s.", name, ELSEWHERE[name])
        elif name not in CALLBACKS:
            known = (*CALLBACKS, *ELSEWHERE, "all", "none")
            raise ValueError(
                f"{source}{name!r} is no tracker: choose from {', '.join(known)}.{did_you_mean(name, known)}"
            )
        elif not is_installed(name):
            raise ImportError(
                f"{source}{name!r} needs a package that is not installed: run `pip install {name}`, or leave the name "
                "out."
            )
        else:
            found.append(name)
    return list(dict.fromkeys(found))


def reporters(args: Any, callbacks: Iterable[Any]) -> list[Any]:
    """The local log and the trackers of `args.report_to`, but those that are among the given callbacks already."""
    kinds: list[Any] = [resolve(CALLBACKS[name]) for name in tracker_names(args.report_to)]
    given = [callback if isinstance(callback, type) else type(callback) for callback in callbacks]
    missing = [kind() for kind in kinds if not any(issubclass(one, kind) for one in given)]
    return [LocalLogCallback(), RunEventsCallback(), *missing]
