"""Folders as runs leave them."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from kunren.report.run_files import PHASES

ACCOUNT_SHARES = dict(zip(PHASES, (0.30, 0.02, 0.25, 0.30, 0.06, 0.01, 0.03, 0.02, 0.01), strict=True))


def account(seconds: float, steps: int) -> dict[str, Any]:
    return {
        "steps": steps,
        "seconds": {phase: share * seconds for phase, share in ACCOUNT_SHARES.items()},
        "samples": 32 * steps,
        "tokens": 1000 * steps,
        "operations": 1e12,
        "mfu": 0.25,
        "wall": seconds,
    }


def log_lines(
    steps: int, began: float, every: int = 5, max_steps: int = 100, evaluate: int = 20, seconds: float = 0.5
) -> list[dict[str, Any]]:
    """A loss that falls, with an evaluation every `evaluate` steps; a step takes `seconds`."""
    lines: list[dict[str, Any]] = []
    for step in range(every, steps + 1, every):
        now, at = round(began + step * seconds, 3), {"epoch": round(step / 50, 3), "step": step}
        trained = {
            "loss": round(0.2 + math.exp(-step / 30) + 0.05 * math.sin(step), 4),
            "grad_norm": round(2 + math.cos(step), 4),
            "learning_rate": 5e-5 * (1 - step / max_steps),
        }
        lines.append({**trained, **at, "time": now, "account": account(every * seconds, every)})
        if step % evaluate == 0:
            score = round(1 - math.exp(-step / 40), 4)
            lines.append({"eval_loss": 0.3 + 1 / step, "eval_accuracy": score, "eval_runtime": 0.1, **at, "time": now})
    return lines


def begin(moment: float, step: int = 0, max_steps: int = 100, **more: Any) -> dict[str, Any]:
    return {
        "event": "begin",
        "time": moment,
        "step": step,
        "arguments": {"learning_rate": 5e-5, "num_train_epochs": 2.0},
        "environment": {"kunren": "0.0", "python": "3.11", "torch": "2.13", "device": "cuda:0", "processes": "1"},
        "model": {"class": "Tiny", "parameters": 1000, "trainable": 1000},
        "data": {"examples": 1600, "batches_per_epoch": 50},
        "max_steps": max_steps,
        "logging_steps": 5,
        "resumed_from": None,
        "run_name": None,
        **more,
    }


def warning(moment: float, step: int, text: str) -> dict[str, Any]:
    return {"event": "warning", "time": moment, "step": step, "text": text}


def end(moment: float, step: int, outcome: str = "finished", error: str | None = None) -> dict[str, Any]:
    return {"event": "end", "time": moment, "step": step, "outcome": outcome, "error": error}


def write(folder: Path, logs: list[dict[str, Any]], events: list[dict[str, Any]] | None = None) -> Path:
    """The files as they are; `events` None: an older run that has none."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("metrics.jsonl", logs), ("events.jsonl", events)):
        if lines is not None:
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def make_run(
    folder: Path,
    steps: int = 100,
    outcome: str | None = "finished",
    error: str | None = None,
    max_steps: int = 100,
    warnings: tuple[str, ...] = (),
    **begun_with: Any,
) -> Path:
    """A run of `steps` steps that began as long ago; `outcome` None: it is still going on."""
    began = time.time() - steps * 0.5
    events = [begin(began, max_steps=max_steps, **begun_with)]
    events += [warning(began + at, at, text) for at, text in enumerate(warnings, start=1)]
    if outcome is not None:
        events.append(end(began + steps * 0.5 + 1, steps, outcome, error))
    return write(folder, log_lines(steps, began, max_steps=max_steps), events)
