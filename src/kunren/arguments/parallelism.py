"""How many processes share what: the sizes in `parallelism_config`, whatever form they are given in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kunren.arguments.checks import refuse
from kunren.base.names import did_you_mean


@dataclass(frozen=True)
class Parallelism:
    """The dimensions of the mesh of processes, from the outermost to the innermost; names as Accelerate has them."""

    dp_replicate_size: int = 1  # groups that have all of the model
    dp_shard_size: int = 1  # processes that divide the weights, and have batches of their own
    cp_size: int = 1  # that divide the positions of each sequence
    sp_size: int = 1  # the same, by heads (Ulysses)
    tp_size: int = 1  # that divide each matrix product

    @property
    def on_one_batch(self) -> int:
        """Processes that work on the same batch together."""
        return self.cp_size * self.sp_size * self.tp_size

    @property
    def processes(self) -> int:
        return self.dp_replicate_size * self.dp_shard_size * self.on_one_batch

    def __str__(self) -> str:
        sizes = [f"{item.name}={getattr(self, item.name)}" for item in fields(self)]
        return ", ".join(text for text in sizes if not text.endswith("=1")) or "all sizes 1"


class ParallelSizes:
    """How many processes share what of this object's model, by the names that transformers has for asking."""

    args: Any

    def get_tp_size(self) -> int:
        """Processes that divide each matrix product."""
        return parallelism_of(getattr(self.args, "parallelism_config", None)).tp_size

    def get_cp_size(self) -> int:
        """Processes that divide the positions of each sequence."""
        return parallelism_of(getattr(self.args, "parallelism_config", None)).cp_size

    def get_sp_size(self) -> int:
        """The same, by heads."""
        return parallelism_of(getattr(self.args, "parallelism_config", None)).sp_size


def parallelism_of(config: Any) -> Parallelism:
    """The sizes of Accelerate's ParallelismConfig, of a dict with its names, or of nothing; ValueError for others."""
    names = [item.name for item in fields(Parallelism)]
    if config is None:
        return Parallelism()
    if isinstance(config, Mapping):
        for name in config:
            if name not in names:
                raise refuse(
                    "parallelism_config", dict(config), f"{name!r} is none of {names}.{did_you_mean(str(name), names)}"
                )
        given: dict[str, Any] = dict(config)
    else:
        given = {name: getattr(config, name, None) for name in names}
        if all(value is None for value in given.values()):
            raise refuse("parallelism_config", config, f"give Accelerate's ParallelismConfig, or a dict of {names}.")
    sizes = {name: 1 if value is None else value for name, value in given.items()}
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise refuse("parallelism_config", {name: size}, "a size is a whole number of processes, 1 or more.")
    return Parallelism(**sizes)


def check(args: Any) -> None:
    """What cannot be, or is not built, told when the arguments are made."""
    sizes = parallelism_of(args.parallelism_config)
    for name, what in (("cp_size", "context"), ("sp_size", "sequence")):
        if getattr(sizes, name) > 1:
            raise refuse(
                "parallelism_config",
                {name: getattr(sizes, name)},
                f"{what} parallelism is not built: its attention runs on GPUs only, where it could not be tried. Long "
                "sequences: batching='packed', activation_checkpointing=True, fsdp=True, or tp_size.",
            )
    if sizes.dp_shard_size > 1 and not args.fsdp:
        raise refuse(
            "parallelism_config", {"dp_shard_size": sizes.dp_shard_size}, "weights are divided by FSDP: set fsdp=True."
        )
    if args.fsdp and sizes.dp_replicate_size > 1 and sizes.dp_shard_size == 1:
        names, given = ("dp_replicate_size", "dp_shard_size"), args.parallelism_config
        told = {name: getattr(sizes, name) for name in names if not isinstance(given, Mapping) or name in given}
        raise refuse(
            "parallelism_config",
            told,
            "fsdp=True divides the weights among the processes of a group, and a group of one divides nothing. "
            "Raise dp_shard_size to 2 or more, or leave fsdp out for a copy of the model in each process."
            if "dp_shard_size" in told
            else "fsdp=True divides the weights among the processes of a group. Add how many a group has, "
            "dp_shard_size, or leave fsdp out for a copy of the model in each process.",
        )
    if args.deepspeed and sizes.processes > 1:
        raise refuse("parallelism_config", str(sizes), "DeepSpeed divides the processes itself: leave one of both out.")
