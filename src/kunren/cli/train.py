"""`kunren train`: trains, evaluates and saves what a file describes; `--help` explains every argument."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kunren.base.types import TrainOutput

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_TO_BE_RESUMED = 75  # what the system's own programs say for "try again later"
_WORDS = {
    "en": {
        "result": "result",
        "value": "value",
        "model": "The model is in {}.",
        "report": "The report is {}.",
        "stopped": "Stopped at step {} of {}: `kunren train {} --resume` goes on from there.",
    },
    "ja": {
        "result": "結果",
        "value": "値",
        "model": "モデルの保存先: {}",
        "report": "レポート: {}",
        "stopped": "ステップ {} / {} で停止。`kunren train {} --resume` で続きから再開できる。",
    },
}


class TrainCommandError(Exception):
    """What was asked for cannot be done; the message says what to change."""


@dataclass
class Request:
    """What the words of a command line ask for. `asked`: names to explain, empty for all, None for a training."""

    words: list[str] = field(default_factory=list)
    asked: list[str] | None = None
    language: str | None = None


def add_command(commands: Commands) -> None:
    """Add `train` to the commands of the top parser."""
    # No word is an option to argparse, for there is no beginning that options have: which there are is known only
    # when the arguments are loaded, and to load them for every other command takes too long.
    parser = commands.add_parser(
        "train",
        help="train what a file describes; `kunren train --help` explains all arguments (--lang ja: in Japanese)",
        add_help=False,
        prefix_chars="\0",
    )
    parser.add_argument("words", nargs="*")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Train, or explain; 2 where what was asked for cannot be done. An error amid a training is shown whole."""
    from kunren.cli.arguments_help import UnknownName, details, language_of, overview, show

    try:
        request = read_words(options.words)
        language = request.language or language_of(os.environ)
        if request.asked is not None:
            show(details(request.asked, language) if request.asked else overview(language))
            return 0
        if not request.words:
            raise TrainCommandError(
                "Give a YAML or JSON file: kunren train CONFIG. `kunren train --help` explains all."
            )
        return train(request.words[0], request.words[1:], language)
    except (TrainCommandError, UnknownName) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2


def read_words(words: Sequence[str]) -> Request:
    """Take `--help [NAME ...]` and `--lang LANGUAGE` out of the words, wherever they stand."""
    from kunren.arguments.help_texts import LANGUAGES

    request, left = Request(), list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--help", "-h"):
            request.asked = [value] if equals else []
            while left and left[0] != "-h" and left[0].partition("=")[0] not in ("--lang", "--help"):
                request.asked.append(left.pop(0))
        elif name == "--lang":
            request.language = value if equals else left.pop(0) if left else ""
            if request.language not in LANGUAGES:
                raise TrainCommandError(f"--lang {request.language}: choose {' or '.join(LANGUAGES)}.")
        else:
            request.words.append(word)
    return request


def train(source: str, overrides: Sequence[str], language: str) -> int:
    """Train, save, evaluate if there is an evaluation set, print the result; 75 if a signal or the clock ended it."""
    from kunren.cli.run_config import ConfigError, build_arguments, build_trainer, read_config, read_overrides

    if source.startswith("-"):
        raise TrainCommandError(f"{source} stands where the file should: kunren train CONFIG {source} ...")
    if source.endswith(".py"):
        raise TrainCommandError(f"{source} trains by itself: python {source}. Give a YAML or JSON file here.")
    try:
        args, own = build_arguments(read_config(Path(source)) | read_overrides(overrides))
        missing = [name for name in ("model", "task", "train_dataset") if own.get(name) is None]
        if missing:
            raise ConfigError(f"{source} does not say {', '.join(missing)}: `kunren train --help {missing[0]}`.")
        with tempfile.TemporaryDirectory(prefix="kunren-train-") as cache:
            trainer = build_trainer(args, own, cache, is_to_train=True)
            metrics = dict(_trained(trainer).metrics)
            if trainer.was_interrupted:
                _print_where_it_stopped(trainer, source, language)
                return _TO_BE_RESUMED
            trainer.save_model()
            trainer.save_metrics("train", metrics)
            if trainer.eval_dataset is not None:
                measured = trainer.evaluate()
                trainer.save_metrics("eval", measured)
                metrics |= measured
            trainer.save_state()
            if trainer.is_world_process_zero():
                _print_result(trainer, metrics, language)
    except ConfigError as error:
        raise TrainCommandError(" ".join(str(error).split())) from error
    return 0


def _trained(trainer: Any) -> TrainOutput:
    """Train. What is refused before the first step is the configuration's fault, and is told without a traceback."""
    from kunren.callbacks import TrainerCallback
    from kunren.cli.run_config import ConfigError

    class Begun(TrainerCallback):
        has_begun = False

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.has_begun = True

    watch = Begun()
    trainer.add_callback(watch)
    try:
        output: TrainOutput = trainer.train()
    except (ValueError, OSError, ImportError) as error:
        if watch.has_begun:
            raise
        raise ConfigError(str(error)) from error
    finally:
        trainer.remove_callback(watch)
    return output


def _print_result(trainer: Any, metrics: dict[str, Any], language: str) -> None:
    from kunren.report.text_width import table

    words, shown = _WORDS[language], trainer.metrics_format(metrics)
    rows = [(name, str(value)) for name, value in sorted(shown.items())]
    print(table((words["result"], words["value"]), rows, right=(1,)))
    print(words["model"].format(trainer.args.output_dir))
    report = _report(trainer, language)
    if report is not None:
        print(words["report"].format(report))


def _print_where_it_stopped(trainer: Any, source: str, language: str) -> None:
    if trainer.is_world_process_zero():
        state = trainer.state
        print(_WORDS[language]["stopped"].format(state.global_step, state.max_steps, source))


def _report(trainer: Any, language: str) -> Path | None:
    """The report once more, with the evaluation that came after the training; None where there is none."""
    if not trainer.args.run_report:
        return None
    try:
        from kunren.report.write import write_report

        return write_report(trainer.args.output_dir, language)
    except Exception as error:  # no report is worth a training that has succeeded
        print(f"kunren: the report could not be written: {type(error).__name__}: {error}", file=sys.stderr)
        return None
