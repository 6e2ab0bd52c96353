"""What changes how a model runs, each switched on by an argument of its own: one in each file."""
