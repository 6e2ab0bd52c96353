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
from kunren.optim.schedule import SCHEDULES, get_scheduler, resize_state, waits_for_metric
from kunren.optim.schedules.constant import get_constant_schedule, get_constant_schedule_with_warmup
from kunren.optim.schedules.cosine import (
    get_cosine_schedule_with_warmup,
    get_cosine_with_hard_restarts_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup,
    get_cosine_with_min_lr_schedule_with_warmup_lr_rate,
)
from kunren.optim.schedules.greedy import GreedyLR, get_greedy_schedule
from kunren.optim.schedules.inverse_sqrt import get_inverse_sqrt_schedule
from kunren.optim.schedules.linear import get_linear_schedule_with_warmup
from kunren.optim.schedules.plateau import get_reduce_on_plateau_schedule
from kunren.optim.schedules.polynomial import get_polynomial_decay_schedule_with_warmup
from kunren.optim.schedules.warmup_stable_decay import get_wsd_schedule

__all__ = [
    "OPTIMIZERS",
    "SCHEDULES",
    "Adafactor",
    "GreedyLR",
    "build_groups",
    "count_decay_parameters",
    "create_optimizer",
    "decay_parameter_names",
    "fit_state",
    "get_constant_schedule",
    "get_constant_schedule_with_warmup",
    "get_cosine_schedule_with_warmup",
    "get_cosine_with_hard_restarts_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup",
    "get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "get_greedy_schedule",
    "get_inverse_sqrt_schedule",
    "get_linear_schedule_with_warmup",
    "get_optimizer_cls_and_kwargs",
    "get_polynomial_decay_schedule_with_warmup",
    "get_reduce_on_plateau_schedule",
    "get_scheduler",
    "get_wsd_schedule",
    "merge_state",
    "resize_state",
    "split_state",
    "waits_for_metric",
]
