"""Learning rate schedules, one kind in each file, and their names; `kunren.optim.schedule` finds them."""

from __future__ import annotations

_HERE = "kunren.optim.schedules"
# name -> function(optimizer[, num_warmup_steps][, num_training_steps], options of its own)
SCHEDULES: dict[str, str] = {
    "linear": f"{_HERE}.linear:get_linear_schedule_with_warmup",
    "cosine": f"{_HERE}.cosine:get_cosine_schedule_with_warmup",
    "cosine_with_restarts": f"{_HERE}.cosine:get_cosine_with_hard_restarts_schedule_with_warmup",
    "cosine_with_min_lr": f"{_HERE}.cosine:get_cosine_with_min_lr_schedule_with_warmup",
    "cosine_warmup_with_min_lr": f"{_HERE}.cosine:get_cosine_with_min_lr_schedule_with_warmup_lr_rate",
    "polynomial": f"{_HERE}.polynomial:get_polynomial_decay_schedule_with_warmup",
    "constant": f"{_HERE}.constant:get_constant_schedule",
    "constant_with_warmup": f"{_HERE}.constant:get_constant_schedule_with_warmup",
    "inverse_sqrt": f"{_HERE}.inverse_sqrt:get_inverse_sqrt_schedule",
    "warmup_stable_decay": f"{_HERE}.warmup_stable_decay:get_wsd_schedule",
    "reduce_lr_on_plateau": f"{_HERE}.plateau:get_reduce_on_plateau_schedule",
    "greedy": f"{_HERE}.greedy:get_greedy_schedule",
}
