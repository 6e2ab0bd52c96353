"""What needs transformers: loaded on use, by what is asked for by name; and `install()`, which takes its names over."""

from kunren.base.registry import on_demand

__getattr__ = on_demand(
    __name__,
    {"install": "installation", "uninstall": "installation", "is_installed": "installation"},
)
