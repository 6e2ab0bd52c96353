"""Ways in which weights lie on disk, one in each file. The names of the files are those of transformers."""

from pathlib import Path

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "pytorch_model.bin"
WEIGHTS_INDEX_NAME = "pytorch_model.bin.index.json"
SAFE_WEIGHTS_NAME = "model.safetensors"
SAFE_WEIGHTS_INDEX_NAME = "model.safetensors.index.json"
ADAPTER_WEIGHTS_NAME = "adapter_model.bin"
ADAPTER_SAFE_WEIGHTS_NAME = "adapter_model.safetensors"
SHARDED_WEIGHTS_NAME = "pytorch_model_fsdp_0"  # folders, of torch.distributed.checkpoint
SHARDED_OPTIMIZER_NAME = "optimizer_0"
SHARDED_CONTENTS_NAME = ".metadata"  # in them
EXTRA_STATE_NAME = "extra_state.pt"


def refuse_deepspeed(folder: Path) -> None:
    """ValueError for a checkpoint whose state lies in DeepSpeed's own layout, asked for by a run without it."""
    if (folder / "latest").is_file() and next(folder.glob("global_step*"), None) is not None:
        raise ValueError(
            f"{folder} is a checkpoint of DeepSpeed, which alone reads its state: go on with the same deepspeed=..., "
            f"or begin with its weights, which `kunren checkpoint merge {folder}` makes into a model."
        )
