"""What the libraries that write files raise when a disk refuses, told in one way."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from kunren.checkpoint.disk import free_bytes

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_FULL_BELOW_BYTES = 1 << 16


def told_where(error: BaseException, final: Path) -> OSError | None:
    """What a full or read-only disk raises, in whatever library, as an OSError that says what and where; else None."""
    number = _system_error_number(error)
    free = free_bytes(final.parent) or 0
    if number is None and isinstance(error, RuntimeError) and free < _FULL_BELOW_BYTES:
        number = errno.ENOSPC  # torch's own file writer says only that the position is not what it should be
    if number is None:
        return None
    reason = str(error) if isinstance(error, OSError) else os.strerror(number)
    if number in _NO_SPACE:
        reason = f"{os.strerror(number)}, {free >> 20} MiB are free"
    return OSError(number, f"{final.name} cannot be saved in {final.parent}: {reason}")


def _system_error_number(error: BaseException) -> int | None:
    """The errno of an exception; safetensors (Rust) gives it as text, torch hides a full disk behind its own error."""
    if isinstance(error, OSError):
        return error.errno if error.errno is not None else errno.EIO
    if text := re.search(r"\(os error (\d+)\)", str(error)):
        return int(text[1])
    hidden = error.__cause__ or error.__context__
    if isinstance(hidden, OSError) and isinstance(error, RuntimeError):
        return hidden.errno
    return None
