"""The file or folder that a path which does not exist was most likely meant to be."""

from __future__ import annotations

from pathlib import Path

from kunren.base.names import closest_name


def did_you_mean_path(path: Path) -> str:
    """A sentence to append to an error message: " Did you mean 'x.csv'?", of what lies beside it; or nothing."""
    try:
        beside = [one.name for one in path.parent.iterdir() if not one.name.startswith(".")]
    except OSError:
        return ""
    # Apart from its ending: that alone makes no name like another.
    alike = [one for one in beside if closest_name(path.stem, [Path(one).stem])]
    nearest = closest_name(path.name, alike)
    return f" Did you mean '{path.parent / nearest}'?" if nearest else ""
