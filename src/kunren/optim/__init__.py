"""Parameter groups, optimizers by name and learning rate schedules."""

from kunren.optim.schedule import waits_for_metric as waits_for_metric
