"""What `parameter_groups` may say: patterns of parameter names, with a rate or a decay of their own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from kunren.arguments.checks import refuse
from kunren.arguments.conversion import to_float
from kunren.base.names import did_you_mean

_NAME = "parameter_groups"
_NUMBERS = ("learning_rate", "weight_decay")
_KEYS = ("pattern", *_NUMBERS)
_FORM = 'give a list such as [{"pattern": "classifier", "learning_rate": 1e-3}], or that as JSON text.'


def read_parameter_groups(value: Any) -> list[dict[str, Any]] | None:
    """The list of rules in `value`, also from JSON text, with plain numbers; an empty one is None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise refuse(_NAME, value, f"it is not valid JSON ({error}): {_FORM}") from None
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(rule, Mapping) for rule in value):
        raise refuse(_NAME, value, _FORM)
    return [_read(rule) for rule in value] or None


def _read(rule: Mapping[str, Any]) -> dict[str, Any]:
    for key in rule:
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            raise refuse(_NAME, dict(rule), f"{key!r} is none of {', '.join(_KEYS)}.{hint}")
    pattern = rule.get("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise refuse(_NAME, dict(rule), "each rule needs a 'pattern', a regular expression for names of parameters.")
    try:
        re.compile(pattern)
    except re.error as error:
        raise refuse(_NAME, dict(rule), f"the pattern is no regular expression: {error}.") from None
    read: dict[str, Any] = {"pattern": pattern}
    for key in _NUMBERS:
        if rule.get(key) is not None:
            read[key] = to_float(f"{_NAME}: {key}", rule[key])
            if not 0 <= read[key] < math.inf:
                raise refuse(_NAME, dict(rule), f"the {key} must be finite, and 0 or more.")
    if len(read) == 1:
        raise refuse(_NAME, dict(rule), "say what its parameters get: a learning_rate, a weight_decay, or both.")
    return read
