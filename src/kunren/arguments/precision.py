"""The number formats of training and evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from kunren.arguments.group import ArgumentGroup, explained


@dataclass(init=False, repr=False, eq=False)
class Precision(ArgumentGroup):
    bf16: bool = explained(False, "Compute in bfloat16 where that is safe (autocast); weights stay as they are.")
    fp16: bool = explained(False, "Compute in float16 where that is safe, with gradient scaling.")
    bf16_full_eval: bool = explained(
        False, "Turn the whole model to bfloat16 for evaluation: less memory, and slightly other metrics."
    )
    fp16_full_eval: bool = explained(
        False, "Turn the whole model to float16 for evaluation: less memory, and slightly other metrics."
    )
    tf32: bool | None = explained(None, "Allow TF32 matrix products on NVIDIA GPUs; None leaves torch's setting.")

    def check(self) -> None:
        if self.fp16 and self.bf16:
            raise ValueError("fp16=True and bf16=True exclude each other: keep one of them.")
        if self.fp16_full_eval and self.bf16_full_eval:
            raise ValueError("fp16_full_eval=True and bf16_full_eval=True exclude each other: keep one of them.")

    @property
    def mixed_precision(self) -> str:
        """One of "fp16", "bf16" and "no": Accelerate's word for the two switches."""
        if self.fp16:
            return "fp16"
        return "bf16" if self.bf16 else "no"
