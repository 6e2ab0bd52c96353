"""The only place that knows what the run is computed on; everyone else uses the verbs of one `Backend`."""

from kunren.engine.backend import Backend, Processes
from kunren.engine.choose import choose

__all__ = ["Backend", "Processes", "choose"]
