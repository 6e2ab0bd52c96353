"""Runs scripts of examples/tasks one after the other: python run_scripts.py LIBRARY < [[SCRIPT, WORDS], ...] as JSON.

LIBRARY, kunren or transformers, is where their names come from. The last line that is printed holds, as JSON, what each
returned and the losses it logged.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import transformers

TASKS = Path(__file__).parents[2] / "examples" / "tasks"


class Losses(transformers.TrainerCallback):
    """What was logged of each step, by the script that runs."""

    of_all: list[list[float]] = []

    def on_log(self, args, state, control, logs, **further):
        if "loss" in logs:
            self.of_all[-1].append(logs["loss"])


def run(library: str, script: str, words: list[str]) -> dict[str, float]:
    """What `main` of a script returns, its names imported from the library."""
    text = (TASKS / f"{script}.py").read_text(encoding="utf-8")
    assert text.count("\nfrom kunren import ") == 1
    module = types.ModuleType(script)
    sys.modules[script] = module  # dataclasses look their module up
    exec(compile(text.replace("\nfrom kunren import ", f"\nfrom {library} import "), script, "exec"), vars(module))
    for name in ("Trainer", "Seq2SeqTrainer"):
        if name in vars(module):
            vars(module)[name] = with_losses(vars(module)[name])
    Losses.of_all.append([])
    return module.main(words)


def with_losses(trainer):
    return lambda *args, **keywords: trainer(*args, **keywords, callbacks=[Losses()])


if __name__ == "__main__":
    sys.path.insert(0, str(TASKS))
    results = [run(sys.argv[1], script, words) for script, words in json.load(sys.stdin)]
    print(json.dumps({"results": results, "losses": Losses.of_all}))
