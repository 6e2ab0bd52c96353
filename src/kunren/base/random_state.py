"""Random numbers: seeding, taking and restoring every generator's state, and data randomness by position.

Data loading draws from numbers seeded by (data seed, epoch, batch), never from the stream that dropout uses. So a
resumed run draws what the undisturbed one drew, whatever was prefetched and by however many workers.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy
import torch

_MASK = (1 << 64) - 1

# Generators that torch does not seed, by their kind of device: how to ask for and how to set the seed that is all of
# their state.
SEEDS_OF_DEVICES: dict[str, tuple[Callable[[], int], Callable[[int], None]]] = {}


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed python, numpy and torch (all devices); `deterministic` also asks torch for deterministic kernels."""
    random.seed(seed)
    numpy.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    for _, put in SEEDS_OF_DEVICES.values():
        put(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed everything and make torch refuse (or, with `warn_only`, report) kernels that are not deterministic."""
    set_seed(seed)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def mix(*numbers: int) -> int:
    """A 63-bit seed from several numbers; near inputs give unrelated outputs (splitmix64 finaliser)."""
    state = 0x9E3779B97F4A7C15
    for number in numbers:
        state = (state ^ (number & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state ^= state >> 27
        state = state * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1


def capture() -> dict[str, Any]:
    """The state of every generator of this process, in the layout of transformers' `rng_state.pth`."""
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "cpu": torch.random.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.random.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    if torch.xpu.is_available():
        states["xpu"] = torch.xpu.get_rng_state_all()
    return states | {name: ask() for name, (ask, _) in SEEDS_OF_DEVICES.items()}


def restore(states: dict[str, Any]) -> None:
    """Put back what `capture` took; device states that this machine has no device for are left out."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy.random.set_state(states["numpy"])
    torch.random.set_rng_state(states["cpu"])
    cuda_states = states.get("cuda")
    if cuda_states is not None and torch.cuda.is_available():
        if isinstance(cuda_states, torch.Tensor):
            torch.cuda.random.set_rng_state(cuda_states)
        else:
            torch.cuda.random.set_rng_state_all(cuda_states[: torch.cuda.device_count()])
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])
    if "xpu" in states and torch.xpu.is_available():
        torch.xpu.set_rng_state_all(states["xpu"][: torch.xpu.device_count()])
    for name, (_, put) in SEEDS_OF_DEVICES.items():
        if name in states:
            put(states[name])


@contextmanager
def preserved() -> Iterator[None]:
    """Leave every generator as it was: what runs inside may draw, nobody outside will notice."""
    states = capture()
    try:
        yield
    finally:
        restore(states)


_position: int | None = None


def position_seed() -> int | None:
    """While data is loaded: the seed that belongs to (data seed, epoch, batch). None outside of loading."""
    return _position


def seed_for_data(seed: int) -> None:
    """Seed the three generators that data code draws from. Cheaper than `set_seed`: no device is touched."""
    global _position
    _position = seed
    random.seed(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)


class DataRandomness:
    """A context in which data code draws from numbers of its own; the caller seeds inside with `seed_for_data`.

    numpy's state takes 50 µs to read and write, so its generator is exchanged for a private one instead (2 µs). The
    rest costs about 12 µs: the price of an exact resume, paid once per batch. What is not put back is the second of the
    two numbers that `numpy.random.randn` makes at a time, where one of them was kept for later.
    """

    __slots__ = ("_numpy_mine", "_numpy_theirs", "_python", "_torch")

    def __init__(self) -> None:
        self._numpy_mine = numpy.random.MT19937()

    def __enter__(self) -> None:
        self._python = random.getstate()
        self._torch = torch.default_generator.get_state()
        self._numpy_theirs = numpy.random.mtrand.get_bit_generator()
        numpy.random.mtrand.set_bit_generator(self._numpy_mine)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _position
        _position = None
        random.setstate(self._python)
        torch.default_generator.set_state(self._torch)
        numpy.random.mtrand.set_bit_generator(self._numpy_theirs)
