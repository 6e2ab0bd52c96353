"""`kunren launch`: a script or a configuration in several processes, on one machine or as one of several."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kunren.base.names import closest_name
from kunren.cli.language import LANGUAGES, spoken
from kunren.cli.launch_words import ELSEWHERE, OPTIONS, WORDS

if TYPE_CHECKING:
    from kunren.cli.elastic_agent import Launch

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_TO_BE_RESUMED = 75
_PORT = 29400
_SHORT = {"-m": "--module", "-h": "--help"}
_SWITCHES = [name for name, (value, *_) in OPTIONS.items() if not value]
_CONFIGS = (".yaml", ".yml", ".json")
_LEAST = {"--processes": 1, "--nodes": 1, "--node-rank": 0, "--max-restarts": 0}
_FOR_NODES = ("--node-rank", "--address")
_RUNNER = ("-u", "-m", "kunren.cli.rank_process")


class LaunchError(Exception):
    """What was asked for cannot be started; the message says what to change."""


@dataclass
class Request:
    """A command line: the launcher's options, and what is to be started with its own words."""

    options: dict[str, str] = field(default_factory=dict)
    source: str | None = None
    words: list[str] = field(default_factory=list)

    def number(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


def add_command(commands: Commands) -> None:
    """Add `launch` to the commands of the top parser."""
    parser = commands.add_parser(
        "launch",
        help="train a script or a configuration with several processes, on every GPU there is",
        add_help=False,
        prefix_chars="\0",  # every word is read here: an option that is misspelt gets the nearest right one
    )
    parser.add_argument("words", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Start the processes and wait; what `start` returns, or 2 where the command line is at fault."""
    from kunren.cli import train
    from kunren.cli.arguments_help import show

    language = spoken()
    try:
        request = read_words(options.words, WORDS[language])
        language = spoken(request.options.get("--lang"))
        text: dict[str, Any] = WORDS[language]
        if "--help" in request.options:
            show(help_text(language))
            return 0
        is_config = _check_source(request, text)
        if is_config and train.read_words(request.words).asked is not None:
            return train.run(argparse.Namespace(words=request.words))
        return _launch(request, is_config, text, options.words)
    except (LaunchError, train.TrainCommandError) as error:
        print(f"kunren: {error}", file=sys.stderr)
        return 2


def read_words(words: Sequence[str], text: dict[str, Any]) -> Request:
    """Options up to the first word that is none; the rest belongs to that one."""
    request, left = Request(), list(words)
    while left and left[0].startswith("-"):
        word = left.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        name = _SHORT.get(name, name.replace("_", "-"))
        if name not in OPTIONS:
            raise LaunchError(_unknown(word.partition("=")[0], name, text))
        if name in _SWITCHES:
            if equals:
                raise LaunchError(text["no_value"].format(name))
        elif not equals:
            if not left or (left[0].startswith("-") and not re.fullmatch(r"-\d+", left[0])):
                raise LaunchError(text["value"].format(name, OPTIONS[name][0]))
            value = left.pop(0)
        _check_number(name, value, text)
        request.options[name] = value
    language = request.options.get("--lang", LANGUAGES[0])
    if language not in LANGUAGES:
        raise LaunchError(f"--lang {language}: {' | '.join(LANGUAGES)}.")
    if left:
        request.source, *request.words = left
    return request


def _check_number(name: str, value: str, text: dict[str, Any]) -> None:
    least = _LEAST.get(name)
    has_auto = OPTIONS[name][0].endswith("auto")
    if least is None or (has_auto and value == "auto"):
        return
    if not re.fullmatch(r"\d+", value) or int(value) < least:
        raise LaunchError(text["number"].format(name, value, text["or_auto"] if has_auto else "", least))


def _unknown(said: str, name: str, text: dict[str, Any]) -> str:
    if name in ELSEWHERE:
        return str(text["elsewhere"].format(said, ELSEWHERE[name]))
    nearest = closest_name(name, [*OPTIONS, *ELSEWHERE])
    nearest = ELSEWHERE.get(nearest or "", nearest)
    return str(text["unknown"].format(said, text["nearest"].format(nearest) if nearest else ""))


def help_text(language: str) -> str:
    """All options, each with what it is for."""
    from kunren.cli.line_breaks import wrapped

    text: dict[str, Any] = WORDS[language]
    columns, at = 100, 1 + LANGUAGES.index(language)
    lines = [text["usage"], "", *wrapped(text["about"], columns), "", f"{text['options']}:"]
    for name, entry in OPTIONS.items():
        lines += [f"  {name} {entry[0]}".rstrip(), *wrapped(entry[at], columns, 6)]
    return "\n".join(lines)


def _check_source(request: Request, text: dict[str, Any]) -> bool:
    """Whether a configuration is to be trained; a LaunchError for a file or module that is not there."""
    source = request.source
    if source is None:
        raise LaunchError(text["no_script"])
    if "--module" in request.options:
        if Path(source).is_file():  # to look for it as a module would run it
            raise LaunchError(text["is_file"].format(source))
        found = None
        with contextlib.suppress(ImportError, ValueError):
            sys.path.insert(0, os.getcwd())  # where `python -m` looks first
            found = importlib.util.find_spec(source)
        if found is None:
            raise LaunchError(text["no_module"].format(source))
        return False
    path = Path(source)
    if path.is_dir():
        raise LaunchError(text["folder"].format(source))
    if not path.is_file():
        beside = [str(other) for other in path.parent.glob("*") if other.suffix in (".py", *_CONFIGS)]
        nearest = closest_name(str(path), beside)
        raise LaunchError(text["no_file"].format(source, text["nearest"].format(nearest) if nearest else ""))
    if path.suffix in _CONFIGS:
        return True
    with path.open("rb") as file:
        if path.suffix != ".py" and not re.match(rb"#!.*python", file.readline()):
            raise LaunchError(text["no_python"].format(source))
    return False


def _launch(request: Request, is_config: bool, text: dict[str, Any], given: Sequence[str]) -> int:
    values = _config(request) if is_config else {}
    is_on_cpu = "--cpu" in request.options or values.get("use_cpu") is True
    if "--cpu" in request.options:
        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}

    from kunren.base.environment import choose_device, visible_device_count
    from kunren.cli.elastic_agent import start

    count = visible_device_count(is_on_cpu)
    kind = choose_device(is_on_cpu).type
    launch, why = planned(request, count, "GPU" if kind == "cuda" else kind.upper(), is_on_cpu, text)
    told = [why, *_settings(launch, text)]
    if is_config and launch.max_restarts and not values.get("resume_from_checkpoint"):
        told.append(text["no_auto"])
    for line in told:
        print(f"kunren: {line}", file=sys.stderr, flush=True)
    status = start(launch, text)
    if status == _TO_BE_RESUMED and is_config:
        print(f"kunren: {text['on_later'].format(_command_to_resume(given, request))}", file=sys.stderr)
    return status


def _config(request: Request) -> dict[str, Any]:
    """What the file and the words after it say, so that a mistake is told once and not by every process."""
    from kunren.cli.run_config import ConfigError, read_config, read_overrides
    from kunren.cli.train import read_words as words_of_training

    try:
        return read_config(Path(str(request.source))) | read_overrides(words_of_training(request.words).words)
    except ConfigError as error:
        raise LaunchError(" ".join(str(error).split())) from error


def planned(request: Request, devices: int, kind: str, is_on_cpu: bool, text: dict[str, Any]) -> tuple[Launch, str]:
    """What is started on a machine with so many devices, and a line that says why."""
    from kunren.cli.elastic_agent import Launch

    is_auto = request.options.get("--processes", "auto") == "auto"
    processes = max(devices, 1) if is_auto else request.number("--processes", 1)
    seen = _counted(text["devices"], devices, kind) if devices else text["no_device"]
    if processes > devices > 0:
        raise LaunchError(text["too_many"].format(processes, seen, devices))
    nodes, node_rank, meeting = _nodes(request, text)
    why = text["on_cpu"] if is_on_cpu else text["visible" if is_auto else "asked"].format(seen)
    of_nodes = text["of_nodes"].format(node_rank, nodes, "{}:{}".format(*meeting)) if meeting and nodes > 1 else ""
    source, options = str(request.source), request.options
    if source.endswith(_CONFIGS) and "--module" not in options:
        started = ["module", "kunren", "train", source, *request.words]
    else:
        started = ["module" if "--module" in options else "script", source, *request.words]
    launch = Launch(
        words=(*_RUNNER, str(os.getpid()), *started),
        processes=processes,
        max_restarts=request.number("--max-restarts", 0),
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=meeting,
        address=options.get("--address") or (_own_address(meeting, text) if meeting and nodes > 1 else None),
        run_id=options.get("--run-id", "kunren"),
        log_dir=options.get("--log-dir"),
    )
    return launch, text["chosen"].format(_counted(text["processes"], processes), why, of_nodes)


def _counted(forms: tuple[str, str], number: int, *more: object) -> str:
    return forms[number != 1].format(number, *more)


def _nodes(request: Request, text: dict[str, Any]) -> tuple[int, int, tuple[str, int] | None]:
    """How many machines, which of them this is, and where they meet."""
    nodes = request.number("--nodes", 1)
    said = request.options.get("--rendezvous")
    if nodes == 1:
        for name in _FOR_NODES:
            if name in request.options and request.options[name] != "0":
                raise LaunchError(text["one_node"].format(name))
    elif said is None:
        raise LaunchError(text["no_rendezvous"].format(nodes))
    elif "--node-rank" not in request.options:
        raise LaunchError(text["no_rank"].format(nodes))
    rank = request.number("--node-rank", 0)
    if rank >= nodes:
        raise LaunchError(text["rank"].format(rank, nodes, nodes - 1))
    if said is None:
        return nodes, rank, None
    parts = re.fullmatch(r"(\[[^\]]+\]|[^:]+)(?::(\d+))?", said)
    port = int(parts[2] or _PORT) if parts else 0
    if parts is None or not 1 <= port <= 65535:
        raise LaunchError(text["port"].format(said))
    return nodes, rank, (parts[1].strip("[]"), port)


def _own_address(meeting: tuple[str, int], text: dict[str, Any]) -> str | None:
    """The address of this machine on the way to where all meet; None where that is known only to itself."""
    try:
        kind, *_, place = socket.getaddrinfo(*meeting, type=socket.SOCK_DGRAM)[0]
    except socket.gaierror:
        raise LaunchError(text["host"].format(meeting[0])) from None
    with contextlib.suppress(OSError), socket.socket(kind, socket.SOCK_DGRAM) as probe:
        probe.connect(place)  # sends nothing
        address = str(probe.getsockname()[0])
        if not address.startswith(("127.", "::1")):
            return address
    return None


def _settings(launch: Launch, text: dict[str, Any]) -> list[str]:
    """Variables that the processes are given unless they are set, and a line on each that matters."""
    told = []
    # Of launches whose processes share the meeting place's store, one in three fails: its port is taken meanwhile.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if "OMP_NUM_THREADS" not in os.environ and launch.processes > 1:
        threads = max(1, cores // launch.processes)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        told.append(text["threads"].format(threads, cores, launch.processes))
    interface = _interface_of(launch.address) if launch.address else None
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        os.environ["GLOO_SOCKET_IFNAME"] = interface  # gloo goes by the host's name, which may mean itself alone
        told.append(text["interface"].format(interface, launch.address))
    return told


def _interface_of(address: str) -> str | None:
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # without an address
                answer = fcntl.ioctl(probe.fileno(), 0x8915, name.encode()[:15].ljust(256, b"\0"))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def _command_to_resume(given: Sequence[str], request: Request) -> str:
    from kunren.cli.run_config import command_to_resume

    own = given[: len(given) - len(request.words)]
    return shlex.join(["kunren", "launch", *own]) + command_to_resume(request.words).removeprefix("kunren train")
