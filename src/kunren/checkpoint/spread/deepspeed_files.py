"""The files of a DeepSpeed checkpoint: where they go, how they are read without running code, and made whole again."""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch

from kunren.checkpoint import layout, sink
from kunren.checkpoint.formats import CONFIG_NAME
from kunren.checkpoint.store import MANIFEST_NAME
from kunren.checkpoint.weight_files import write_tensors

logger = logging.getLogger(__name__)

ADAPTER_CONFIG_NAME = "adapter_config.json"
LATEST_NAME = "latest"  # holds the name of the folder with the state
_SCRIPTS = ("zero_to_fp32.py", "zero_to_torch.py")
_OPTIMIZER_FILES = "*zero_pp_rank_*_mp_rank_00_optim_states.pt"
_DIVIDED_MODEL_FILES = "zero_pp_rank_*_mp_rank_00_model_states.pt"
_CLASSES = (  # what its files hold beside tensors and plain values
    "deepspeed.runtime.fp16.loss_scaler:LossScaler",
    "deepspeed.runtime.fp16.loss_scaler:DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler:LossScaleConfig",
    "deepspeed.runtime.zero.config:ZeroStageEnum",
    "deepspeed.utils.tensor_fragment:fragment_address",
)
_OF_A_RUN = (
    MANIFEST_NAME,
    LATEST_NAME,
    layout.TRAINER_STATE_NAME,
    layout.TRAINING_ARGS_NAME,
    layout.CURSOR_NAME,
    *_SCRIPTS,
)
_DESCRIBES_A_MODEL = (".json", ".txt", ".model", ".jinja", ".spm", ".tiktoken")


@final
class Files:
    """DeepSpeed's way to the disk: what it wants saved is kept until `put`, so that no process fails between two
    exchanges of DeepSpeed's; what it loads is read without running code."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Any, Path]] = []

    def create(self, info: Any) -> None:
        self._waiting = []

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Later, by whoever writes into it."""

    def save(self, state_dict: Any, path: str) -> None:
        self._waiting.append((state_dict, Path(path)))

    def load(self, path: str, map_location: Any = None) -> Any:
        return load(Path(path))

    def commit(self, info: Any) -> bool:
        return True

    def is_data_parallel_writer(self, dp_rank: int) -> bool:
        return dp_rank == 0

    def is_decoupled(self) -> bool:
        return False

    def preserves_storage_sharing(self) -> bool:
        return True

    def cleanup(self) -> None:
        self._waiting = []

    def put(self) -> None:
        """Hand everything to the sink of the save that is going on."""
        waiting, self._waiting = self._waiting, []
        for state, path in waiting:
            path.parent.mkdir(parents=True, exist_ok=True)
            sink.current().put_value(_as_it_is(state), path)


def _as_it_is(value: Any) -> Any:
    """A copy of all but the tensors, which the sink copies: a loss scaler moves on before a thread has written it."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, dict):
        return type(value)((name, _as_it_is(one)) for name, one in value.items())
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)([_as_it_is(one) for one in value])
    return copy.deepcopy(value)


def load(path: Path) -> Any:
    """What a file of a DeepSpeed checkpoint holds, on the CPU; ValueError where it could run code."""
    classes = [getattr(importlib.import_module(module), name) for module, _, name in _named(_CLASSES)]
    try:
        with torch.serialization.safe_globals(classes):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"{path} cannot be read: {reason} Only what DeepSpeed saves is loaded, because anything else can run code."
        ) from error


def _named(classes: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Those that this version has."""
    for place in classes:
        parts = place.partition(":")
        if hasattr(importlib.import_module(parts[0]), parts[2]):
            yield parts


def is_in(folder: str | Path) -> bool:
    """Whether a folder holds a state of DeepSpeed's."""
    return state_folder(Path(folder)) is not None


def state_folder(folder: Path) -> Path | None:
    """Where it lies, as `latest` says."""
    try:
        found = folder / (folder / LATEST_NAME).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return found if found != folder and found.is_dir() else None


def world_size_of(state: Path) -> int | None:
    """The number of processes among which the state is divided; None where each has all of it."""
    return len(list(state.glob(_OPTIMIZER_FILES))) or None


def divides_weights(state: Path) -> bool:
    """Whether it is of stage 3."""
    return any(state.glob(_DIVIDED_MODEL_FILES))


def write_signposts(folder: Path, tag: str) -> None:
    """What DeepSpeed's tools look for beside the state, and the tools themselves."""
    (folder / LATEST_NAME).write_text(tag, encoding="utf-8")
    utilities = Path(importlib.import_module("deepspeed.utils").__file__ or "").parent
    for name in _SCRIPTS:
        if (utilities / name).is_file():
            shutil.copyfile(utilities / name, folder / name)
            (folder / name).chmod(0o755)


def make_universal(state: Path, place: Path) -> None:
    """Convert a state into one for any number of processes, a file for each weight, by DeepSpeed's converter.

    ValueError for an optimizer that is not of Adam's kind, as the converter knows no other.
    """
    _read_through(state)
    others = _moments(state) ^ {"exp_avg", "exp_avg_sq"}
    if others:
        raise ValueError(f"it knows optimizers that keep exp_avg and exp_avg_sq; this one differs in {sorted(others)}")
    convert = importlib.import_module("deepspeed.checkpoint.ds_to_universal")
    options = argparse.Namespace(
        input_folder=str(state),
        output_folder=str(place),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with silenced():
        convert.main(options)


def merge_deepspeed(folder: Path, output: Path) -> None:
    """Put the parts of a DeepSpeed checkpoint together as `model.safetensors`, in float32, with what describes it."""
    if not is_in(folder):
        raise ValueError(f"{folder} has no state of DeepSpeed's: there is no folder that its file 'latest' names.")
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        raise ValueError(f"{folder} is of a model with adapters: resume from it, and call save_model().")
    if importlib.util.find_spec("deepspeed") is None:
        raise ImportError("Merging a DeepSpeed checkpoint takes its package: pip install deepspeed.")
    state = state_folder(folder)
    assert state is not None
    if world_size_of(state) is None:
        (single,) = state.glob("mp_rank_00_model_states.pt")
        weights = load(single)["module"]
    else:
        _read_through(state)
        tool = importlib.import_module("deepspeed.utils.zero_to_fp32")
        with silenced():
            weights = tool.get_fp32_state_dict_from_zero_checkpoint(str(folder))
    output.mkdir(parents=True, exist_ok=True)
    write_tensors(dict(weights), output)
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _DESCRIBES_A_MODEL and path.name not in _OF_A_RUN:
            if path.name.endswith(".index.json"):
                continue
            shutil.copyfile(path, output / path.name)
    if not (output / CONFIG_NAME).is_file():
        logger.info("%s has no %s: the weights are those of a module, to be loaded by name.", folder, CONFIG_NAME)


def options_and_state(state: Path) -> dict[str, Any]:
    """What the optimizer of the first process has saved."""
    saved = load(min(state.glob("*zero_pp_rank_0_mp_rank_00_optim_states.pt")))["optimizer_state_dict"]
    found: dict[str, Any] = saved.get("base_optimizer_state", saved.get("optimizer_state_dict"))
    return found


def _moments(state: Path) -> set[str]:
    values = options_and_state(state)["state"].values()
    return {name for one in values for name, value in one.items() if isinstance(value, torch.Tensor)} - {"step"}


def _read_through(state: Path) -> None:
    """DeepSpeed's tools read without looking; so everything is read with care before."""
    for path in sorted(state.glob("*.pt")):
        load(path)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Inside, what the tools print is kept from the terminal, with their bars and their warnings."""
    before, noise = os.environ.get("TQDM_DISABLE"), logging.getLogger("DeepSpeed")
    level = noise.level
    noise.setLevel(logging.ERROR)
    os.environ["TQDM_DISABLE"] = "1"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        noise.setLevel(level)
        if before is None:
            os.environ.pop("TQDM_DISABLE", None)
        else:
            os.environ["TQDM_DISABLE"] = before
