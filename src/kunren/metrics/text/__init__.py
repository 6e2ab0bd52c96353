"""Metrics of generated text beside the right one; one kind of task in each file."""
