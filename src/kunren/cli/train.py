"""`kunren train`: trains, evaluates and saves what a file describes; `--help` explains every argument."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
        "stopped": "Stopped at step {} of {}: `{}` goes on from there.",
        "no_file": "Give a YAML or JSON file: kunren train CONFIG. `kunren train --help` explains all.",
        "option": "{0} stands where the file should: kunren train CONFIG {0} ...",
        "script": "kunren train takes a YAML or JSON file; a script trains by itself: python {0}",
        "missing": "{} does not say {}: `kunren train --help {}`.",
        "no_report": "The report could not be written: {}",
    },
    "ja": {
        "result": "結果",
        "value": "値",
        "model": "モデルの保存先: {}",
        "report": "レポート: {}",
        "stopped": "ステップ {} / {} で停止。`{}` で続きから再開できる。",
        "no_file": "YAML または JSON のファイルを指定する: kunren train CONFIG。説明は `kunren train --help`。",
        "option": "ファイルの位置に {0} がある。こう書く: kunren train CONFIG {0} ...",
        "script": "kunren train には YAML または JSON のファイルを指定する。スクリプトはそれ自体で学習する: python {0}",
        "missing": "{} に {} の指定がない。説明は `kunren train --help {}`。",
        "no_report": "レポートを書き込めなかった: {}",
    },
}


class TrainCommandError(Exception):
    """What was asked for cannot be done; the message says what to change."""


@dataclass
class Request:
    """What the words of a command line ask for. `asked`: names to explain, empty for all, None for a training.

    `printed`: how much of the configuration to print, instead of training.
    """

    words: list[str] = field(default_factory=list)
    asked: list[str] | None = None
    language: str | None = None
    printed: str | None = None


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
    from kunren.cli.arguments_help import UnknownName, details, drain, overview, show
    from kunren.cli.language import spoken

    try:
        request = read_words(options.words)
        language = spoken(request.language)
        if request.asked is not None:
            show(details(request.asked, language) if request.asked else overview(language))
            return 0
        if request.printed is not None:
            show(_printed(request.words, request.printed, language))
            return 0
        if not request.words:
            raise TrainCommandError(_WORDS[language]["no_file"])
        return train(request.words[0], request.words[1:], language, options.words)
    except (TrainCommandError, UnknownName) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2
    finally:
        drain()


def read_words(words: Sequence[str]) -> Request:
    """Take `--help [NAME ...]`, `--lang` and `--print_config[=changed]` out of the words, wherever they stand."""
    from kunren.cli.language import LANGUAGES

    request, left = Request(), list(words)
    while left:
        word = left.pop(0)
        name, equals, value = word.partition("=")
        if name in ("--help", "-h"):
            request.asked = [*(request.asked or ()), *([value] if equals else ())]
        elif name.replace("-", "_") == "__print_config":
            request.printed = value if equals else "all"
        elif name == "--lang":
            request.language = value if equals else left.pop(0) if left else ""
            if request.language not in LANGUAGES:
                raise TrainCommandError(f"--lang {request.language}: choose {' or '.join(LANGUAGES)}.")
        else:
            (request.words if request.asked is None else request.asked).append(word)
    return request


def _printed(words: Sequence[str], form: str, language: str) -> str:
    from kunren.cli.print_config import printed_config
    from kunren.cli.run_config import ConfigError

    try:
        return printed_config(words, form, language)
    except ConfigError as error:
        raise TrainCommandError(" ".join(str(error).split())) from error


def train(source: str, overrides: Sequence[str], language: str, given: Sequence[str]) -> int:
    """Train, save, evaluate and test where there is data for that, print the result.

    Returns 75 if a signal or the clock ended it. `given`: the command line as it was, to be told how to go on.
    """
    from kunren.cli.run_config import (
        ConfigError,
        build_arguments,
        build_run,
        read_config,
        read_overrides,
        refuse_output,
        told_in_one_line,
    )
    from kunren.hf.library_bars import without_bars_in_files

    words = _WORDS[language]
    if source.startswith("-"):
        raise TrainCommandError(words["option"].format(source))
    if (script := source.partition(":")[0]).endswith(".py"):
        raise TrainCommandError(words["script"].format(script))
    try:
        args, own = build_arguments(read_config(Path(source)) | read_overrides(overrides))
        missing = [name for name in ("model", "task", "train_dataset") if not own.get(name)]
        if missing:
            raise ConfigError(words["missing"].format(source, ", ".join(missing), missing[0]))
        refuse_output(Path(str(args.output_dir)))
        with tempfile.TemporaryDirectory(prefix="kunren-train-") as cache, without_bars_in_files():
            run = build_run(args, own, cache, is_to_train=True)
            with told_in_one_line():
                trainer = run.trainer()
                run.refuse_bad_rows(trainer.model)
            with _told_how_to_go_on(given):
                output, measured = _trained(trainer)
            if trainer.was_interrupted:
                _print_where_it_stopped(trainer, given, language)
                return _TO_BE_RESUMED
            trainer.save_model()
            trainer.save_metrics("train", output.metrics)
            if trainer.eval_dataset is not None:
                measured = measured or trainer.evaluate()
                trainer.save_metrics("eval", measured)
            if "test_dataset" in run.sets:
                trainer.save_metrics("test", tested := run.test(trainer))
                measured = {**measured, **tested}
            trainer.save_state()
            if trainer.is_world_process_zero():
                _print_result(trainer, {**output.metrics, **measured}, run.task.in_per_cent, language)
    except ConfigError as error:
        raise TrainCommandError(" ".join(str(error).split())) from error
    return 0


def _trained(trainer: Any) -> tuple[TrainOutput, dict[str, Any]]:
    """Train; the output, and what was measured of the weights there are now, if anything was.

    What is refused before the first step is the configuration's fault, and is told without a traceback.
    """
    from kunren.callbacks import TrainerCallback
    from kunren.cli.run_config import ConfigError, words_of

    class Watch(TrainerCallback):
        has_begun = False
        evaluated_step = -1
        measured: dict[str, Any] = {}

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.has_begun = True

        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
            self.evaluated_step, self.measured = state.global_step, dict(metrics or {})

    watch = Watch()
    trainer.add_callback(watch)
    try:
        output: TrainOutput = trainer.train()
    except Exception as error:
        if watch.has_begun:
            raise
        raise ConfigError(words_of(error)) from error
    finally:
        trainer.remove_callback(watch)
    is_of_now = watch.evaluated_step == trainer.state.global_step and not trainer.args.load_best_model_at_end
    return output, watch.measured if is_of_now else {}


@contextmanager
def _told_how_to_go_on(given: Sequence[str]) -> Iterator[None]:
    """Inside, what the Trainer logs of going on later is a command; of an interruption, which is told here, nothing."""
    from kunren.cli.run_config import command_to_resume
    from kunren.loop.guards import rescue
    from kunren.seams import lifecycle

    def of_a_command(record: logging.LogRecord) -> bool:
        if record.msg == lifecycle.STOPPED:
            return False
        command = command_to_resume(given).replace("%", "%%")
        record.msg = record.msg.replace("train(resume_from_checkpoint=True)", f"`{command}`")
        return True

    loggers = (lifecycle.logger, rescue.logger)
    for logger in loggers:
        logger.addFilter(of_a_command)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(of_a_command)


def _print_result(trainer: Any, metrics: dict[str, Any], in_per_cent: Sequence[str], language: str) -> None:
    from kunren.cli.arguments_help import show
    from kunren.report.text_width import table

    words, shown = _WORDS[language], trainer.metrics_format(metrics)
    of_hundred = {f"{split}_{name}" for split in ("eval", "test") for name in in_per_cent}
    rows = [(name, f"{value}{' %' if name in of_hundred else ''}") for name, value in sorted(shown.items())]
    show(table((words["result"], words["value"]), rows, right=(1,)))
    show(words["model"].format(trainer.args.output_dir))
    report = _report(trainer, language)
    if report is not None:
        show(words["report"].format(report))


def _print_where_it_stopped(trainer: Any, given: Sequence[str], language: str) -> None:
    from kunren.cli.arguments_help import show
    from kunren.cli.run_config import command_to_resume

    if trainer.is_world_process_zero():
        state = trainer.state
        show(_WORDS[language]["stopped"].format(state.global_step, state.max_steps, command_to_resume(given)))


def _report(trainer: Any, language: str) -> Path | None:
    """The report once more, with the evaluation that came after the training; None where there is none."""
    if not trainer.args.run_report:
        return None
    try:
        from kunren.report.write import write_report

        return write_report(trainer.args.output_dir, language)
    except Exception as error:  # no report is worth a training that has succeeded
        told = _WORDS[language]["no_report"].format(f"{type(error).__name__}: {error}")
        print(f"kunren: {told}", file=sys.stderr)
        return None
