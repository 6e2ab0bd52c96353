"""Two hosts, each a network namespace with an address of its own, that train together, lose one, and go on.

They share a file system, as the nodes of a cluster do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import kunren
from kunren.checkpoint import layout

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SCRIPT = str(Path(__file__).with_name("launched.py"))
PORT = 29400
ADDRESSES = ("10.231.77.1", "10.231.77.2")


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@dataclass
class Host:
    name: str
    address: str
    device: str
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        usual = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(kunren.__file__).parents[1])}
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, *words],
            env=os.environ | usual | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process


def made(tag: str) -> list[Host]:
    """Two namespaces joined by a cable; AssertionError with what `ip` says where that cannot be had."""
    hosts = [Host(f"kunren-{tag}-{n}", address, f"kr{tag}{n}") for n, address in enumerate(ADDRESSES)]
    commands = [("netns", "add", host.name) for host in hosts]
    commands.append(("link", "add", hosts[0].device, "type", "veth", "peer", "name", hosts[1].device))
    for host in hosts:
        commands += [
            ("link", "set", host.device, "netns", host.name),
            ("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.device),
            ("-n", host.name, "link", "set", host.device, "up"),
            ("-n", host.name, "link", "set", "lo", "up"),
        ]
    try:
        for command in commands:
            done = ip(*command)
            assert done.returncode == 0, f"ip {' '.join(command)}: {done.stderr.strip()}"
    except AssertionError:
        unmake(hosts)
        raise
    return hosts


def unmake(hosts: list[Host]) -> None:
    for host in hosts:
        for process in ip("netns", "pids", host.name).stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        for started in host.started:
            started.communicate()
        ip("-n", host.name, "link", "del", host.device)
        ip("netns", "del", host.name)


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    if shutil.which("ip") is None:
        pytest.skip("there is no `ip` (iproute2) to make network namespaces with")
    try:
        both = made(str(os.getpid() % 100_000))
    except AssertionError as error:
        pytest.skip(f"network namespaces cannot be made: {error}")
    try:
        yield both
    finally:
        unmake(both)


def launch(host: Host, rank: int, folder: Path, fate: str, restarts: int = 0, **more: str) -> subprocess.Popen[str]:
    options = ["--nodes", "2", "--node-rank", str(rank), "--rendezvous", f"{ADDRESSES[0]}:{PORT}"]
    restart = ["--max-restarts", str(restarts)] if restarts else []
    return host.start("-m", "kunren", "launch", *options, *restart, SCRIPT, str(folder), fate, **more)


def torchrun(host: Host, rank: int, folder: Path, fate: str) -> subprocess.Popen[str]:
    options = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=two-hosts"]
    options += [f"--rdzv-endpoint={ADDRESSES[0]}:{PORT}", f"--rdzv-conf=is_host={'false' if rank else 'true'}"]
    options += [f"--local-addr={host.address}"]
    variables = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": host.device}
    return host.start("-m", "torch.distributed.run", *options, SCRIPT, str(folder), fate, **variables)


def end_well(*processes: subprocess.Popen[str]) -> list[str]:
    said = []
    for process in processes:
        said.append(process.communicate(timeout=50)[1])
        assert process.returncode == 0, said[-1]
    return said


def wait_for(what: Callable[[], bool], seconds: float = 40) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    folder = tmp_path_factory.mktemp("one")
    environment = os.environ | {"PYTHONPATH": str(Path(kunren.__file__).parents[1])}
    subprocess.run([sys.executable, SCRIPT, str(folder), "lives"], env=environment, check=True, capture_output=True)
    return list(torch.load(folder / "end.pt")[1].values())


def assert_ended_as(folder: Path, expected: list[torch.Tensor]) -> None:
    step, weights = torch.load(folder / "end.pt")
    assert step == 12
    for found, one in zip(weights.values(), expected, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-6, atol=1e-6)


def steps_begun(folder: Path) -> set[int]:
    return {int(path.name.split("-")[-1]) for path in folder.glob("began-*")}


@pytest.mark.parametrize("start", [launch, torchrun], ids=["kunren launch", "torchrun"])
def test_the_numbers_are_those_of_one_process(
    start: Callable[..., subprocess.Popen[str]], hosts: list[Host], tmp_path: Path, one_process: list[torch.Tensor]
) -> None:
    # The second comes first: it waits for the one where they meet.
    second = start(hosts[1], 1, tmp_path, "lives")
    said = end_well(start(hosts[0], 0, tmp_path, "lives"), second)
    assert_ended_as(tmp_path, one_process)
    if start is launch:
        assert f"machine 0 of 2, meeting at {ADDRESSES[0]}:{PORT}" in said[0]
        assert f"GLOO_SOCKET_IFNAME={hosts[1].device}" in said[1]


def lose_a_host(hosts: list[Host], folder: Path, restarts: int) -> subprocess.Popen[str]:
    """The launcher of the host that is left, when the other's processes have been killed amid the training."""
    first, second = (launch(host, rank, folder, "waits", restarts) for rank, host in enumerate(hosts))
    waiting = folder / "waits"
    wait_for(lambda: first.poll() is not None or (waiting.exists() and waiting.read_text() != ""))
    assert first.poll() is None, first.communicate()[1]
    for process in (second.pid, int(waiting.read_text())):
        os.kill(process, signal.SIGKILL)
    return first


def test_a_run_that_has_lost_a_host_goes_on(hosts: list[Host], tmp_path: Path, one_process: list[torch.Tensor]) -> None:
    left = lose_a_host(hosts, tmp_path, restarts=0)
    _, said = left.communicate(timeout=50)
    assert left.returncode == 1 and "kunren: process 0 of 2 failed first" in said
    assert not (tmp_path / "end.pt").exists() and layout.newest_whole(tmp_path) is not None
    end_well(*(launch(host, rank, tmp_path, "lives") for rank, host in enumerate(hosts)))
    assert steps_begun(tmp_path) in ({0, 5}, {0, 7})
    assert_ended_as(tmp_path, one_process)


def test_the_host_that_is_left_waits_for_another(
    hosts: list[Host], tmp_path: Path, one_process: list[torch.Tensor]
) -> None:
    left = lose_a_host(hosts, tmp_path, restarts=1)
    said, _ = end_well(left, launch(hosts[1], 1, tmp_path, "waits", 1))
    assert "started again (1 of 1)" in said
    assert steps_begun(tmp_path) in ({0, 5}, {0, 7})
    assert_ended_as(tmp_path, one_process)


def test_a_cut_cable_is_noticed_and_the_run_goes_on(
    hosts: list[Host], tmp_path: Path, one_process: list[torch.Tensor]
) -> None:
    first, _ = (launch(host, rank, tmp_path, "waits", SECONDS_TO_WAIT="5") for rank, host in enumerate(hosts))
    wait_for(lambda: (tmp_path / "waits").exists())
    cut = time.monotonic()
    assert ip("-n", hosts[0].name, "link", "set", hosts[0].device, "down").returncode == 0
    _, said = first.communicate(timeout=50)
    assert first.returncode == 1 and "kunren: process 0 of 2 failed first" in said
    assert time.monotonic() - cut < 40
    for process in ip("netns", "pids", hosts[1].name).stdout.split():  # a watchman would, of a host nobody can reach
        os.kill(int(process), signal.SIGKILL)
    assert ip("-n", hosts[0].name, "link", "set", hosts[0].device, "up").returncode == 0
    end_well(*(launch(host, rank, tmp_path, "lives") for rank, host in enumerate(hosts)))
    assert_ended_as(tmp_path, one_process)
