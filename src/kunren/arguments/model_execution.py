"""How the model runs: what is kept for the backward pass, what is compiled, which kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kunren.arguments.checks import at_least, from_json
from kunren.arguments.conversion import to_bool
from kunren.arguments.group import ArgumentGroup, explained

# Two names of one thing, for good: both are fields of transformers, and both are read by libraries.
TWINS = {
    "activation_checkpointing": "gradient_checkpointing",
    "gradient_checkpointing": "activation_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}


@dataclass(init=False, repr=False, eq=False)
class ModelExecution(ArgumentGroup):
    activation_checkpointing: bool | None = explained(
        None, "Recompute activations in the backward pass: less memory, more time."
    )
    activation_checkpointing_kwargs: dict[str, Any] | str | None = explained(
        None, 'What torch.utils.checkpoint takes, as a dict or JSON text, such as {"use_reentrant": false}.'
    )
    gradient_checkpointing: bool | None = explained(None, "Another name of activation_checkpointing.")
    gradient_checkpointing_kwargs: dict[str, Any] | str | None = explained(
        None, "Another name of activation_checkpointing_kwargs."
    )
    torch_compile: bool = explained(
        False, "Compile the model with torch.compile: the first steps are slow, the others faster."
    )
    torch_compile_backend: str | None = explained(
        None, "torch.compile's backend, 'inductor' if not given; giving one switches compiling on."
    )
    torch_compile_mode: str | None = explained(
        None, "torch.compile's mode, such as 'reduce-overhead' or 'max-autotune'; giving one switches compiling on."
    )
    chunked_loss: str = explained(
        "auto", "Compute the loss over a vocabulary a chunk of tokens at a time: 'on', 'off', or 'auto', where it pays."
    )
    use_liger_kernel: bool = explained(
        False, "Use the kernels of the package liger-kernel, for models that it knows: faster, with less memory."
    )
    liger_kernel_config: dict[str, bool] | None = explained(
        None, 'Which of Liger\'s kernels to use, as a dict or JSON text, such as {"rope": true}; None: its own choice.'
    )
    use_cache: bool = explained(
        False, "Let the model keep its key-value cache while training, which costs memory and gains nothing."
    )
    torch_empty_cache_steps: int | None = explained(
        None, "Free the device's cached memory every that many steps; None: never."
    )

    def normalise(self) -> None:
        recompute = self.activation_checkpointing
        self.activation_checkpointing = bool(self.gradient_checkpointing if recompute is None else recompute)
        kwargs = self.activation_checkpointing_kwargs
        if kwargs is None:
            kwargs = self.gradient_checkpointing_kwargs
        self.activation_checkpointing_kwargs = from_json("activation_checkpointing_kwargs", kwargs)
        self.gradient_checkpointing = self.activation_checkpointing
        self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs
        if self.chunked_loss != "auto":
            self.chunked_loss = "on" if to_bool("chunked_loss", self.chunked_loss) else "off"
        self.liger_kernel_config = from_json("liger_kernel_config", self.liger_kernel_config)
        if self.torch_compile_backend is not None or self.torch_compile_mode is not None:
            self.torch_compile = True
        if self.torch_compile and self.torch_compile_backend is None:
            self.torch_compile_backend = "inductor"

    def check(self) -> None:
        at_least(self, "torch_empty_cache_steps", 1, "give a number of steps, or None to leave the cache alone.")
