"""What a run reports to and is pushed to: trackers are tried offline in a process of their own, the hub is asked."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kunren.cli.check_findings import Findings
from kunren.trackers.registry import CALLBACKS, ELSEWHERE, tracker_names

_SECONDS = 120.0
# By which packages write to a folder instead of a server.
_OFFLINE = {
    "CLEARML_OFFLINE_MODE": "1",
    "CLEARML_CACHE_DIR": "{folder}/clearml",
    "CODECARBON_COUNTRY_ISO_CODE": "JPN",
    "COMET_START_ONLINE": "0",
    "COMET_OFFLINE_DIRECTORY": "{folder}/comet",
    "MLFLOW_TRACKING_URI": "sqlite:///{folder}/mlflow.db",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "NEPTUNE_MODE": "offline",
    "SWANLAB_MODE": "offline",
    "SWANLAB_LOG_DIR": "{folder}/swanlab",
    "TENSORBOARD_LOGGING_DIR": "{folder}/tensorboard",
    "TRACKIO_DIR": "{folder}/trackio",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_DIR": "{folder}",
    "HOME": "{folder}",
}
_TRIED = """
import sys
from pathlib import Path
from kunren.base.registry import resolve
from kunren.trackers.tracker import TrackedRun
tracker = resolve(sys.argv[1])().tracker
tracker.adopt()
tracker.start(TrackedRun({"learning_rate": 1.0}, {"model_type": "none"}, 1, None, "kunren-check", Path.cwd()))
tracker.log({"loss": 1.0}, 1)
tracker.finish("finished")
"""


def check_trackers(args: Any, findings: Findings) -> None:
    """Each by itself: a run is opened, one number is logged, and the run is closed."""
    for name in tracker_names(one for one in args.report_to or () if one not in ELSEWHERE):
        problem = try_offline(CALLBACKS[name])
        if problem is None:
            findings.ok("trackers", "tracker", name=name)
        else:
            findings.fail("trackers", "tracker fails", name=name, error=problem)


def try_offline(callback: str) -> str | None:
    """What the tracker of a callback, given as `module:name`, fails with; None where it logs. Leaves nothing behind."""
    with tempfile.TemporaryDirectory(prefix="kunren-check-") as folder:
        environment = dict(os.environ) | {name: value.format(folder=folder) for name, value in _OFFLINE.items()}
        places = [str(Path(place or ".").resolve()) for place in sys.path]  # the process starts elsewhere
        environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONUSERBASE": site.getuserbase()}
        command = [sys.executable, "-c", _TRIED, callback]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=_SECONDS, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {_SECONDS:.0f} s"
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return None if done.returncode == 0 else (lines or [f"status {done.returncode}"])[-1]


def check_hub(args: Any, findings: Findings) -> None:
    """Whether the repository could be made or written to; nothing is made and nothing is sent."""
    from kunren.hub.client import answering_within, is_offline
    from kunren.hub.problems import problem_of, without
    from kunren.hub.repository import token_in_use

    name = args.hub_model_id or os.path.basename(os.path.abspath(str(args.output_dir)))
    if is_offline():
        findings.fail("hub", "hub offline")
        return
    token = token_in_use(args.hub_token)
    try:
        with answering_within() as api:
            _ask(api, name, token, findings)
    except Exception as error:
        findings.fail("hub", "error", error=without(token, problem_of(error, name, args.hub_revision).text))


def _ask(api: Any, name: str, token: str | None, findings: Findings) -> None:
    me: Mapping[str, Any] = api.whoami(token=token)
    user = str(me["name"])
    groups = [str(one["name"]) for one in me.get("orgs") or ()]
    if ((me.get("auth") or {}).get("accessToken") or {}).get("role") == "read":
        findings.fail("hub", "hub reads only", user=user)
        return
    repository = name if "/" in name else f"{user}/{name}"
    namespace, _, short = repository.partition("/")
    if api.repo_exists(repository, token=token):
        api.auth_check(repository, token=token, write=True)
        findings.ok("hub", "hub", user=user, repository=repository)
    elif namespace in (user, *groups):
        findings.ok("hub", "hub new", user=user, repository=repository)
    else:
        others = ", ".join(groups) or "-"
        findings.fail("hub", "hub namespace", user=user, namespace=namespace, name=short, others=others)
