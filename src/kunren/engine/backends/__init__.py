"""Backends: one way of running a model in each file, chosen by `kunren.engine.choose`."""
