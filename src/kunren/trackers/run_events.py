"""events.jsonl: what happened to the runs of an output folder, one strict JSON object a line.

Each training begins with what it was (arguments, environment, model, data) and ends with its outcome; in between stand
the warnings. A run that was killed has no end.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kunren._version import __version__
from kunren.arguments import TrainingArguments
from kunren.arguments.metric_direction import greater_is_better
from kunren.base.state import TrainerControl, TrainerState
from kunren.base.strict_json import to_jsonable
from kunren.callbacks.callback import TrainerCallback
from kunren.data.loaders import batches_in, examples_in
from kunren.trackers.json_lines import ends_in_mid_line

logger = logging.getLogger(__name__)

EVENTS_NAME = "events.jsonl"
MOST_WARNINGS = 1000  # of one training: a warning at every step would fill the disk
MOST_FRAMES = 6


class RunEventsCallback(TrainerCallback):
    """Appends to `events.jsonl` in the output folder. Can never end a run."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._state: TrainerState | None = None
        self._is_open = self._has_ended = self._has_failed = False
        self._early: list[str] = []  # warned of before the training began
        self._warnings = 0
        self._resumed_from: str | None = None
        self._stop_listening: Callable[[], None] | None = None

    def begin_training(self) -> None:
        """`train()` is entered: listen to warnings."""
        self._is_open = self._has_ended = False
        self._early, self._warnings, self._resumed_from, self._state = [], 0, None, None
        self._stop_listening = _listen(self._note_warning)

    def on_checkpoint_loaded(
        self, args: Any, state: TrainerState, control: TrainerControl, checkpoint: Any = None, **kwargs: Any
    ) -> None:
        self._resumed_from = str(checkpoint)

    def on_train_begin(
        self,
        args: Any,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero:
            return
        self._folder, self._state, self._is_open = Path(args.output_dir).absolute(), state, True
        try:
            begin = _description(args, state, model, train_dataloader)
        except Exception as error:  # of a model or arguments that are not as others are
            begin = {"problem": f"{type(error).__name__}: {error}"}
        from kunren.trackers.process import this_process

        self._append("begin", {**begin, "resumed_from": self._resumed_from, "process": this_process()})
        for text in self._early:
            self._append("warning", {"text": text})

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._has_ended = True

    def end_training(self, was_interrupted: bool) -> None:
        """`train()` is left: note the outcome."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        if not self._is_open:
            return
        error = None if self._has_ended else sys.exc_info()[1]
        stopped = was_interrupted or isinstance(error, (GeneratorExit, KeyboardInterrupt))
        outcome = "stopped" if stopped else "finished" if error is None else "failed"
        text = None if error is None or stopped else _text_of(error)
        lines = {} if text is None else {"traceback": _last_lines(error)}
        self._append("end", {"outcome": outcome, "error": text, **lines})
        self._is_open = False

    def _note_warning(self, text: str) -> None:
        self._warnings += 1
        if self._warnings > MOST_WARNINGS:
            return
        if self._warnings == MOST_WARNINGS:
            text = f"{text} (Further warnings of this training are not kept.)"
        if self._is_open:
            self._append("warning", {"text": text})
        else:
            self._early.append(text)

    def _append(self, event: str, details: dict[str, Any]) -> None:
        if self._folder is None or self._state is None:
            return
        try:
            entry = to_jsonable(
                {"event": event, "time": round(time.time(), 3), "step": self._state.global_step, **details}
            )
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / EVENTS_NAME
            line = "\n" * ends_in_mid_line(path) + json.dumps(entry, allow_nan=False, ensure_ascii=False) + "\n"
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(line)
        except Exception as error:  # a full disk: the next event may find room
            if not self._has_failed:
                self._has_failed = True  # first: the warning comes back here
                logger.warning("%s cannot be written: %s. Training goes on.", self._folder / EVENTS_NAME, error)


def _text_of(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # in the error's own `__str__`
        return type(error).__name__


def _last_lines(error: BaseException | None) -> str | None:
    """Where the error arose: the innermost line of the user's own code, and the last ones. No values."""
    import sysconfig

    try:
        frames = traceback.extract_tb(None if error is None else error.__traceback__)
        packages = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        others = ("<frozen", str(Path(__file__).parents[1]), *filter(None, packages))
        own = [at for at, frame in enumerate(frames) if not frame.filename.startswith(others)]
        shown = sorted({*own[-1:], *range(max(0, len(frames) - MOST_FRAMES), len(frames))})
        lines = []
        for before, at in zip([-1, *shown], shown, strict=False):
            frame = frames[at]
            lines += ["..."] if at > before + 1 and before >= 0 else []
            lines.append(f"{frame.filename}:{frame.lineno} in {frame.name}: {(frame.line or '')[:200]}")
        return "\n".join(lines) or None
    except Exception:  # of sources that cannot be read
        return None


def _description(args: Any, state: TrainerState, model: Any, loader: Any) -> dict[str, Any]:
    parameters = [] if model is None else list(model.parameters())
    return {
        "run_name": state.trial_name or args.run_name,
        "arguments": changed_arguments(args),
        "environment": _environment(args),
        "model": {
            "class": type(model).__name__,
            "parameters": sum(parameter.numel() for parameter in parameters),
            "trainable": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        },
        "data": {
            "examples": examples_in(loader),
            "batches_per_epoch": batches_in(loader),
        },
        "max_steps": state.max_steps,
        "logging_steps": state.logging_steps,
    }


def changed_arguments(args: Any) -> dict[str, Any]:
    """The arguments that are not at their defaults, nor what follows from those; tokens are masked."""
    default, found = TrainingArguments(str(args.output_dir)).to_dict(), args.to_dict()
    changed = {
        name: to_jsonable(value)
        for name, value in found.items()
        if name == "output_dir" or name not in default or default[name] != value
    }
    return {name: value for name, value in changed.items() if not _follows(name, found)}


def _follows(name: str, found: dict[str, Any]) -> bool:
    """Whether an argument would have its value anyway, from other ones: see `normalise` in arguments/."""
    if name == "do_eval":
        return bool(found["eval_strategy"] != "no")
    if name == "eval_steps":
        return bool(found["eval_strategy"] == "steps" and found[name] == found["logging_steps"])
    if name == "metric_for_best_model":
        return bool(found[name] == "loss")
    if name.startswith("activation_checkpointing"):  # the other name for the same
        return bool(found[name] == found[name.replace("activation", "gradient")])
    if name == "greater_is_better":
        return bool(found[name] == (greater_is_better(str(found["metric_for_best_model"])) is not False))
    return False


def _environment(args: Any) -> dict[str, str]:
    device = args.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    transformers = sys.modules.get("transformers")
    return {
        "kunren": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **({"transformers": transformers.__version__} if transformers is not None else {}),
        "platform": platform.platform(),
        "device": f"{device.type} ({name})",
        "threads": str(torch.get_num_threads()),
        "processes": str(args.world_size),
        "script": os.path.basename(sys.argv[0]) if sys.argv else "",
    }


def _listen(note: Callable[[str], None]) -> Callable[[], None]:
    """Have `note` called with what kunren logs, and Python warns of; what is shown of it stays the same."""
    handler, kunren, shown = _Listener(note), logging.getLogger("kunren"), _Shown(note)
    kunren.addHandler(handler)
    warnings.showwarning = shown

    def stop() -> None:
        kunren.removeHandler(handler)
        shown.note = None
        # Of two trainings at once, the first to begin may be the first to end.
        while isinstance(last := warnings.showwarning, _Shown) and last.note is None:
            warnings.showwarning = last.show

    return stop


class _Shown:
    """Stands in for `warnings.showwarning`: shows what that shows, and passes it on until `note` is None."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.note: Callable[[str], None] | None = note
        self.show: Callable[..., None] = warnings.showwarning

    def __call__(self, message: Any, category: Any, *details: Any, **options: Any) -> None:
        self.show(message, category, *details, **options)
        if self.note is not None:
            self.note(f"{category.__name__}: {message}")


class _Listener(logging.Handler):
    """Passes on the text of warnings and errors."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        # Where nobody has set logging up, Python prints warnings itself, but only if there is no handler at all.
        if not _others(record.name, self) and logging.lastResort is not None:
            logging.lastResort.handle(record)
        try:
            self._note(record.getMessage())
        except Exception:
            self.handleError(record)


def _others(name: str, own: logging.Handler) -> bool:
    """Whether a record of the logger `name` reaches another handler than `own`."""
    found: logging.Logger | None = logging.getLogger(name)
    while found is not None:
        if any(handler is not own for handler in found.handlers):
            return True
        found = found.parent if found.propagate else None
    return False
