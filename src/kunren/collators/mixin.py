"""What collators share: the kind of arrays is chosen in one place."""

from __future__ import annotations

from typing import Any


class DataCollatorMixin:
    """Calls `torch_call` for "pt" and `numpy_call` for "np"; override either to change how batches are made."""

    return_tensors: str

    def __call__(self, features: Any, return_tensors: str | None = None) -> Any:
        kind = self.return_tensors if return_tensors is None else return_tensors
        if kind not in ("pt", "np"):
            raise ValueError(f"return_tensors is {kind!r}: it must be 'pt' (torch) or 'np' (numpy).")
        call = getattr(self, "torch_call" if kind == "pt" else "numpy_call", None)
        if call is None:
            raise NotImplementedError(f"{type(self).__name__} makes no batches for return_tensors={kind!r}.")
        return call(features)
