"""Seeding, taking and restoring generators, and data randomness that nobody outside notices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kunren.base.random_state import (
    DataRandomness,
    capture,
    enable_full_determinism,
    mix,
    preserved,
    restore,
    seed_for_data,
    set_seed,
)

Draws = tuple[float, float, float, float]


def draws() -> Draws:
    """One number of each generator; of numpy's `randn`, which makes two at a time, both."""
    return random.random(), float(numpy.random.rand()), float(numpy.random.randn(2)[0]), torch.rand(()).item()


@given(st.integers(0, 2**32 - 1))
def test_one_seed_gives_one_sequence(seed: int) -> None:
    set_seed(seed)
    first = draws()
    set_seed(seed)
    assert draws() == first


def test_seeding_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    set_seed(42)
    ours = draws()
    transformers.set_seed(42)
    assert draws() == ours


@given(st.integers(0, 5))
def test_captured_state_comes_back_numpy_gauss_cache_included(drawn: int) -> None:
    set_seed(1)
    for _ in range(drawn):
        numpy.random.randn()  # after an odd number numpy holds a finished number in its cache
    states = capture()
    expected = [draws() for _ in range(3)]
    set_seed(99)
    restore(states)
    assert [draws() for _ in range(3)] == expected


def test_state_survives_python_lists_in_place_of_tuples() -> None:
    """A file of another library may hold python's state as lists."""
    states = capture()
    version, internal, gauss = states["python"]
    expected = draws()
    restore({**states, "python": [version, list(internal), gauss]})
    assert draws() == expected


def test_restoring_leaves_out_devices_that_are_not_there() -> None:
    states = capture()
    expected = draws()
    if not torch.cuda.is_available():
        states["cuda"] = [torch.zeros(16, dtype=torch.uint8)]
    restore(states)
    assert draws() == expected


def seed_and_draw() -> None:
    set_seed(123)
    draws()


def use_up_half_a_pair() -> None:
    numpy.random.randn()


@pytest.mark.parametrize("inside", [draws, seed_and_draw, use_up_half_a_pair])
@pytest.mark.parametrize("odd", [False, True])
def test_preserved_hides_what_happens_inside(inside: Callable[[], Any], odd: bool) -> None:
    def start() -> None:
        set_seed(5)

    start()
    expected = [draws(), draws()]
    start()
    with preserved():
        inside()
    assert [draws(), draws()] == expected


def test_preserved_also_after_an_error() -> None:
    set_seed(5)
    expected = draws()
    set_seed(5)
    with pytest.raises(ZeroDivisionError), preserved():
        draws()
        raise ZeroDivisionError
    assert draws() == expected


def test_data_randomness_leaves_all_three_generators_untouched() -> None:
    randomness = DataRandomness()

    def start() -> None:
        set_seed(5)

    start()
    expected = [draws() for _ in range(4)]
    start()
    got = []
    for seed in range(4):
        with randomness:
            seed_for_data(seed)
            for _ in range(seed):
                draws()
        got.append(draws())
    assert got == expected


def test_data_randomness_leaves_the_generators_also_after_an_error() -> None:
    randomness = DataRandomness()
    set_seed(5)
    expected = draws()
    set_seed(5)
    with pytest.raises(ZeroDivisionError), randomness:
        seed_for_data(1)
        draws()
        raise ZeroDivisionError
    assert draws() == expected


@given(st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_data_draws_depend_on_the_seed_alone(seed: int, drawn_before: int) -> None:
    with DataRandomness():
        seed_for_data(seed)
        expected = draws()
    randomness = DataRandomness()
    with randomness:
        seed_for_data(7)
        for _ in range(drawn_before):
            numpy.random.randn()
    with randomness:
        seed_for_data(seed)
        assert draws() == expected


def test_near_seeds_draw_different_data() -> None:
    seen = set()
    for batch in range(50):
        with DataRandomness():
            seed_for_data(mix(0, 0, batch))
            seen.add(draws())
    assert len(seen) == 50
    assert all(len({draw[place] for draw in seen}) == 50 for place in range(4))


numbers = st.lists(st.integers(-(2**70), 2**70), min_size=1, max_size=4)


@given(numbers)
def test_mix_fits_every_generator(given_numbers: list[int]) -> None:
    seed = mix(*given_numbers)
    assert 0 <= seed < 2**63
    assert seed == mix(*given_numbers)


@given(st.integers(0, 1000), st.integers(0, 1000))
def test_order_of_the_numbers_counts(epoch: int, batch: int) -> None:
    assert (mix(0, epoch, batch) == mix(0, batch, epoch)) == (epoch == batch)


def test_mix_spreads_positions_of_a_run() -> None:
    seeds = {mix(seed, epoch, batch) for seed in range(5) for epoch in range(20) for batch in range(100)}
    assert len(seeds) == 5 * 20 * 100
    ones = [sum(seed >> bit & 1 for seed in seeds) / len(seeds) for bit in range(63)]
    assert all(0.45 < share < 0.55 for share in ones), "a bit is nearly always the same"


def test_full_determinism_makes_torch_refuse_other_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        enable_full_determinism(3)
        first = draws()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        enable_full_determinism(3, warn_only=True)
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert draws() == first
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


def test_seeding_may_ask_for_deterministic_kernels() -> None:
    set_seed(3)
    assert not torch.are_deterministic_algorithms_enabled()
    set_seed(3, deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
