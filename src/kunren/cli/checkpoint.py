"""`kunren checkpoint ls|verify|diff|merge`: what is in checkpoints, are they whole, what differs. Runs no code."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.planning.units import human_size

if TYPE_CHECKING:
    from kunren.cli.checkpoint_diff import Difference

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_LISTED_TENSORS = 20


class CheckpointCommandError(Exception):
    """What was asked for cannot be read; the message says why."""


def add_command(commands: Commands) -> None:
    """Add `checkpoint` to the commands of the top parser."""
    parser = commands.add_parser(
        "checkpoint",
        help="list, verify, compare and merge checkpoints",
        description="List, verify, compare and merge checkpoints. Reading one never runs code that is in it.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    listing = actions.add_parser("ls", help="what is in a run folder or a checkpoint")
    listing.add_argument("path", type=Path, metavar="PATH", help="a run folder, or one checkpoint")
    verifying = actions.add_parser(
        "verify",
        help="is every byte as it was written",
        description="Compare every file with its digest. The exit status is 1 if anything is damaged.",
    )
    verifying.add_argument("path", type=Path, metavar="PATH", help="a run folder, or one checkpoint")
    comparing = actions.add_parser(
        "diff",
        help="what differs between two checkpoints",
        description="What differs between two checkpoints. The exit status is 1 if weights, optimizer or state do, "
        "and 0 where nothing or only arguments, the log or other files do.",
    )
    comparing.add_argument("first", type=Path, metavar="A", help="a checkpoint")
    comparing.add_argument("second", type=Path, metavar="B", help="another one")
    merging = actions.add_parser(
        "merge",
        help="make one in parts, of FSDP or DeepSpeed, into a folder that from_pretrained reads",
        description="Put the parts of a checkpoint of FSDP or DeepSpeed together, as a folder that from_pretrained "
        "reads. It takes no GPU, and no more memory than one file of weights: 5 GB.",
    )
    merging.add_argument("path", type=Path, metavar="CHECKPOINT", help="a checkpoint whose weights are in parts")
    merging.add_argument("--output", type=Path, metavar="DIR", help="a new folder; by default CHECKPOINT-merged")
    functions = ((listing, run_ls), (verifying, run_verify), (comparing, run_diff), (merging, run_merge))
    for action, function in functions:
        action.add_argument("--json", action="store_true", help="print JSON")
        action.set_defaults(run=run, function=function)


def run(options: argparse.Namespace) -> int:
    """Run one action: 0, 1 for damage or differences, 2 for what cannot be read."""
    try:
        return int(options.function(options))
    except (CheckpointCommandError, OSError, ValueError, ImportError) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2


def run_ls(options: argparse.Namespace) -> int:
    """List the checkpoints of a run, or the files of one checkpoint."""
    from kunren.cli import checkpoint_contents as contents

    folder: Path = options.path
    checkpoints = checkpoints_at(folder)
    if checkpoints == [folder]:
        described = contents.describe(folder)
        _print(options.json, described, lambda: _one(described))
    else:
        rows = contents.describe_run(checkpoints)
        _print(options.json, {"folder": str(folder), "checkpoints": rows}, lambda: _several(rows))
    return 0


def run_verify(options: argparse.Namespace) -> int:
    """Read every byte; 1 if anything is damaged."""
    from kunren.cli import checkpoint_contents as contents

    found = [contents.verify(checkpoint) for checkpoint in checkpoints_at(options.path)]
    _print(options.json, {"checkpoints": found}, lambda: _verified(found))
    return int(any(one["problems"] for one in found))


def run_diff(options: argparse.Namespace) -> int:
    """Compare two checkpoints; 1 if anything differs."""
    from kunren.cli.checkpoint_diff import compare

    for folder in (options.first, options.second):
        if checkpoints_at(folder) != [folder]:
            raise CheckpointCommandError(f"{folder} is a folder of checkpoints: name one of them to compare.")
    difference = compare(options.first, options.second)
    _print(options.json, difference.as_dict(), lambda: _difference(difference))
    return int(not difference.values_are_equal)


def run_merge(options: argparse.Namespace) -> int:
    """Write the whole weights into a new folder."""
    from kunren.checkpoint.spread.merging import merge

    if checkpoints_at(options.path) != [options.path]:
        raise CheckpointCommandError(f"{options.path} is a folder of checkpoints: name one of them to merge.")
    merged = merge(options.path, options.output)
    found = {"path": str(merged.folder), "files": merged.files, "tensors": merged.tensors, "bytes": merged.bytes}
    _print(
        options.json,
        found,
        lambda: f"{merged.folder}: {merged.tensors} tensors in {len(merged.files)} files, {human_size(merged.bytes)}",
    )
    return 0


def checkpoints_at(path: Path) -> list[Path]:
    """The checkpoint that `path` is, or those of the run that it is; an error says that it is neither."""
    from kunren.checkpoint.layout import list_checkpoints, step_of
    from kunren.cli.checkpoint_contents import looks_like_a_checkpoint

    if not path.is_dir():
        raise CheckpointCommandError(f"{path} {'is a file, not a folder' if path.exists() else 'does not exist'}.")
    if step_of(path) is not None:
        return [path]
    found = list_checkpoints(path)
    if not found and looks_like_a_checkpoint(path):
        return [path]
    if not found:
        raise CheckpointCommandError(f"{path} is no checkpoint and holds no folder named checkpoint-N.")
    return found


def _print(as_json: bool, value: Any, text: Any) -> None:
    if as_json:
        from kunren.base.strict_json import dumps

        print(dumps(value), end="")
    else:
        print(text())


def _state(described: dict[str, Any]) -> str:
    if described["problems"]:
        return f"damaged: {'; '.join(described['problems'])}"
    return "whole" if described["has_manifest"] else "whole (no manifest: sizes and digests are not known)"


def _epoch(described: dict[str, Any]) -> str:
    return "?" if described["epoch"] is None else f"{described['epoch']:.2f}"


def _saved(described: dict[str, Any]) -> str:
    return described["saved"].replace("T", " ") if described["saved"] else "?"


def _several(rows: list[dict[str, Any]]) -> str:
    from kunren.base.text_table import text_table

    cells = [
        (
            str(row["step"]),
            _epoch(row),
            human_size(row["bytes"]),
            _saved(row),
            "best" if row["best"] else "",
            _state(row),
        )
        for row in rows
    ]
    return text_table(("step", "epoch", "size", "saved", "best", "state"), cells, right=("step", "epoch", "size"))


def _one(described: dict[str, Any]) -> str:
    from kunren.base.text_table import text_table

    facts = [
        ("checkpoint", described["path"]),
        ("step", str(described["step"])),
        ("epoch", _epoch(described)),
        ("saved", _saved(described)),
        ("size", human_size(described["bytes"])),
        ("state", _state(described)),
        ("best", "yes" if described["best"] else "no"),
        ("weights", f"{described['tensors']} tensors, {described['parameters']:,} parameters"),
    ]
    files = [
        (
            file["name"],
            human_size(file["bytes"]),
            "" if file["tensors"] is None else str(file["tensors"]),
            "" if file["parameters"] is None else f"{file['parameters']:,}",
        )
        for file in described["files"]
    ]
    width = max(len(name) for name, _ in facts) + 2
    header = ("file", "size", "tensors", "parameters")
    lines = [f"{name:<{width}}{value}" for name, value in facts]
    return "\n".join([*lines, "", text_table(header, files, right=header[1:])])


def _verified(found: list[dict[str, Any]]) -> str:
    lines = []
    for one in found:
        checked = f"{one['files']} files, {human_size(one['bytes'])}"
        if one["problems"]:
            lines.append(f"{one['path']}: damaged")
            lines += [f"  {problem}" for problem in one["problems"]]
        elif one["has_manifest"]:
            lines.append(f"{one['path']}: whole ({checked}, every digest is right)")
        else:
            lines.append(f"{one['path']}: nothing is cut short ({checked}; no manifest, so no digests)")
    return "\n".join(lines)


def _difference(difference: Difference) -> str:
    from kunren.base.text_table import text_table

    if difference.is_empty:
        return f"No difference: {difference.equal_tensors} tensors, arguments, state and optimizer are equal."
    lines = []
    for title, rows in (("state", difference.state), ("arguments", difference.arguments)):
        if rows:
            cells = [(name, str(one), str(other)) for name, one, other in rows]
            lines += [text_table((title, "A", "B"), cells), ""]
    lines += [f"note: {note}" for note in difference.notes]
    for side, names in (("A", difference.only_first), ("B", difference.only_second)):
        if names:
            lines.append(f"tensors only in {side}: {len(names)}")
            lines += [f"  {name}" for name in names[:_LISTED_TENSORS]]
            lines += [f"  and {len(names) - _LISTED_TENSORS} more"] if len(names) > _LISTED_TENSORS else []
    lines.append(f"tensors that are equal: {difference.equal_tensors}")
    if difference.tensors:
        most = sorted(difference.tensors, key=lambda one: one.sort_key)
        header = ("tensor", "shape and type", "max |A - B|", "elements that differ")
        largest = [(one.name, one.form, one.largest, one.share) for one in most[:_LISTED_TENSORS]]
        lines += ["", text_table(header, largest)]
        if len(most) > _LISTED_TENSORS:
            lines.append(f"and {len(most) - _LISTED_TENSORS} more (--json names all)")
        lines.append("")
    lines.append(f"optimizer: {difference.optimizer}")
    if difference.files:
        lines.append(f"other files: {'; '.join(difference.files)}")
    return "\n".join(lines)
