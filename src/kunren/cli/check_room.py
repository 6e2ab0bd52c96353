"""What a whole run takes and whether it is there: memory and disk; and what it goes on from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.checkpoint import layout
from kunren.cli.check_findings import FAILED, WARNING, Findings
from kunren.cli.check_rows import Batch
from kunren.cli.check_words import SENTENCES
from kunren.cli.words_of_a_plan import in_language
from kunren.planning.forecast import Forecast, forecast
from kunren.planning.storage import Kept
from kunren.planning.units import human_size, human_time
from kunren.planning.unknown import Unknown

if TYPE_CHECKING:
    from kunren.trainer import Trainer

_OF_ROOM = ("Memory will not do", "The model does not fit", "The disk will not do", "Nothing can be written")
_OF_RESUMING = "resume_from_checkpoint="


def check_room(trainer: Trainer, batches: list[Batch], findings: Findings) -> None:
    """Plan, memory and disk, measured with the longest rows together."""
    longest = next((one.data for one in batches if one.key == "train_dataset" and one.which == "longest"), None)
    found = forecast(trainer, longest)
    language = findings.language
    seconds = found.seconds
    time = "" if isinstance(seconds, Unknown) else SENTENCES["time"][language].format(human_time(seconds))
    findings.ok("plan", "plan", steps=found.plan.max_steps, rows=found.effective_batch, time=time)
    for warning in found.warnings:
        if not warning.startswith((*_OF_ROOM, _OF_RESUMING)):
            findings.warn("plan", "plan warning", warning=in_language(warning, language))
    _memory(found, findings)
    _disk(found, findings)


def _memory(found: Forecast, findings: Findings) -> None:
    peak, weights, free = found.peak_bytes, found.weights, found.free_device_bytes
    smaller = SENTENCES["smaller"][findings.language]
    if isinstance(peak, Unknown) or isinstance(weights, Unknown):
        short = isinstance(found.step, Unknown) and "memory" in found.step.why
        why = found.step.why if isinstance(found.step, Unknown) else str(peak)
        findings.add("memory", FAILED if short else WARNING, "memory unknown", why=why)
        return
    beside = peak - weights.parameter_bytes - weights.buffer_bytes  # which are in memory already
    if found.device == "cpu":
        beside += found.snapshot_bytes
    values = {
        "peak": human_size(peak),
        "form": in_language(str(found.largest_batch), findings.language),
        "device": found.device,
        "free": "?" if free is None else human_size(free),
    }
    if free is not None and beside > free:
        findings.fail("memory", "memory short", remedy=smaller, **values)
    else:
        findings.ok("memory", "memory", **values)


def _disk(found: Forecast, findings: Findings) -> None:
    folder = Path(found.output_dir)
    existing = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    if not os.access(existing, os.W_OK) or not existing.is_dir():
        findings.fail("disk", "not writable", folder=existing, error="")
        return
    kept, needed, free = found.kept, found.disk_bytes, found.free_disk_bytes
    if not isinstance(kept, Kept) or isinstance(needed, Unknown) or free is None:
        why = next((one.why for one in (kept, needed) if isinstance(one, Unknown)), "?")
        findings.warn("disk", "disk unknown", why=why)
        return
    model = 0 if isinstance(found.weights, Unknown) else found.weights.parameter_bytes  # which is saved at the end
    values = {"count": kept.at_once, "needed": human_size(needed + model), "free": human_size(free)}
    if needed + model > free:
        findings.fail("disk", "disk short", **values)
    else:
        findings.ok("disk", "disk" if kept.saved else "no checkpoints", **values)


def check_resuming(args: Any, folder: Path, findings: Findings) -> None:
    """Whether there is what the run is to go on from; or, where it begins, what lies in its way."""
    words = {"true": True, "false": False, "": False, "none": None}
    asked = args.resume_from_checkpoint
    asked = words.get(asked.lower(), asked) if isinstance(asked, str) else asked
    checkpoint = layout.resolve(asked, folder)
    if checkpoint is not None:
        findings.ok("resuming", "resuming", checkpoint=checkpoint)
    elif asked:
        findings.warn("resuming", "no checkpoint to resume", folder=folder)
    elif args.save_strategy != "no" and (present := [path.name for path in layout.list_checkpoints(folder)]):
        findings.warn("resuming", "other checkpoints", folder=folder, names=", ".join(present))
