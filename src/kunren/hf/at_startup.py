"""With KUNREN_INSTALL=1 in the environment: `install()` as soon as transformers has been imported, and not before.

Importing this module is enough. The file `kunren_install.pth`, which stands beside the package, does so at the start of
each Python that has the variable set.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _WhenImported:
    """Finds nothing itself: the loader that others find for transformers goes on to `install()`.

    It stays until transformers has been executed: many only ask whether the package is there, and import it later.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "transformers":
            return None
        others = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        spec = next(filter(None, (finder.find_spec(name, path, target) for finder in others)), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                from kunren.hf.installation import install

                install()

        spec.loader.exec_module = execute_and_install  # type: ignore[method-assign]
        return spec


if "transformers" not in sys.modules and not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
    sys.meta_path.insert(0, _WhenImported())
