"""`kunren inspect`: the parameter groups of a model, from its configuration or its files; no weight is loaded."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_FIELDS = {
    "learning_rate": "the rate of the arguments",
    "weight_decay": "the decay of the arguments",
    "optim": "the optimizer",
    "optim_args": "its options, as name=value,name=value",
    "optim_target_modules": "the modules that GaLore and APOLLO treat",
    "parameter_groups": 'rules, as [{"pattern": "classifier", "learning_rate": 1e-3}]',
    "layer_decay": "decay of the rate from layer to layer",
}
_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_BUFFERS = ("running_mean", "running_var")  # of batch norms: in the files, but no parameters


class InspectError(Exception):
    """What was asked for cannot be read; the message says why."""


def add_command(commands: Commands) -> None:
    """Add `inspect` to the commands of the top parser."""
    parser = commands.add_parser(
        "inspect",
        help="which parameters are trained at which rate and decay",
        description="The parameter groups that a training would have: names, sizes, rate and decay. Arguments come "
        "from the checkpoint, where there are any, then from --args, then from the options.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a model's folder, a checkpoint, or a config.json")
    parser.add_argument("--args", type=Path, metavar="FILE", help="TrainingArguments as a JSON or YAML file")
    parser.add_argument("--names", action="store_true", help="every parameter on a line of its own")
    for name, explanation in _FIELDS.items():
        spellings = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
        parser.add_argument(*spellings, dest=name, metavar="VALUE", help=explanation)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the table; 2 for what cannot be read, or arguments that cannot work."""
    try:
        print(described(options).text(options.names))
    except (InspectError, ImportError, OSError, ValueError) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2
    return 0


def described(options: argparse.Namespace) -> Any:
    """The table of groups for the options of the command line."""
    from kunren.arguments import TrainingArguments
    from kunren.optim.groups.divide import divided
    from kunren.optim.groups.table import table_of
    from kunren.optim.parameter_groups import build_groups, decay_parameter_names
    from kunren.optim.registry import get_optimizer_cls_and_kwargs

    given = {name: getattr(options, name) for name in _FIELDS if getattr(options, name) is not None}
    settings = {**_saved(options.model), **_read(options.args), **given}
    args = TrainingArguments(output_dir="unused", use_cpu=True, **settings)
    model = model_at(options.model)
    decaying = decay_parameter_names(model)
    of_optimizer = get_optimizer_cls_and_kwargs(args, model)[1].get("params")
    groups = divided(of_optimizer or build_groups(model, args.weight_decay, decaying), model, args, decaying)
    return table_of(model, [{"lr": args.learning_rate, **group} for group in groups])


def model_at(path: Path) -> nn.Module:
    """The modules and parameters that a folder or a configuration describes, without their numbers."""
    config = path / _CONFIG if path.is_dir() else path
    if config.is_file():
        from kunren.hf.skeleton import skeleton_of

        return skeleton_of(config)
    if (path / _ADAPTER).is_file():
        raise InspectError(f"{path} holds an adapter: trainer.describe_parameter_groups() tells of the whole model.")
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    if not files:
        raise InspectError(
            f"{path} {'has neither a config.json nor safetensors files' if path.is_dir() else 'does not exist'}."
        )
    return _modules_of(files)


def _modules_of(files: list[Path]) -> nn.Module:
    """A tree of plain modules with the names and shapes in the files: norms are known by their names alone."""
    import torch
    from safetensors import safe_open
    from torch import nn

    root = nn.Module()
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  # it is no mapping
                *folders, last = name.split(".")
                piece = opened.get_slice(name)
                if last in _BUFFERS or not piece.get_dtype().startswith(("F", "BF")):
                    continue
                module = root
                for folder in folders:
                    if folder not in module._modules:
                        module.add_module(folder, nn.Module())
                    module = module.get_submodule(folder)
                module.register_parameter(last, nn.Parameter(torch.empty(piece.get_shape(), device="meta")))
    return root


def _saved(path: Path) -> dict[str, Any]:
    """The arguments that a checkpoint was made with, as far as groups follow from them."""
    from kunren.checkpoint.parts import load_training_args

    return _of_groups(load_training_args(path) or {}) if path.is_dir() else {}


def _read(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        held = json.loads(text)
    else:
        import yaml

        held = yaml.safe_load(text)
    if not isinstance(held, dict):
        raise InspectError(f"{path} holds no mapping from names of arguments to values.")
    return _of_groups(held)


def _of_groups(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name in _FIELDS and value is not None}
