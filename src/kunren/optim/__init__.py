"""Parameter groups, optimizers by name and learning rate schedules."""
