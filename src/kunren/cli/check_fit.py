"""Whether rows fit the model: tokens its embedding, labels its head, lengths its positions; and what is lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from kunren.cli.check_findings import FAILED, OK, WARNING, Findings
from kunren.cli.check_rows import READ_SECONDS, Batch, Extremes, RowSet, extremes, rows_without_text, spread
from kunren.cli.check_words import SENTENCES
from kunren.hf.tasks.token_rows import positions_of
from kunren.losses.counting import is_zero
from kunren.model.signature import base_of

if TYPE_CHECKING:
    from kunren.hf.tasks.preparation import PreparedRun
    from kunren.trainer import Trainer

_LOOKED_AT = 200  # rows that are put into batches of one, to count their labels
_MANY = 0.2  # a share of tokens that are unknown
_FEW = 0.01  # a share that is not worth a warning


def check_fit(
    trainer: Trainer, run: PreparedRun | None, sets: list[RowSet], batches: list[Batch], findings: Findings
) -> None:
    """Every check that needs no step."""
    model: Any = base_of(trainer.model)
    with findings.going_on("tokenizer"):
        _unknown(trainer, batches, findings)
    with findings.going_on("vocabulary"):
        _vocabulary(trainer, model, sets, batches, findings)
    with findings.going_on("labels"):
        _labels(trainer, model, sets, batches, findings)
    with findings.going_on("positions"):
        _positions(model, batches, findings)
    with findings.going_on("empty text"):
        _empty_text(trainer, sets, findings)
    with findings.going_on("truncation"):
        _truncation(run, sets, findings)
    if not findings.has_failed("collator"):
        with findings.going_on("counted labels"):
            _counted(trainer, sets, findings)


def _unknown(trainer: Trainer, batches: list[Batch], findings: Findings) -> None:
    """A tokenizer that knows few of the words is one of another model, or one without its files."""
    unknown = getattr(trainer.processing_class, "unk_token_id", None)
    pad = getattr(trainer.processing_class, "pad_token_id", None)
    tokens = [batch.data.get("input_ids") for batch in batches if isinstance(batch.data, Mapping)]
    counted = [one[one != pad] if pad is not None else one for one in tokens if isinstance(one, torch.Tensor)]
    total = sum(one.numel() for one in counted)
    if unknown is None or pad == unknown or not total:
        return
    share = sum(int((one == unknown).sum()) for one in counted) / total
    if share > _MANY:
        findings.warn("tokenizer", "unknown tokens", share=f"{share:.0%}")


def _vocabulary(trainer: Trainer, model: Any, sets: list[RowSet], batches: list[Batch], findings: Findings) -> None:
    size = _rows_of(_answer(model, "get_input_embeddings"))
    if size is None:
        return
    largest = None
    for one in sets:
        found = _extremes(one, "input_ids", batches)
        if found is None:
            continue
        if found.largest >= size or found.smallest < 0:
            wrong = (
                (found.largest, found.largest_row) if found.largest >= size else (found.smallest, found.smallest_row)
            )
            findings.fail("vocabulary", "vocabulary too small", row=wrong[1], key=one.key, largest=wrong[0], size=size)
            return
        largest = max(found.largest, largest or 0)
    tokenizer = trainer.processing_class
    tokens = len(tokenizer) if hasattr(tokenizer, "__len__") else 0
    if largest is None:
        return
    if tokens > size:
        findings.warn("vocabulary", "tokenizer larger", tokens=tokens, size=size)
    else:
        findings.ok("vocabulary", "vocabulary", largest=largest, size=size)


def _labels(trainer: Trainer, model: Any, sets: list[RowSet], batches: list[Batch], findings: Findings) -> None:
    size = _outputs_of(model)
    if size is None or list(trainer.label_names) != ["labels"]:
        return
    seen: list[Extremes] = []
    for one in sets:
        found = _extremes(one, "labels", batches, trainer.ignored_label)
        if found is None:
            continue
        if found.smallest < 0 or found.largest >= size:
            wrong = (found.smallest, found.smallest_row) if found.smallest < 0 else (found.largest, found.largest_row)
            values = {"row": wrong[1], "label": wrong[0], "size": size, "last": size - 1}
            findings.fail("labels", "labels out of range", key=one.key, **values)
            return
        seen.append(found)
    if seen:
        smallest, largest = min(one.smallest for one in seen), max(one.largest for one in seen)
        findings.ok("labels", "labels", smallest=smallest, largest=largest, size=size)


def _extremes(one: RowSet, column: str, batches: list[Batch], ignored: int | None = None) -> Extremes | None:
    """Of all rows where they have the column; else of the batches that a collator has made."""
    found = extremes(one, column, ignored)
    if found is not None:
        return found
    for batch in batches:
        values = batch.data.get(column) if batch.key == one.key and isinstance(batch.data, Mapping) else None
        if not isinstance(values, torch.Tensor) or values.is_floating_point() or not values.numel():
            continue
        table = values.reshape(len(values), -1) if values.dim() else values.reshape(1, 1)
        counted = table if ignored is None else table.masked_fill(table == ignored, 0)
        low, high = counted.min(dim=1).values, counted.max(dim=1).values
        rows = batch.rows if len(batch.rows) == len(table) else list(range(len(table)))
        at, to = int(low.argmin()), int(high.argmax())
        here = Extremes(int(low[at]), rows[at], int(high[to]), rows[to])
        if found is None or here.largest > found.largest or here.smallest < found.smallest:
            found = here
    return found


def _answer(model: Any, name: str) -> Any:
    """What the model says of a part of itself; None where it does not."""
    try:
        return getattr(model, name)()
    except (AttributeError, NotImplementedError, TypeError):
        return None


def _rows_of(module: Any) -> int | None:
    weight = getattr(module, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def _outputs_of(model: Any) -> int | None:
    """How many classes, or tokens, the head tells apart; None where it is not known, or predicts numbers."""
    head = _rows_of(_answer(model, "get_output_embeddings"))
    if head is not None:
        return head
    config = getattr(model, "config", None)
    kind, count = getattr(config, "problem_type", None), getattr(config, "num_labels", None)
    name = type(model).__name__
    if not isinstance(count, int) or count < 2 or kind in ("regression", "multi_label_classification"):
        return None
    return count if "Classification" in name else None


def _positions(model: Any, batches: list[Batch], findings: Findings) -> None:
    shapes = [
        values.shape[-1]
        for batch in batches
        if isinstance(batch.data, Mapping)
        for name in ("input_ids", "decoder_input_ids")
        if isinstance(values := batch.data.get(name), torch.Tensor) and values.dim() > 1
    ]
    if not shapes:
        return
    longest = max(shapes)
    table, config = positions_of(model), getattr(model, "config", None)
    said = getattr(config, "max_position_embeddings", None)
    if table is not None and longest > table:
        findings.fail("positions", "positions too few", longest=longest, limit=table)
    elif table is None and isinstance(said, int) and longest > said:
        findings.warn("positions", "positions beyond", longest=longest, limit=said)
    elif table is not None or isinstance(said, int):
        findings.ok("positions", "positions", longest=longest, limit=table or said)


def _empty_text(trainer: Trainer, sets: list[RowSet], findings: Findings) -> None:
    total, is_clean = 0, True
    for one in sets:
        if one.lengths is None:
            continue
        total += len(one.lengths)
        if empty := rows_without_text(one, trainer):
            is_clean = False
            count = {"count": len(empty), "total": len(one.lengths)}
            findings.warn("empty text", "empty text", key=one.key, first=empty[0], **count)
    if total and is_clean:
        findings.ok("empty text", "no empty text", total=total)


def _truncation(run: PreparedRun | None, sets: list[RowSet], findings: Findings) -> None:
    if run is None or run.task.changes_rows:
        return
    for one in sets:
        call = run.task.encoding(one.key) if one.key in run.sets else None
        length = call.options.get("max_length") if call is not None else None
        if not isinstance(length, int) or one.lengths is None or not len(one.lengths):
            continue
        cut = float((one.lengths >= length).double().mean())
        remedy = SENTENCES["truncated"][findings.language] if cut > _FEW else ""
        verdict = WARNING if cut > _FEW else OK
        values = {"key": one.key, "length": length, "share": f"{cut:.1%}" if cut else "0%", "remedy": remedy}
        findings.add("truncation", verdict, "truncation", **values)


def _counted(trainer: Trainer, sets: list[RowSet], findings: Findings) -> None:
    """Each row in a batch of its own; chance has a part in what a collator for masks makes of it."""
    seen, is_clean = 0, True
    for one in sets:
        if not one.can_be_indexed or trainer.ignored_label is None:
            continue
        numbers = list(dict.fromkeys([*one.longest(1), *spread(len(one.rows), _LOOKED_AT)]))
        begun, read, without = time.monotonic(), 0, []
        for number in numbers:
            without += [number] if is_zero(trainer.counted(one.of([number]))) else []
            read += 1
            if time.monotonic() - begun > READ_SECONDS:
                break
        seen += read
        if not without:
            continue
        is_clean = False
        verdict = FAILED if len(without) == read else WARNING if len(without) > _FEW * read else OK
        values = {"count": len(without), "seen": read, "key": one.key, "first": min(without)}
        findings.add("counted labels", verdict, "rows without counted labels", **values)
    if seen and is_clean:
        findings.ok("counted labels", "counted labels", seen=seen)
