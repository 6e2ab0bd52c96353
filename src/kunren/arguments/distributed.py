"""Devices, processes, and how the model is spread over them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kunren.arguments import fsdp as fsdp_settings
from kunren.arguments import parallelism
from kunren.arguments.accelerator_config import AcceleratorConfig
from kunren.arguments.checks import at_least, from_json, refuse
from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Distributed(ArgumentGroup):
    use_cpu: bool = explained(False, "Use the CPU even where there is a GPU.")
    average_tokens_across_devices: bool = explained(
        True, "Divide the loss by the tokens of all devices together, so that every token counts the same."
    )
    accelerator_config: dict | str | None = explained(  # type: ignore[type-arg]
        None, "Settings for Accelerate: a dict, JSON text, or the path of a JSON file."
    )
    parallelism_config: Any | None = explained(
        None, "Accelerate's ParallelismConfig, or a dict with its sizes: tensor parallelism, FSDP in groups."
    )
    ddp_find_unused_parameters: bool | None = explained(
        None, "DDP: look for parameters that got no gradient; costs time, and is needed where a step leaves some out."
    )
    ddp_bucket_cap_mb: int | None = explained(
        None, "DDP: size of a bucket of gradients, in megabytes; None: torch's default."
    )
    ddp_broadcast_buffers: bool | None = explained(None, "DDP: send buffers to all processes before the forward pass.")
    ddp_static_graph: bool | None = explained(None, "DDP: rely on the graph being the same in every step.")
    ddp_backend: str | None = explained(
        None, "The backend of torch.distributed, such as 'nccl' or 'gloo'; the device's own if not given."
    )
    ddp_timeout: int = explained(1800, "Seconds that a process waits for the others before it gives up.")
    watchdog_minutes: float | None = explained(
        None, "After so many minutes without progress, write what every thread is doing; the run goes on (kunren only)."
    )
    fsdp: str | None = explained(
        None, "True switches FSDP on; the older strings, 'full_shard auto_wrap', work as well."
    )
    fsdp_config: dict[str, Any] | str | None = explained(
        None, "FSDP's settings: a dict, JSON text, or the path of a JSON file."
    )
    deepspeed: dict | str | None = explained(  # type: ignore[type-arg]
        None, "DeepSpeed's configuration: a dict, JSON text, or the path of a JSON file."
    )
    local_rank: int = explained(
        -1, "Accepted for old launchers; the launcher's environment says which process this is."
    )

    def normalise(self) -> None:
        spread: Any = AcceleratorConfig.of(self.accelerator_config)
        if getattr(spread, "use_configured_state", False):  # says how to begin, and is no setting of the run
            spread = dataclasses.replace(spread, use_configured_state=False)
        self.accelerator_config = spread
        given: Any = self.fsdp
        if fsdp_settings.is_enabled(given):
            self.fsdp_config = fsdp_settings.settings_from(given, self.fsdp_config)
            given = True
        else:
            self.fsdp_config = fsdp_settings.read(self.fsdp_config)
            given = None
        self.fsdp = given
        if isinstance(self.deepspeed, str) and self.deepspeed.lstrip().startswith("{"):
            self.deepspeed = from_json("deepspeed", self.deepspeed)

    def check(self) -> None:
        if self.deepspeed and self.fsdp:
            raise ValueError(
                "deepspeed and fsdp both spread the model over processes: keep one, set the other to None."
            )
        parallelism.check(self)
        at_least(self, "ddp_timeout", 1, "give a number of seconds.")
        if self.watchdog_minutes is not None and not self.watchdog_minutes > 0:
            raise refuse("watchdog_minutes", self.watchdog_minutes, "give a number of minutes above 0, or None.")
        at_least(self, "ddp_bucket_cap_mb", 1, "give a number of megabytes, or None for torch's default.")
