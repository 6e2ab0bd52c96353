"""One of several processes, started by torchrun: `sentence_processes LIBRARY FOLDER WHAT` trains what it is told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main(library: str, folder: Path, what: str) -> None:
    if library == "kunren":
        import kunren.hf

        kunren.hf.install()
    from downstream import sentence_runs

    rank = int(os.environ["RANK"])
    own = folder / str(rank)  # for the model it begins with, which each process writes for itself
    own.mkdir(parents=True)
    trainer = getattr(sentence_runs, what)(own, evaluates=False)
    trainer.train()
    if rank == 0:
        losses = {entry["step"]: entry["loss"] for entry in trainer.state.log_history if "loss" in entry}
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
