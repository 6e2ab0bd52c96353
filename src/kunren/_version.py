"""The version: read by the build, by `kunren.__version__` and by `kunren --version`."""

__version__ = "0.1.0"
