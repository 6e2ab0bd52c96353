"""What becomes of a run when memory runs out, a number is not finite, an error ends it, or it is of several processes;
each readable alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kunren.loop.guards.non_finite import NonFiniteGuard


def guard_for(args: Any, logging_steps: int) -> NonFiniteGuard | None:
    """The guard of the gradients that the arguments ask for; none where a word in the log is enough."""
    if args.nonfinite == "warn":
        return None

    from kunren.loop.guards.non_finite import NonFiniteGuard

    return NonFiniteGuard(args.nonfinite, args.nonfinite_limit, max(1, logging_steps))


def start_watchdog(trainer: Any) -> None:
    """Watch for hangs until the training ends, where the arguments ask for it."""
    if trainer.args.watchdog_minutes is None:
        return

    from kunren.loop.guards.watchdog import Watchdog

    trainer._undo.append(Watchdog(trainer, trainer.args.watchdog_minutes).start())
