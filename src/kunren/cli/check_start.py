"""From the argument of `kunren check` to a Trainer, stage by stage: one that fails does not keep the others back."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.arguments import TrainingArguments
from kunren.arguments.effective import default_values
from kunren.cli.check_findings import Findings
from kunren.cli.plan_config import script_in, trainer_of
from kunren.cli.run_config import OWN_KEYS, ConfigError, build_arguments, build_run, read_config, read_overrides

if TYPE_CHECKING:
    from kunren.hf.tasks.base import Task
    from kunren.hf.tasks.preparation import PreparedRun
    from kunren.hf.tasks.request import Request

_NEEDED = ("model", "task", "train_dataset")


@dataclass
class Start:
    """What there is to check: a Trainer if one could be made, and the run of a file. `pushes`: to a hub, if it ran."""

    args: Any
    own: dict[str, Any]
    trainer: Any = None
    run: PreparedRun | None = None
    pushes: bool = False


def start_of(source: str, overrides: Sequence[str], cache: str, findings: Findings) -> Start:
    """Make what `source` describes; ConfigError for a file, a script or a command line that cannot be read."""
    script = script_in(source)
    if script is None:
        return _of_file(read_config(Path(source), or_script=True) | read_overrides(overrides), cache, findings)
    if overrides:
        raise ConfigError(f"{' '.join(overrides)}: a script sets its arguments itself.")
    with _without_repository():
        trainer = trainer_of(*script)
    args = trainer.args
    start = Start(args, {}, trainer, pushes=bool(args.push_to_hub))
    args.push_to_hub = False
    findings.ok("arguments", "script", source=source, name=type(trainer).__name__)
    return start


def _of_file(values: dict[str, Any], cache: str, findings: Findings) -> Start:
    own = {name: value for name, value in values.items() if name in OWN_KEYS}
    args: TrainingArguments | None = None
    try:
        args, own = build_arguments(values)
    except ConfigError as error:
        findings.fail("arguments", "error", error=error)
    if args is not None:
        defaults = default_values()
        changed = [name for name, value in args.to_dict().items() if value != defaults.get(name, value)]
        findings.ok("arguments", "arguments", count=len(changed))
    start = Start(args, own, pushes=bool(args is not None and args.push_to_hub))
    missing = [name for name in _NEEDED if not own.get(name)]
    if missing:
        findings.fail("arguments", "missing keys", names=", ".join(missing), first=missing[0])
    if args is not None:
        args.push_to_hub = False
    prepared = _stages(start, cache, findings)
    if not prepared or args is None or missing:
        return start
    with findings.going_on("rows"):
        start.run = build_run(args, own, cache, is_to_train=True)
        sets = {key: rows.column_names for key, rows in start.run.sets.items()}
        columns = ", ".join(dict.fromkeys(name for names in sets.values() for name in names))
        findings.ok("rows", "rows", sets=", ".join(sets), columns=columns)
    if start.run is not None:
        _weights(start, findings)
    return start


def _stages(start: Start, cache: str, findings: Findings) -> bool:
    """Each stage by itself; whether all that there are have come to be."""
    from kunren.hf import run_stages

    own, given = start.own, start.own.get
    args = start.args if start.args is not None else TrainingArguments("trainer_output")
    request = run_stages.request_of(own)
    kind: type[Task] | None = None
    rows: dict[str, Any] = {}
    config = tokenizer = None
    if given("task"):
        with findings.going_on("task"):
            kind = run_stages.find_task(request, args)
    if given("train_dataset"):
        with findings.going_on("data"):
            rows = run_stages.find_data(request, cache)
            counts = (f"{key} {len(one):,}" for key, one in rows.items())
            findings.ok("data", "data", rows=", ".join(counts))
    if given("model"):
        with findings.going_on("model"):
            config = run_stages.find_model(request, kind)
            findings.ok("model", "model", kind=config.model_type, place=request.model)
            if kind is not None:
                findings.ok("task", "task", task=kind.name, model=config.model_type)
        if kind is not None and (config is not None or given("tokenizer") is not None):
            with findings.going_on("tokenizer"):
                tokenizer = run_stages.find_tokenizer(request, kind, rows)
                _tell_tokenizer(tokenizer, findings)
    if kind is None or not rows or config is None or findings.has_failed("tokenizer"):
        return False
    with findings.going_on("columns"):
        task = run_stages.find_columns(args, request, kind, rows, config, tokenizer)
        findings.ok("columns", "columns", columns=_columns_told(task, request, rows))
    return not findings.has_failed("columns")


def _tell_tokenizer(tokenizer: Any, findings: Findings) -> None:
    if tokenizer is None:
        findings.warn("tokenizer", "no tokenizer")
        return
    count = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    findings.ok("tokenizer", "tokenizer", kind=type(tokenizer).__name__, count=count)


def _columns_told(task: Task, request: Request, rows: dict[str, Any]) -> str:
    """What the encoding takes of the rows, else what they have."""
    there = rows["train_dataset"].column_names
    call = task.encoding("train_dataset")
    used: list[str] = []
    for value in call.options.values() if call is not None else ():
        used += [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]
    return ", ".join(dict.fromkeys(name for name in used if name in there)) or ", ".join(there)


def _weights(start: Start, findings: Findings) -> None:
    assert start.run is not None
    with findings.going_on("weights"), _noted_warnings() as told:
        start.trainer = trainer = start.run.trainer()
        if any("has no weights" in one for one in told):
            findings.warn("weights", "random weights", place=start.own["model"])
        else:
            parameters = list(trainer.model.parameters())
            trained = sum(one.numel() for one in parameters if one.requires_grad)
            count, name = sum(one.numel() for one in parameters), type(trainer.model).__name__
            findings.ok("weights", "weights", name=name, count=count, trained=trained)


@contextmanager
def _noted_warnings() -> Iterator[list[str]]:
    """What kunren's own code for models warns of, which a table tells."""
    told: list[str] = []
    logger = logging.getLogger("kunren.hf.tasks.models")

    def note(record: logging.LogRecord) -> bool:
        told.append(record.getMessage())
        return False

    level = logger.level
    logger.addFilter(note)
    logger.setLevel(logging.WARNING)
    try:
        yield told
    finally:
        logger.setLevel(level)
        logger.removeFilter(note)


@contextmanager
def _without_repository() -> Iterator[None]:
    """Inside, a Trainer that is made with push_to_hub makes no repository."""
    from kunren.seams.sharing import SharingSeams

    made = SharingSeams.init_hf_repo
    SharingSeams.init_hf_repo = lambda self, token=None, private=None: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        SharingSeams.init_hf_repo = made  # type: ignore[method-assign]
