"""TrainingArguments: one flat dataclass, joined from groups of fields that each declare and check their own."""

from kunren.arguments.accelerator_config import AcceleratorConfig
from kunren.arguments.training_arguments import TrainingArguments

__all__ = ["AcceleratorConfig", "TrainingArguments"]
