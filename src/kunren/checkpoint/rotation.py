"""Which checkpoints go when there are more than `save_total_limit`.

The newest and the best always stay, whatever the limit: deleting the newest would make the run impossible to extend,
deleting the best would leave nothing to load at the end. So with a limit of 1 and a best that is not the newest, two
stay. The order is that of the steps, never of file times, which change when a folder is copied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from kunren.checkpoint.layout import list_checkpoints, step_of
from kunren.checkpoint.store import discard

logger = logging.getLogger(__name__)


def rotate(
    output_dir: str | Path,
    limit: int | None,
    protected: Iterable[str | Path] = (),
    up_to_step: int | None = None,
    protected_count: bool = True,
) -> list[Path]:
    """Delete the oldest checkpoints beyond `limit`, and return them; no limit (None, or 0 and less) deletes nothing.

    `up_to_step` is the step the run is at: a checkpoint of a higher step is another run's, in a folder used again, and
    is neither counted nor deleted. `protected_count`: whether the protected are among the `limit`, or come on top of
    the last `limit`. What cannot be deleted is reported, and the run goes on.
    """
    own = [path for path in list_checkpoints(output_dir) if up_to_step is None or (step_of(path) or 0) <= up_to_step]
    doomed = to_delete(own, limit, [Path(path) for path in protected], protected_count)
    return [checkpoint for checkpoint in doomed if _deleted(checkpoint)]


def to_delete(checkpoints: list[Path], limit: int | None, protected: list[Path], protected_count: bool) -> list[Path]:
    """The decision of `rotate`: of checkpoints in the order of their steps, those to delete, oldest first."""
    if limit is None or limit <= 0:
        return []
    older = checkpoints[: -1 if protected_count else -limit]
    free = [path for path in older if not any(_is_same(path, kept) for kept in protected)]
    return free[: max(0, len(checkpoints) - limit)]


def _deleted(checkpoint: Path) -> bool:
    try:
        discard(checkpoint)
    except OSError as error:
        logger.warning("The old checkpoint %s cannot be deleted: %s", checkpoint, error)
        return False
    return True


def _is_same(checkpoint: Path, kept: Path) -> bool:
    """Whether two paths name one checkpoint. A recorded path that is gone (the run was moved) protects by its name."""
    if checkpoint.name != kept.name:
        return False
    return not kept.exists() or checkpoint.resolve() == kept.resolve()
