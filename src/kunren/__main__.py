"""`python -m kunren`: the `kunren` command, where scripts of packages are not on the path."""

from __future__ import annotations

import sys

from kunren.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
