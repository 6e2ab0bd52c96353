"""Arguments as plain values: for JSON, for trackers, for reading."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from kunren.arguments.plain_values import is_secret, plain
from kunren.arguments.process_role import ProcessRole


class Export(ProcessRole):
    """Dicts, JSON and text of the arguments, with every token masked."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values; building arguments from it gives the same arguments, but for tokens."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.init}
        return {name: f"<{name.upper()}>" if is_secret(name, value) else plain(value) for name, value in values.items()}

    def to_json_string(self) -> str:
        return json.dumps(self.to_dict(), indent=2, default=str)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """Only what trackers take as hyperparameters (numbers, strings, tensors); the rest as text."""
        values = self.to_dict() | {"train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        allowed = (bool, int, float, str, torch.Tensor)
        return {name: value if isinstance(value, allowed) else str(value) for name, value in values.items()}

    def __str__(self) -> str:
        lines = (f"    {name}={value!r},\n" for name, value in sorted(self.to_dict().items()))
        return f"{type(self).__name__}(\n{''.join(lines)})"
