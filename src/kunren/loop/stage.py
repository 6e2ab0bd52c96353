"""Where in a step a run is: what an error leaves behind depends on it."""

from __future__ import annotations

from typing import Final

BETWEEN_STEPS: Final = "between steps"  # all is as the last step left it
IN_WINDOW: Final = "in a window"  # batches are used up and random numbers drawn; the weights have not moved
IN_UPDATE: Final = "in an update"  # weights may have moved, and the step does not count yet
BEST_LOADED: Final = "with the best weights"  # the run is over, and the weights are not those of its last step
