"""The same run as a job of Ray Train: python ray_train.py --workers 64 TEXT OUTPUT_DIR [--name value ...]

From any folder: train.py beside it runs unchanged in each worker, with all words but --workers, --cpu and --restarts.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any


def train(config: dict[str, Any]) -> None:
    """In each worker: Ray has started the process group, and said in the environment which process this is."""
    sys.argv = [config["script"], *config["words"]]
    try:
        runpy.run_path(config["script"], run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"train.py ended with {end.code}") from end  # which has Ray start it again


def words_for_workers(text: str, output_dir: str, others: list[str]) -> list[str]:
    """The words for train.py. Workers run in another folder, so paths are made absolute."""
    found = [os.path.abspath(word) if os.path.exists(word) else word for word in others]
    return [os.path.abspath(text), os.path.abspath(output_dir), *found]


def main() -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--cpu", action="store_true", help="without GPUs")
    parser.add_argument("--restarts", type=int, default=3, help="how often a run whose worker fails is started again")
    parser.add_argument("text", help="a file that all machines see")
    parser.add_argument("output_dir", help="a folder that all machines see")
    options, others = parser.parse_known_args()
    words = words_for_workers(options.text, options.output_dir, others)
    trainer = TorchTrainer(
        train,
        train_loop_config={"script": str(Path(__file__).with_name("train.py").resolve()), "words": words},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=not options.cpu),
        torch_config=TorchConfig(backend="gloo" if options.cpu else "nccl"),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=options.restarts)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
