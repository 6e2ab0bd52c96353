"""TrainingArguments: every group joined into one flat dataclass, which users and libraries subclass as such."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from kunren.arguments.best_model import BestModel
from kunren.arguments.builders import Builders
from kunren.arguments.checks import from_json
from kunren.arguments.construction import ArgumentsType
from kunren.arguments.conversion import convert
from kunren.arguments.dataloading import Dataloading
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.groups import GROUPS
from kunren.arguments.hub import Hub
from kunren.arguments.legacy import LEGACY_NAMES, RENAMED
from kunren.arguments.model_execution import TWINS, ModelExecution
from kunren.arguments.optimization import Optimization
from kunren.arguments.output import Output
from kunren.arguments.precision import Precision
from kunren.arguments.reproducibility import Reproducibility


# dataclasses take fields from the last base first, and output_dir is the one that people give by position.
@dataclass(repr=False)
class TrainingArguments(
    Builders,
    BestModel,
    Hub,
    Reproducibility,
    Dataloading,
    Distributed,
    ModelExecution,
    Precision,
    Optimization,
    Duration,
    Output,
    metaclass=ArgumentsType,
):
    """Everything that a run can be told. Building one touches no device and no environment, and writes nothing."""

    # Fields that take JSON text for a dict. Subclasses add theirs; other text under these names stays as it is.
    _VALID_DICT_FIELDS: ClassVar[list[str]] = [
        "accelerator_config",
        "activation_checkpointing_kwargs",
        "deepspeed",
        "fsdp_config",
        "gradient_checkpointing_kwargs",
        "lr_scheduler_kwargs",
    ]

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self) -> None:
        for name in self._VALID_DICT_FIELDS:
            value = getattr(self, name, None)
            if isinstance(value, str) and value.lstrip().startswith("{"):
                setattr(self, name, from_json(name, value))
        for name, annotation in _ANNOTATIONS.items():
            setattr(self, name, convert(name, getattr(self, name), annotation))
        for group in GROUPS:
            group.normalise(self)
        self.check()

    def check(self) -> None:
        """Raise an error for values, or pairs of values, that cannot work."""
        for group in GROUPS:
            group.check(self)

    def __setattr__(self, name: str, value: Any) -> None:
        name = RENAMED.get(name, name)
        object.__setattr__(self, name, value)
        twin = TWINS.get(name)
        if twin is not None and value is not None:
            object.__setattr__(self, twin, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arguments stored by transformers, or by an earlier release, get the fields that they lack."""
        given = {item.name: item for item in dataclasses.fields(self) if item.name not in state}
        made = {name: item.default_factory() for name, item in given.items() if callable(item.default_factory)}
        plain = {name: item.default for name, item in given.items() if item.default is not dataclasses.MISSING}
        self.__dict__.update({**made, **plain, **state})

    def __getattr__(self, name: str) -> Any:
        """Old names still read: as today's value where there is one, else as what was given for them."""
        entry = LEGACY_NAMES.get(name)
        if entry is None:
            # Python looks for the nearest name itself, when it shows the error and not whenever somebody probes.
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'", name=name, obj=self)
        if entry.read is not None:
            return entry.read(self)
        return self.__dict__.get("_legacy_values", {}).get(name, entry.default)

    __repr__ = Builders.__str__


_ANNOTATIONS = {item.name: str(item.type) for item in dataclasses.fields(TrainingArguments)}
