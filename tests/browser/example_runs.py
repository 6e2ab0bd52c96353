"""Folders such as trainings leave them: what the page is looked at with."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

BEGAN = 1_790_000_000.0
ENVIRONMENT = {
    "kunren": "0.6.0",
    "python": "3.11.9",
    "torch": "2.13.0",
    "transformers": "5.24.0",
    "platform": "Linux-6.8.0-x86_64-with-glibc2.36",
    "device": "cuda: NVIDIA H200",
    "processes": "1",
}
ARGUMENTS: dict[str, Any] = {
    "output_dir": "runs/minilm-sentiment",
    "num_train_epochs": 3,
    "per_device_train_batch_size": 32,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.06,
    "weight_decay": 0.01,
    "bf16": True,
    "eval_strategy": "steps",
    "eval_steps": 100,
    "save_steps": 200,
    "logging_steps": 5,
    "load_best_model_at_end": True,
    "metric_for_best_model": "f1",
}
SHARES = {
    "data": 0.31,
    "transfer": 0.02,
    "forward": 0.17,
    "backward": 0.29,
    "optimizer": 0.06,
    "callbacks": 0.01,
    "evaluation": 0.10,
    "checkpoint": 0.03,
    "other": 0.01,
}


def write(folder: Path, logs: list[Any], events: list[Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("metrics.jsonl", logs), ("events.jsonl", events)):
        if lines is not None:
            text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def begin(step: int = 0, moment: float = BEGAN, max_steps: int = 1200, **more: Any) -> dict[str, Any]:
    return {
        "event": "begin",
        "time": moment,
        "step": step,
        "arguments": ARGUMENTS,
        "environment": ENVIRONMENT,
        "model": {"class": "BertForSequenceClassification", "parameters": 22_713_986, "trainable": 22_713_986},
        "data": {"examples": 12_800, "batches_per_epoch": 400},
        "max_steps": max_steps,
        "logging_steps": 5,
        "resumed_from": f"checkpoint-{step}" if step else None,
        "run_name": None,
        **more,
    }


def end(step: int, moment: float, outcome: str = "finished", error: str | None = None) -> dict[str, Any]:
    return {"event": "end", "time": moment, "step": step, "outcome": outcome, "error": error}


def account(steps: int, wall: float, shares: dict[str, float] | None = None, tokens: int = 4096) -> dict[str, Any]:
    return {
        "steps": steps,
        "seconds": {phase: share * wall for phase, share in (shares or SHARES).items()},
        "samples": 32 * steps,
        "tokens": tokens * steps,
        "operations": 1e12 * steps,
        "mfu": 0.31,
        "wall": wall,
    }


def lines_of(seed: int, last: int = 1200, peak: float = 3e-4, shares: dict[str, float] | None = None) -> list[Any]:
    """A training with an evaluation every 100 steps, from step 5 on."""
    noise, lines = random.Random(seed), []
    floor = 0.18 + 0.05 * noise.random()
    for step in range(5, last + 1, 5):
        done, moment = step / 1200, BEGAN + 4 + step * 0.31
        rate = peak * min(step / 72, 0.5 * (1 + math.cos(math.pi * min(1.0, done))))
        loss = floor + 0.62 * math.exp(-done * 5) + noise.gauss(0, 0.045) * (0.4 + math.exp(-done * 2))
        lines.append(
            {
                "loss": max(0.02, loss),
                "grad_norm": math.exp(noise.gauss(0.5 - done, 0.35)),
                "learning_rate": rate,
                "epoch": done * 3,
                "label_entropy": 0.69 * math.exp(-2 * done) + noise.gauss(0, 0.01),
                "step": step,
                "time": moment,
                "account": account(5, 1.55 * (1 + 0.1 * noise.random()), shares),
            }
        )
        if step % 100 == 0:
            score = 0.93 - 0.3 * math.exp(-done * 4) + noise.gauss(0, 0.006)
            lines.append(
                {
                    "eval_loss": floor + 0.05 + 0.5 * math.exp(-done * 5) + 0.05 * done + noise.gauss(0, 0.008),
                    "eval_f1": score,
                    "eval_accuracy": score + 0.01,
                    "eval_runtime": 3.1,
                    "eval_samples_per_second": 812.0,
                    "epoch": done * 3,
                    "step": step,
                    "time": moment + 1,
                }
            )
    return lines


def warned(step: int, text: str) -> dict[str, Any]:
    return {"event": "warning", "time": BEGAN + step, "step": step, "text": text}


def finished(folder: Path, seed: int = 1, **settings: Any) -> Path:
    """It was killed at step 470, went on from 400, and came to its end."""
    lines = lines_of(seed, **settings)
    for line in lines:
        if line["step"] > 400:
            line["time"] += 3600.0
    lines.append(
        {"train_runtime": 377.0, "train_loss": 0.3, "total_flos": 1e15, "step": 1200, "time": lines[-1]["time"] + 2}
    )
    for step in (800, 1000, 1200):
        (folder / f"checkpoint-{step}").mkdir(parents=True, exist_ok=True)
    state = {"best_model_checkpoint": str(folder / "checkpoint-1200")}
    (folder / "checkpoint-1200" / "trainer_state.json").write_text(json.dumps(state))
    rate = f"{settings.get('peak', 3e-4):g}"
    begins = [begin(arguments={**ARGUMENTS, "learning_rate": float(rate)})]
    begins.append(
        begin(400, BEGAN + 3600 + 125, arguments={**ARGUMENTS, "learning_rate": float(rate), "save_total_limit": 3})
    )
    short = "3 examples could not be read and were left out: rows 17, 204, 988."
    warnings = [warned(step, "The gradient was not finite: the update was skipped.") for step in range(30, 240, 30)]
    return write(folder, lines, [begins[0], *warnings, warned(3, short), begins[1], end(1200, lines[-1]["time"] + 1)])


def failed(folder: Path) -> Path:
    """The loss is lost for a while, comes back, and memory runs out."""
    lines = lines_of(5, last=620)
    for line in lines:
        if 300 <= line["step"] <= 360 and "loss" in line:
            line["loss"] = line["grad_norm"] = None
    error = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.81 GiB "
        'of which 1.19 GiB is free.\n  File "train.py", line 41, in <module>\n    trainer.train()'
    )
    where = (
        "/home/user/train.py:41 in <module>: trainer.train()\n...\n" + "/opt/a/very/long/path" * 8 + "/loss.py:7 in f"
    )
    ended = {**end(623, BEGAN + 200, "failed", error), "traceback": where}
    return write(folder, lines, [begin(), warned(300, "The loss is NaN at step 300."), ended])


def lost(folder: Path) -> Path:
    """The loss is lost for good; the folder holds an earlier training and a trace."""
    lines = lines_of(6)
    for line in lines:
        if line["step"] >= 800 and "loss" in line:
            line["loss"] = line["grad_norm"] = None
    write(folder, lines, [begin(moment=BEGAN - 500), begin(), end(1200, BEGAN + 500)])
    (folder / "profile").mkdir()
    (folder / "profile" / "steps-10-14.json").write_text("{}")
    return folder


def huge(folder: Path, lines: int = 100_000, metrics: int = 60) -> Path:
    """As long a log as there is, written quickly: every line has the loss, each 100th all the metrics."""
    noise = random.Random(3)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for step in range(1, lines + 1):
            done = step / lines
            loss = 2 + 8 * math.exp(-done * 12) + noise.gauss(0, 0.25) + (6 if noise.random() < 0.0005 else 0)
            line = {"loss": loss, "learning_rate": 1e-3 * (1 - done), "step": step, "time": BEGAN + step * 0.8}
            if step % 100 == 0:
                line |= {f"router/layer_{at}/load": done + noise.gauss(0, 0.1) for at in range(metrics)}
            file.write(json.dumps(line) + "\n")
    (folder / "events.jsonl").write_text(json.dumps(begin(max_steps=lines)) + "\n")
    return folder


def odd(folder: Path) -> Path:
    """Numbers that axes have to be made for with care: huge, tiny, negative, all alike, next to each other, alone."""
    lines: list[Any] = []
    for step in range(1, 9):
        line = {
            "loss": 10.0 ** (step * 30 - 100),
            "huge": (-1) ** step * 9e298,
            "alike": -3.0,
            "neighbours": 1e16 + 2 * (step % 3),
            "negative": -(10.0**step),
            "tiny": step * 1e-300,
            "gaps": None if step % 2 else 1.0 * step,
            "zero": 0,
        }
        lines.append(line | ({"alone": 5} if step == 3 else {}) | {"step": step * 10**14, "time": BEGAN})
    return write(folder, lines)


HOSTILE = "</script><img src=x onerror=alert(1)><!--"


def hostile(folder: Path) -> Path:
    """Names and values that would be markup, had they not been escaped."""
    lines = [
        {HOSTILE: step * 1.0, "loss": 1.0, f"eval_{HOSTILE}": 0.5, "step": step, "time": BEGAN + step}
        for step in (1, 2, 3)
    ]
    named = {
        "run_name": HOSTILE,
        "arguments": {HOSTILE: HOSTILE},
        "environment": {HOSTILE: HOSTILE},
        "model": {"class": HOSTILE},
    }
    (folder / "checkpoint-3").mkdir(parents=True, exist_ok=True)
    return write(folder, lines, [begin(**named), warned(2, HOSTILE), end(3, BEGAN + 9, "failed", HOSTILE)])
