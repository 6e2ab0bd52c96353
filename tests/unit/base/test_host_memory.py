"""How much memory can be had, where the system tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kunren.base import host_memory


def test_there_is_some_and_not_more_than_the_machine_has() -> None:
    free = host_memory.free_host_bytes()
    assert free is not None
    assert 0 < free <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host_memory, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(host_memory, "_CONTAINER", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable: 500 kB\n")
    return tmp_path


def test_of_the_machine_and_of_the_container_the_smaller(machine: Path) -> None:
    assert host_memory.free_host_bytes() == 500 * 1024
    for name, text in (("max", "300000"), ("current", "200000"), ("stat", "anon 5\ninactive_file 50000\n")):
        (machine / f"memory.{name}").write_text(text)
    assert host_memory.free_host_bytes() == 150_000
    (machine / "memory.max").write_text("max\n")
    assert host_memory.free_host_bytes() == 500 * 1024


def test_other_systems(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "meminfo").unlink()
    pages = {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 100}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert host_memory.free_host_bytes() == 700

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    assert host_memory.free_host_bytes() is None
