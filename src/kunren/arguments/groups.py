"""The groups that arguments are joined from, for whoever needs them without torch."""

from __future__ import annotations

from kunren.arguments.best_model import BestModel
from kunren.arguments.dataloading import Dataloading
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.evaluation import Evaluation
from kunren.arguments.group import ArgumentGroup
from kunren.arguments.hub import Hub
from kunren.arguments.logging_and_tracking import LoggingAndTracking
from kunren.arguments.model_execution import ModelExecution
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
