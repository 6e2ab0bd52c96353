"""Optimizers, one kind in each file, and their names; `kunren.optim.registry` finds them."""

from __future__ import annotations

from kunren.arguments.choices import FURTHER_OPTIMIZERS

_HERE = "kunren.optim.optimizers"
# name -> factory(args, model), which answers with an optimizer class and its keyword arguments; "params" among them are
# parameter groups in place of the usual ones.
OPTIMIZERS: dict[str, str] = {
    "adamw_torch": f"{_HERE}.native:adamw_torch",
    "adamw_torch_fused": f"{_HERE}.native:adamw_torch_fused",
    "sgd": f"{_HERE}.native:sgd",
    "adagrad": f"{_HERE}.native:adagrad",
    "rmsprop": f"{_HERE}.native:rmsprop",
    "adafactor": f"{_HERE}.adafactor:adafactor",
    "adamw_anyprecision": f"{_HERE}.any_precision:any_precision_adamw",
    "adamw_torch_xla": f"{_HERE}.devices:adamw_torch_xla",
    "adamw_torch_npu_fused": f"{_HERE}.devices:adamw_torch_npu_fused",
    **dict.fromkeys(("adamw_torch_4bit", "adamw_torch_8bit"), f"{_HERE}.quantised:torchao_adamw"),
    **dict.fromkeys(
        ("adamw_bnb_8bit", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit"),
        f"{_HERE}.quantised:bitsandbytes_adamw",
    ),
    **dict.fromkeys(
        ("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit"),
        f"{_HERE}.quantised:bitsandbytes_ademamix",
    ),
    **dict.fromkeys(
        ("lion_32bit", "lion_8bit", "paged_lion_32bit", "paged_lion_8bit"), f"{_HERE}.quantised:bitsandbytes_lion"
    ),
    **dict.fromkeys(
        ("rmsprop_bnb", "rmsprop_bnb_8bit", "rmsprop_bnb_32bit"), f"{_HERE}.quantised:bitsandbytes_rmsprop"
    ),
    **dict.fromkeys(
        (
            f"galore_{kind}{layerwise}"
            for kind in ("adamw", "adamw_8bit", "adafactor")
            for layerwise in ("", "_layerwise")
        ),
        f"{_HERE}.low_rank:galore",
    ),
    **dict.fromkeys(("apollo_adamw", "apollo_adamw_layerwise"), f"{_HERE}.apollo:apollo"),
    "lomo": f"{_HERE}.layer_wise:lomo",
    "adalomo": f"{_HERE}.layer_wise:adalomo",
    **dict.fromkeys(
        ("schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"), f"{_HERE}.schedule_free:schedule_free"
    ),
    **dict.fromkeys(("grokadamw", "stable_adamw", *FURTHER_OPTIMIZERS), f"{_HERE}.further:further"),
}
