"""CPU time of the import line in a fresh interpreter, beside that of `import torch`.

python benchmarks/import_time.py [--rounds 7] [--write]
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
from functools import partial

from measure import command_line, interleaved, ratio_cells, report, table

TORCH = "import torch"
IMPORTS = {
    "torch": TORCH,
    "kunren": "from kunren import Trainer, TrainingArguments",
    "transformers": "from transformers import Trainer, TrainingArguments",
    "Lightning": "from lightning import LightningModule, Trainer",
}
HEADERS = ("import", "CPU s", "ratio to torch", "ratio in each round")


def cpu_seconds(statement: str) -> float:
    """User and system time of a fresh interpreter that runs one statement."""
    # An installed package has its byte code on disk: this lets a checkout have it too.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options = command_line(__doc__, rounds=7).parse_args()
    statements = [statement for system, statement in IMPORTS.items() if system not in options.without]
    for statement in statements:
        cpu_seconds(statement)  # brings the files into the page cache and writes the byte code
    seconds = interleaved({statement: partial(cpu_seconds, statement) for statement in statements}, options.rounds)
    rows = []
    for statement in statements:
        median = f"{statistics.median(seconds[statement]):.2f}"
        rows.append((f"`{statement}`", median, *ratio_cells(seconds[statement], seconds[TORCH])))
    report("import_time", "Import", [table(HEADERS, rows)], options.write)


if __name__ == "__main__":
    main()
