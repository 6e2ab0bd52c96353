"""Parameter groups, optimizers by name and learning rate schedules."""

from kunren.optim.optimizers.adafactor import Adafactor
from kunren.optim.parameter_groups import (
    build_groups,
    count_decay_parameters,
    decay_parameter_names,
    fit_state,
    merge_state,
    split_state,
)
from kunren.optim.registry import OPTIMIZERS, create_optimizer, get_optimizer_cls_and_kwargs
from kunren.optim.schedules import (
    SCHEDULES,
    get_constant_schedule,
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
    get_linear_schedule_with_warmup,
    get_scheduler,
    resize_state,
)

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Adafactor",
    "build_groups",
    "count_decay_parameters",
    "create_optimizer",
    "decay_parameter_names",
    "fit_state",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_linear_schedule_with_warmup",
    "get_optimizer_cls_and_kwargs",
    "get_scheduler",
    "merge_state",
    "resize_state",
    "split_state",
]
