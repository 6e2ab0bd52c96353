"""What torchrun starts for test_trl_ranks.py, told the library, module:function, its options in JSON, and a folder."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import torch.distributed


def main() -> None:
    library, task, options, folder = sys.argv[1:]
    if library == "kunren":
        import kunren.hf

        kunren.hf.install()
    module, function = task.split(":")
    own = Path(folder, library, f"rank-{os.environ['RANK']}")
    own.mkdir(parents=True)
    answer = getattr(importlib.import_module(module), function)(own, **json.loads(options))
    (own / "answer.json").write_text(json.dumps(answer))
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
