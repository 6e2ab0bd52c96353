"""The many optimizers of the package pytorch-optimizer, by its names for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from kunren.optim.optimizers.options import import_optimizers, options_of, parse_options
from kunren.optim.parameter_groups import build_groups

if TYPE_CHECKING:
    from kunren.arguments import TrainingArguments
    from kunren.optim.registry import ClassAndArguments

# Names of transformers whose own packages have not been kept up, or are for CUDA only -> the class here.
_NAMESAKES = {"stable_adamw": "stableadamw", "grokadamw": "grokfastadamw"}
_OPTIONS_OF_NAMESAKES = {
    "grokadamw": {"alpha_init": "grokfast_alpha", "lamb": "grokfast_lamb"},
    "stable_adamw": {"kahan_sum": "kahan_sum"},
}
# Of these, matrices of hidden layers go one way, and all else goes AdamW's.
_FOR_MATRICES = ("muon", "adamuon", "normuon", "adago")


def further(args: TrainingArguments, model: nn.Module | None) -> ClassAndArguments:
    name = str(args.optim)
    package = import_optimizers(args, "pytorch_optimizer", "pytorch-optimizer")
    optimizer_class = package.load_optimizer(_NAMESAKES.get(name, name))
    options: dict[str, Any] = {"lr": args.learning_rate}
    if name in _NAMESAKES:
        options |= _of_namesake(args, name)
    else:
        options |= parse_options(args, options_of(optimizer_class))
    if name in _FOR_MATRICES:
        options.setdefault("adamw_lr", args.learning_rate)
        options["params"] = _matrices_apart(args, model, options["adamw_lr"])
    return optimizer_class, options


def _of_namesake(args: TrainingArguments, name: str) -> dict[str, Any]:
    """transformers' options under the names they have here."""
    renamed = _OPTIONS_OF_NAMESAKES[name]
    given = parse_options(args, dict.fromkeys(renamed, float if name == "grokadamw" else _switch))
    options = {renamed[option]: value for option, value in given.items()}
    return {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon, **options}


def _switch(text: str) -> bool:
    return text.lower() not in ("false", "0", "no", "none")


def _matrices_apart(args: TrainingArguments, model: nn.Module | None, adamw_rate: float) -> list[dict[str, Any]]:
    """Groups marked `use_muon`: matrices but those of embeddings and of the output layer, as its author advises.

    The others say their rate, AdamW's. Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    if model is None:
        raise ValueError(f"optim={str(args.optim)!r} treats matrices in a way of their own: give it the model.")
    embedded = {
        id(weight) for module in model.modules() if isinstance(module, nn.Embedding) for weight in module.parameters()
    }
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    head = {id(linear[-1].weight)} if len(linear) > 1 else set()
    groups = []
    for group in build_groups(model, args.weight_decay):
        for use in (True, False):
            members = [
                weight
                for weight in group["params"]
                if (weight.ndim == 2 and id(weight) not in embedded and id(weight) not in head) is use
            ]
            rate = {} if use else {"lr": adamw_rate}
            groups += [{**group, "params": members, "use_muon": use, **rate}] if members else []
    return groups
