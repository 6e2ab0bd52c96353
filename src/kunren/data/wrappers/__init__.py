"""Wrappers around data sets: what a training set needs that its batches should not know of."""
