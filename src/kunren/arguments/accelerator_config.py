"""What `accelerator_config` holds: how several processes divide the data, and settings of Accelerate's."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import from_json, refuse
from kunren.base.names import did_you_mean


@dataclass
class AcceleratorConfig:
    """Each has transformers' name and default.

    - `split_batches`: a batch of `per_device_train_batch_size` is divided among the processes; else each has one.
    - `dispatch_batches`: True: the first process reads the training data for all. Else each reads its own part, of
      streams too.
    - `even_batches`: either way all processes have as many batches, and no row is repeated to that end.
    - `use_seedable_sampler`: either way the order of an epoch is a function of the data seed and the epoch.
    """

    split_batches: bool = False
    dispatch_batches: bool | None = None
    even_batches: bool = True
    use_seedable_sampler: bool = True
    non_blocking: bool = False
    gradient_accumulation_kwargs: dict[str, Any] | None = None
    use_configured_state: bool = False

    @classmethod
    def of(cls, value: Any) -> AcceleratorConfig:
        """From nothing, a dict, JSON text, the path of a JSON file, or an object with these attributes."""
        if value is None or isinstance(value, cls):
            return value or cls()
        if hasattr(value, "to_dict") and not isinstance(value, type):
            value = value.to_dict()
        settings = from_json("accelerator_config", value, read_path=True)
        if not isinstance(settings, dict):
            raise refuse("accelerator_config", value, "give a dict, JSON text, or the path of a JSON file.")
        known = [item.name for item in dataclasses.fields(cls)]
        for name in settings:
            if name not in known:
                raise TypeError(
                    f"accelerator_config has no setting {name!r}: choose from {', '.join(known)}."
                    f"{did_you_mean(str(name), known)}"
                )
        return cls(**settings)

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> AcceleratorConfig:
        return cls.of(os.fspath(json_file))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def pop(self, key: str, default: Any = None) -> Any:
        """Take a setting out, as from a dict: the attribute is gone afterwards."""
        return self.__dict__.pop(key, default)
