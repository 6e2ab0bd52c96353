"""Learning rate schedules, one kind in each file; `kunren.optim.schedule` finds them by name."""
