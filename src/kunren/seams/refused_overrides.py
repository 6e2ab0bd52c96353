"""Methods of transformers' Trainer that kunren's does not have, and what to do instead of overriding them."""

from __future__ import annotations

import sys

_LOOP = "iterate `steps()`, or override `training_step` or `get_batch_samples`"
_ENGINE = "override `create_accelerator_and_postprocess`"
_SIZE = "set parallelism_config or accelerator_config, or override `get_train_dataloader`"
_NORM = "set max_grad_norm, or change the gradients in a callback's on_pre_optimizer_step"

REFUSED_OVERRIDES = {
    "_inner_training_loop": _LOOP,
    "_run_epoch": "iterate `steps()`, or override `get_train_dataloader` or `training_step`",
    "_maybe_log_save_evaluate": "override `log`, `evaluate` or `_save_checkpoint`, or set flags in a callback",
    "_prepare_for_training": "override `create_optimizer_and_scheduler` or `get_train_dataloader`, or use a callback's "
    "on_train_begin",
    "_init_training_state": "use a callback's on_train_begin",
    "_finalize_training": "use a callback's on_train_end, or override `train`",
    "set_initial_training_values": "set num_train_epochs or max_steps, or override `get_train_dataloader`",
    "_validate_args": "check the arguments in `__init__`, or in the arguments' `__post_init__`",
    "_build_accelerator_args": _ENGINE,
    "_wrap_model": f"{_ENGINE}, or wrap the model before you pass it",
    "_move_model_to_device": "set place_model_on_device=False and move the model yourself",
    "_get_num_items_in_batch": "override `get_batch_samples`, which returns the batches of a step and their count",
    "_track_num_input_tokens": "override `get_batch_samples`, and set include_num_input_tokens_seen",
    "_update_auto_batch_size": "set auto_find_batch_size, which divides a batch that does not fit",
    "_clip_grad_norm": _NORM,
    "_get_grad_norm": _NORM,
    "_mixed_mesh_grad_norm": _NORM,
    "_has_mixed_mesh_grads": _NORM,
    "_defer_fsdp_gradient_reduction": _ENGINE,
    "_sync_replicated_trainable_parameters": _ENGINE,
    "_issue_warnings_after_load": "override `_load_from_checkpoint`",
    "_tune_save_checkpoint": "override `_save_checkpoint`",
}


def refusal(cls: type, name: str) -> str:
    """Why the class cannot be: for who has written it, and for who imports a library that was written for both."""
    text = f"{cls.__name__} overrides {name}, which kunren's Trainer does not have: {REFUSED_OVERRIDES[name]}."
    installation = sys.modules.get("kunren.hf.installation")
    if installation is not None and installation.is_installed() and cls.__module__ != "__main__":
        package = cls.__module__.partition(".")[0]
        text += (
            f" If {cls.__module__} is not yours to change: it needs transformers' own loop, so run this program "
            "without kunren.hf.install() (KUNREN_INSTALL=1 and `python -m kunren.hf` call it too), or call "
            f"kunren.hf.uninstall() before it imports {package}."
        )
    return text
