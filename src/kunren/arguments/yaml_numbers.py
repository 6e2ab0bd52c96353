"""YAML as of version 1.2, the one that everybody means: 5e-5 is a number, and 10:14 and 2026-11-30 are text."""

from __future__ import annotations

import re
from typing import Any

import yaml


class _SafeLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml has no types
    """Refuses a mapping in which a key stands twice: of two values, neither is clearly the one that is meant."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node


def _reader() -> Any:
    reader: Any = type("Reader", (_SafeLoader,), {})
    prefix, others = "tag:yaml.org,2002:", ("int", "float", "timestamp")
    reader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(prefix) not in others]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    number = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    reader.add_implicit_resolver(
        prefix + "int", re.compile(r"([-+]?(0|[1-9]\d*)|0x[\da-fA-F]+)$"), list("-+0123456789")
    )
    reader.add_implicit_resolver(prefix + "float", re.compile(f"({number})$"), list("-+.0123456789"))
    return reader


_READER = _reader()


def read_yaml(text: str) -> Any:
    """What YAML, or JSON, says; a yaml.YAMLError where it is neither."""
    try:
        return yaml.load(text, _READER)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deep") from None
