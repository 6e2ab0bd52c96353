"""`kunren check`: what would fail in a run, found in seconds. Nothing is trained, and nothing is left behind."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

from kunren.cli.language import LANGUAGES, add_parser, spoken

if TYPE_CHECKING:
    from kunren.cli.check_findings import Findings
    from kunren.cli.check_start import Start

_ABOUT = (
    "find in seconds what would fail in a run",
    "学習で失敗しそうなことを数秒で確かめる",
)
_DESCRIPTION = (
    """\
Find in seconds what would fail in a run after an hour: arguments, model, tokenizer, columns, the first, longest and
last rows, tokens, labels and lengths that the model has no room for, loss, gradients, a step, an evaluation with its
metrics, a save and a load, trackers, the hub, memory and disk. All of it happens on a copy; nothing is trained and
nothing is left behind.

CONFIG is the file of `kunren train`, or SCRIPT.py:FUNCTION, a function that returns a Trainer.
The status is 0, 1 where something failed, and 2 where the file or the command line cannot be read.""",
    """\
学習の途中で失敗しそうなことを数秒で確かめる。引数、モデル、トークナイザー、列、先頭・最長・末尾の行、モデルに収まらない
トークン・ラベル・長さ、損失、勾配、1 回の更新、指標を含む評価、保存と読み込み、トラッカー、Hub、メモリー、ディスク。
すべてコピーの上で行い、学習はせず、何も残さない。

CONFIG は `kunren train` のファイル、または Trainer を返す関数 SCRIPT.py:FUNCTION。
終了ステータスは 0、失敗があれば 1、ファイルやコマンドラインが読めなければ 2。""",
)
_CONFIG = ("a YAML or JSON file, or SCRIPT.py:FUNCTION", "YAML・JSON ファイル、または SCRIPT.py:FUNCTION")
_JSON = ("print JSON", "JSON で出力する")
_LANG = ("the language of the table: en or ja", "表の言語。en または ja")
_OVERRIDES = ("--name value: goes before what CONFIG says", "--name value: CONFIG より優先する")


def add_command(commands: Any) -> None:
    """Add `check` to the commands of the top parser."""
    parser, arguments, options, at = add_parser(commands, "check", _ABOUT, _DESCRIPTION)
    arguments.add_argument("config", metavar="CONFIG", help=_CONFIG[at])
    options.add_argument("--json", action="store_true", help=_JSON[at])
    options.add_argument("--lang", choices=LANGUAGES, help=_LANG[at])
    arguments.add_argument("overrides", nargs=argparse.REMAINDER, metavar="...", help=_OVERRIDES[at])
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 1 where something failed, 2 where what was asked for cannot be read."""
    from kunren.cli.arguments_help import show
    from kunren.cli.run_config import ConfigError

    begun = time.perf_counter()
    try:
        language, as_json, overrides = _own_options(options)
        with redirect_stdout(sys.stderr):  # of libraries that print, and of scripts
            findings = checked(options.config, overrides, language)
    except ConfigError as error:
        print(f"kunren: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    show(
        json.dumps(findings.as_list(), indent=2, ensure_ascii=False)
        if as_json
        else findings.table(time.perf_counter() - begun)
    )
    return findings.status


def _own_options(options: argparse.Namespace) -> tuple[str, bool, list[str]]:
    """`--lang` and `--json` may stand after CONFIG as well."""
    from kunren.cli.run_config import ConfigError

    language, as_json, left = options.lang, options.json, []
    words = iter(options.overrides)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--lang":
            language = value if equals else next(words, "")
            if language not in LANGUAGES:
                raise ConfigError(f"--lang {language}: choose {' or '.join(LANGUAGES)}.")
        elif word == "--json":
            as_json = True
        else:
            left.append(word)
    return spoken(language), as_json, left


def checked(source: str, overrides: Sequence[str], language: str) -> Findings:
    """All that there is to find; ConfigError for a file, a script or a command line that cannot be read."""
    from kunren.base.random_state import preserved
    from kunren.cli.check_findings import Findings
    from kunren.cli.check_start import start_of
    from kunren.hf.library_bars import without_bars_in_files

    findings = Findings(language)
    with (
        tempfile.TemporaryDirectory(prefix="kunren-check-") as cache,
        _in_silence(),
        without_bars_in_files(),
        preserved(),
    ):
        start = start_of(source, overrides, cache, findings)
        if start.trainer is not None:
            _of_trainer(start, cache, findings)
        if start.args is not None:
            _of_services(start, findings)
    return findings


def _of_trainer(start: Start, cache: str, findings: Findings) -> None:
    from kunren.cli.check_fit import check_fit
    from kunren.cli.check_room import check_room
    from kunren.cli.check_rows import Batch, batches_of, row_sets
    from kunren.cli.check_shared_rows import check_shared_rows
    from kunren.planning.throwaway import undone

    trainer = start.trainer
    batches: list[Batch] = []
    with undone(trainer), findings.going_on("collator"):
        _check_training(trainer)
        sets = row_sets(trainer)
        batches = batches_of(trainer, sets, findings)
        check_fit(trainer, start.run, sets, batches, findings)
        with findings.going_on("shared rows"):
            check_shared_rows(trainer, start.run, findings)
    wrong = next((one for one in ("collator", "vocabulary", "labels", "positions") if findings.has_failed(one)), None)
    if wrong is not None:  # on a GPU such a step would end the process
        findings.skip("step", wrong)
        return
    with undone(trainer), findings.going_on("step"):
        _steps(start, batches, cache, findings)
    wrong = next((one for one in ("memory", "loss") if findings.has_failed(one)), None)
    if not any(one.requires_grad for one in trainer.model.parameters()):
        wrong = "gradients"
    if wrong is not None:
        findings.skip("plan", wrong)
        return
    with findings.going_on("memory"):
        check_room(trainer, batches, findings)


def _check_training(trainer: Any) -> None:
    from kunren.seams.validation import check_training

    check_training(trainer)


def _steps(start: Start, batches: list[Any], cache: str, findings: Findings) -> None:
    from kunren.cli.check_rows import row_sets
    from kunren.cli.check_steps import check_steps
    from kunren.data.loaders import batches_in, examples_in
    from kunren.plan import Cursor, make_plan
    from kunren.seams.lifecycle import start_state

    trainer = start.trainer
    trainer.prepare_loss_scale()
    loader = trainer.get_train_dataloader()
    plan = make_plan(
        trainer.args, batches_per_epoch=batches_in(loader), num_examples=examples_in(loader), start=Cursor()
    )
    start_state(trainer, plan)
    check_steps(trainer, start.run, plan, row_sets(trainer), batches, cache, findings)


def _of_services(start: Start, findings: Findings) -> None:
    from pathlib import Path

    from kunren.cli.check_room import check_resuming
    from kunren.cli.check_services import check_hub, check_trackers

    with findings.going_on("resuming"):
        check_resuming(start.args, Path(start.args.output_dir), findings)
    with findings.going_on("trackers"):
        check_trackers(start.args, findings)
    if start.pushes:
        with findings.going_on("hub"):
            check_hub(start.args, findings)


@contextmanager
def _in_silence() -> Iterator[None]:
    """Inside, loggers keep to themselves what the table says, and warnings are not shown."""
    loggers = [logging.getLogger(name) for name in ("kunren", "transformers", "datasets")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    said = os.environ.get("TRANSFORMERS_VERBOSITY")
    os.environ["TRANSFORMERS_VERBOSITY"] = "critical"  # for transformers that is not loaded yet
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.pop("TRANSFORMERS_VERBOSITY")
        os.environ |= {"TRANSFORMERS_VERBOSITY": said} if said is not None else {}
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
