"""Foundations: value types, run state, random numbers, nested tensors. Imports nothing else of kunren."""
