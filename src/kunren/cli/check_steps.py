"""What only a step tells: loss, gradients, an update, an evaluation, a generation, a save and a load. All on a copy."""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from kunren.base.nested import map_tensors
from kunren.checkpoint.best import metric_value
from kunren.cli.check_findings import FAILED, SKIPPED, WARNING, Findings
from kunren.cli.check_rows import Batch, RowSet
from kunren.cli.check_words import SENTENCES
from kunren.cli.run_config import words_of
from kunren.data.columns import is_column_dataset
from kunren.loop.guards.smaller_pieces import free_memory, is_out_of_memory
from kunren.planning.measured_step import missing_host_memory
from kunren.planning.throwaway import copied_model
from kunren.planning.units import human_size
from kunren.seams.lifecycle import switch_features_on

if TYPE_CHECKING:
    from kunren.hf.tasks.preparation import PreparedRun
    from kunren.plan import Plan
    from kunren.trainer import Trainer

_NAMED = 3  # weights that are told by name
_FIRST_ROWS = 16  # of an evaluation set whose rows become several


def check_steps(
    trainer: Trainer,
    run: PreparedRun | None,
    plan: Plan,
    sets: list[RowSet],
    batches: list[Batch],
    cache: str,
    findings: Findings,
) -> None:
    """Within `undone`. What is computed here is put back, and what is written is removed."""
    missing = missing_host_memory(trainer)
    if missing is not None:
        findings.fail("memory", "memory unknown", why=missing.why)
        findings.skip("step", "memory")
        return
    with copied_model(trainer):
        if any(one.requires_grad for one in trainer.model.parameters()):
            _trained(trainer, plan, [batch for batch in batches if batch.key == "train_dataset"], findings)
        else:
            findings.fail("gradients", "nothing trained", name=type(trainer.model).__name__)
            findings.skip("step", "gradients")
        if trainer.eval_dataset is not None and not findings.has_failed("step", "memory"):
            with findings.going_on("evaluation"):
                _evaluation(trainer, run, sets, cache, findings)
            if getattr(trainer.args, "predict_with_generate", False):
                with findings.going_on("generation"):
                    _generation(trainer, batches, findings)
        with findings.going_on("saving"):
            _saving(trainer, findings)


def _trained(trainer: Trainer, plan: Plan, batches: list[Batch], findings: Findings) -> None:
    """A training of one step."""
    if not batches:
        findings.add("step", SKIPPED, "data that is read once")
        return
    trainer.is_in_train = True
    with findings.going_on("step"):
        switch_features_on(trainer)
        trainer.create_optimizer_and_scheduler(num_training_steps=plan.max_steps)
        assert trainer.optimizer is not None
        trainer.model_wrapped = trainer.engine.prepare(trainer.model, trainer.optimizer)
        trainer.model.train()
        trainer.switch_optimizer("train")
        with findings.going_on("loss"):
            _losses(trainer, batches, findings)
        wrong = next((one for one in ("loss", "memory") if findings.has_failed(one)), None)
        if wrong is not None:
            findings.skip("step", wrong)
        else:
            _update(trainer, plan, findings)
        trainer.engine.zero_gradients()
        trainer.switch_optimizer("eval")
    trainer.is_in_train = False


def _losses(trainer: Trainer, batches: list[Batch], findings: Findings) -> None:
    """Forward and backward of each; their gradients add up."""
    language, told = findings.language, []
    trainer.engine.zero_gradients()
    for batch in batches:
        fresh = map_tensors(lambda tensor: tensor, batch.data)
        windows, num_items, _ = trainer._get_batches(iter([fresh]), 1)
        try:
            loss = float(trainer.training_step(trainer.model_wrapped, windows[0], num_items))
        except Exception as error:
            if is_out_of_memory(error):
                values = {"why": words_of(error), "form": batch.told(language)["rows"]}
                findings.fail("memory", "memory ran out", remedy=SENTENCES["smaller"][language], **values)
                trainer.engine.zero_gradients()
                free_memory(trainer.engine.device)
                return
            findings.fail("loss", "step fails", error=words_of(error), **_said(batch, language))
            continue
        if not math.isfinite(loss):
            findings.fail("loss", "loss not finite", value=loss, **_said(batch, language))
        told.append(f"{batch.told(language)['which']} {loss:.4g}")
    if told and not findings.has_failed("loss"):
        findings.ok("loss", "loss", values=", ".join(told))


def _said(batch: Batch, language: str) -> dict[str, str]:
    return {name: text for name, text in batch.told(language).items() if name != "key"}


def _update(trainer: Trainer, plan: Plan, findings: Findings) -> None:
    optimizer, model = trainer.optimizer, trainer.model
    assert optimizer is not None
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    missing = [name for name, one in trained.items() if one.grad is None]
    if len(missing) == len(trained):
        findings.fail("gradients", "no gradients")
        findings.skip("step", "gradients")
        return
    is_scaled = trainer.engine.scaler is not None  # then gradients of a first step may well overflow
    wrong = [name for name, one in trained.items() if one.grad is not None and not _is_finite(one.grad)]
    if wrong and not is_scaled:
        findings.fail("gradients", "gradients not finite", names=_named(wrong))
        findings.skip("step", "gradients")
        return
    if missing:
        values = {"missing": len(missing), "count": len(trained), "names": _named(missing)}
        findings.warn("gradients", "some without gradients", **values)
    else:
        findings.ok("gradients", "gradients", count=len(trained))
    trainer.engine.clip_gradients(optimizer, plan.max_grad_norm)
    if not wrong:
        optimizer.step()
    wrong = [name for name, one in trained.items() if not _is_finite(one)]
    if wrong:
        findings.fail("step", "weights not finite", names=_named(wrong))
    else:
        findings.ok("step", "step", optimizer=type(optimizer).__name__)


def _is_finite(tensor: torch.Tensor) -> bool:
    values = tensor.coalesce().values() if tensor.is_sparse else tensor
    return bool(torch.isfinite(values).all())


def _named(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" (+{len(names) - _NAMED})" if len(names) > _NAMED else "")


# ---- evaluation


def _evaluation(trainer: Trainer, run: PreparedRun | None, sets: list[RowSet], cache: str, findings: Findings) -> None:
    evaluated = trainer.eval_dataset
    several: dict[Any, Any] = dict(evaluated) if isinstance(evaluated, Mapping) else {None: evaluated}
    metrics: dict[str, Any] = {}
    count = 0
    for name, dataset in several.items():
        key = "eval_dataset" if name is None else f"eval_dataset {name!r}"
        own = next((one for one in sets if one.key == key), None)
        some, is_whole = _some_rows(own, dataset)
        if run is not None:
            some = _with_its_metrics(trainer, run, own, some, cache)
        count += len(some)
        try:
            metrics |= trainer.evaluate(some, metric_key_prefix="eval" if name is None else f"eval_{name}")
        except Exception as error:
            # Code of the user's own may need all of the set.
            may_need_all = run is None and not is_whole and trainer.compute_metrics is not None
            text = "evaluation of some fails" if may_need_all else "evaluation fails"
            findings.add("evaluation", WARNING if may_need_all else FAILED, text, rows=len(some), error=words_of(error))
            return
    _tell_metrics(trainer, metrics, count, findings)


def _some_rows(own: RowSet | None, dataset: Any) -> tuple[Any, bool]:
    """A batch of the first and one of the longest rows; whether these are all."""
    if own is None or not own.can_be_indexed:
        return list(itertools.islice(iter(dataset), 8)), False
    numbers = _chosen(own)
    is_whole = len(numbers) == len(dataset)
    if is_column_dataset(dataset):
        return dataset.select(numbers), is_whole
    return torch.utils.data.Subset(dataset, numbers), is_whole


def _chosen(own: RowSet) -> list[int]:
    return sorted({*range(min(own.batch_size, len(own.rows))), *own.longest(own.batch_size)})


def _with_its_metrics(trainer: Trainer, run: PreparedRun, own: RowSet | None, some: Any, cache: str) -> Any:
    """The rows to evaluate, when the trainer has the metrics of a task, made for just these."""
    call = run.task.compute_metrics("eval_dataset")
    if call is None or "eval_dataset" not in run.sets:
        return some
    if not run.task.changes_rows and own is not None:
        numbers = _chosen(own)
        rows, encoded = run.rows["eval_dataset"].select(numbers), run.encoded["eval_dataset"].select(numbers)
        trainer.compute_metrics = call.bound(tokenizer=run.processor, rows=rows, encoded=encoded)
        return some
    from kunren.hf.run_stages import first_rows

    small = first_rows(run, _FIRST_ROWS, cache)
    trainer.compute_metrics = small.compute_metrics("eval_dataset")
    return small.sets["eval_dataset"]


def _tell_metrics(trainer: Trainer, metrics: dict[str, Any], rows: int, findings: Findings) -> None:
    speeds = ("_runtime", "_per_second")  # which no model is better by
    shown = {name: value for name, value in metrics.items() if not name.endswith(speeds)}
    told = ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else name for name, value in shown.items())
    numbers = {name: value for name, value in shown.items() if isinstance(value, float)}
    if wrong := [f"{name} {value}" for name, value in numbers.items() if not math.isfinite(value)]:
        # Of a mask by chance there may be none in a few rows.
        by_chance = any(one.check == "counted labels" and one.verdict != "ok" for one in findings.found)
        verdict = WARNING if by_chance else FAILED
        findings.add("evaluation", verdict, "evaluation not finite", metrics=", ".join(wrong))
    else:
        findings.ok("evaluation", "evaluation", metrics=told, rows=rows)
    name = trainer.args.metric_for_best_model
    if name is not None:
        with findings.going_on("best model"):
            findings.ok("best model", "best model", name=name, value=f"{metric_value(metrics, name):.4g}")


def _generation(trainer: Trainer, batches: list[Batch], findings: Findings) -> None:
    batch = next((one for one in batches if one.key.startswith("eval_dataset") and one.which == "longest"), None)
    batch = batch or next(one for one in batches if one.key.startswith("eval_dataset"))
    trainer.model.eval()
    fresh = map_tensors(lambda tensor: tensor, batch.data)
    _, tokens, _ = trainer.prediction_step(trainer.model, trainer._prepare_inputs(fresh), False)
    decode = getattr(trainer.processing_class, "decode", None)
    text = decode(tokens[0], skip_special_tokens=True) if callable(decode) else tokens[0].tolist()
    findings.ok("generation", "generation", rows=len(tokens), tokens=tokens.shape[1], example=repr(text)[:60])


# ---- saving


def _saving(trainer: Trainer, findings: Findings) -> None:
    """Into a folder on the disk of the output folder; the copy then has the weights that were read."""
    place = _beside(trainer.run_folder())
    try:
        folder = Path(tempfile.mkdtemp(prefix=".kunren-check-", dir=place))
    except OSError as error:
        findings.fail("saving", "not writable", folder=place, error=error.strerror)
        return
    try:
        begun = time.perf_counter()
        trainer._save_parts(folder)
        seconds = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        differing = _after_loading(trainer, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if differing:
        findings.fail("saving", "saving differs", names=_named(differing))
    else:
        findings.ok("saving", "saving", size=human_size(size), seconds=f"{seconds:.2g}", folder=place)


def _beside(output: Path) -> Path:
    """The folder that the output folder is or will be in, or itself where another disk is mounted there."""
    place = next(path for path in output.resolve().parents if path.is_dir())
    return output if output.is_dir() and output.stat().st_dev != place.stat().st_dev else place


def _after_loading(trainer: Trainer, folder: Path) -> list[str]:
    """The names of weights that are others once they were emptied and loaded."""
    trained = {name: one for name, one in trainer.model.named_parameters() if one.requires_grad}
    before = {name: one.detach().to("cpu", copy=True) for name, one in trained.items()}
    with torch.no_grad():
        for one in trained.values():
            one.detach().zero_()
    trainer._load_from_checkpoint(str(folder))
    if not trainer.args.save_only_model:
        trainer._load_optimizer_and_scheduler(str(folder))
    return [name for name, one in trained.items() if not _same(one.detach().cpu(), before[name])]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(((one == other) | (one.isnan() & other.isnan())).all())
