"""TrainingArguments: every group joined into one flat dataclass, which users and libraries subclass as such."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kunren.arguments.best_model import BestModel
from kunren.arguments.builders import Builders
from kunren.arguments.construction import ArgumentsType
from kunren.arguments.conversion import convert
from kunren.arguments.dataloading import Dataloading
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.evaluation import Evaluation
from kunren.arguments.group import ArgumentGroup
from kunren.arguments.hub import Hub
from kunren.arguments.legacy import LEGACY_NAMES, RENAMED
from kunren.arguments.logging_and_tracking import LoggingAndTracking
from kunren.arguments.model_execution import TWINS, ModelExecution
from kunren.arguments.optimization import Optimization
from kunren.arguments.output import Output
from kunren.arguments.precision import Precision
from kunren.arguments.reproducibility import Reproducibility
from kunren.arguments.saving import Saving

# In the order in which they are made uniform: a group stands below those whose values it takes over.
GROUPS: tuple[type[ArgumentGroup], ...] = (
    Output,
    Duration,
    Optimization,
    Precision,
    ModelExecution,
    LoggingAndTracking,
    Evaluation,
    Saving,
    BestModel,
    Hub,
    Reproducibility,
    Dataloading,
    Distributed,
)


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

    def __post_init__(self) -> None:
        self._settle()

    def _settle(self) -> None:
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
