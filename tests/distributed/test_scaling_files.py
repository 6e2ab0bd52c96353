"""The files of examples/scaling: shells and schedulers can read them, and what they start trains.

Slurm and Kubernetes are not here: Slurm's commands are stood in for by scripts, the YAML is held against itself.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.run
import yaml

import kunren
from kunren.checkpoint import layout
from kunren.cli.launch import Request, read_words
from kunren.cli.launch_words import WORDS

FILES = Path(__file__).parents[2] / "examples" / "scaling"
SRUN = """\
#!/bin/bash
shift  # --kill-on-bad-exit
for node in 0 1; do
    SLURM_NODEID=$node "$@" &
    echo $! >> {folder}/launchers
done
wait -n || status=$?
wait -n || status=$?
exit ${{status:-0}}
"""
SCONTROL = """\
#!/bin/bash
if [ "$1" = show ]; then echo localhost; else echo "$@" >> {folder}/scontrol; fi
"""
SMALL = ["--layers", "1", "--width", "16", "--length", "32", "--batch", "4", "--save-steps", "10"]


def program(folder: Path, name: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("name", ["slurm.sbatch", "torchrun.sh", "kunren_launch.sh"])
def test_shells_can_read_them(name: str) -> None:
    done = subprocess.run(["bash", "-n", str(FILES / name)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def words_of(script: str, command: str, folder: Path, **variables: str) -> list[str]:
    """What a script of three words for itself and two for the training gives to a command, from another folder."""
    program(folder / "bin", command, '#!/bin/bash\nprintf "%s\\n" "$@"\n')
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    words = ["bash", str(FILES / script), "8", "first", "3", "my text", "out"]
    return subprocess.run(
        words, cwd=folder, env=os.environ | {"PATH": path} | variables, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_torchrun_knows_its_options(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", "#!/bin/bash\nexit 9\n")
    found = torch.distributed.run.get_args_parser().parse_args(words_of("torchrun.sh", "torchrun", tmp_path))
    assert (found.nnodes, found.rdzv_endpoint, found.rdzv_conf) == ("8", "first:29400", "is_host=false")
    assert (found.training_script, found.training_script_args) == (str(FILES / "train.py"), ["my text", "out"])
    assert found.nproc_per_node == "2"
    assert "--nproc-per-node=5" in words_of("torchrun.sh", "torchrun", tmp_path, PROCESSES="5")
    program(tmp_path / "bin", "nvidia-smi", "#!/bin/bash\necho 'GPU 0: NVIDIA (UUID: GPU-1)'\n")
    assert "--nproc-per-node=gpu" in words_of("torchrun.sh", "torchrun", tmp_path)


@pytest.mark.parametrize("name", ["torchrun.sh", "kunren_launch.sh"])
def test_scripts_without_words_say_which_they_take(name: str) -> None:
    done = subprocess.run(["bash", str(FILES / name), "1"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: {FILES / name} MACHINES") and done.stderr.count("\n") == 1


def test_workers_of_ray_get_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "more").touch()
    words = runpy.run_path(str(FILES / "ray_train.py"))["words_for_workers"]
    found = words("text.txt", "out", ["--steps", "5", "--other", "more"])
    assert found == [
        str(tmp_path / "text.txt"),
        str(tmp_path / "out"),
        "--steps",
        "5",
        "--other",
        str(tmp_path / "more"),
    ]


def as_launched(words: list[str]) -> Request:
    assert words[0] == "launch"
    return read_words(words[1:], WORDS["en"])


def test_kunren_launch_knows_its_options(tmp_path: Path) -> None:
    found = as_launched(words_of("kunren_launch.sh", "kunren", tmp_path))
    expected = {"--nodes": "8", "--node-rank": "3", "--rendezvous": "first", "--max-restarts": "3"}
    assert (found.options, found.source, found.words) == (expected, str(FILES / "train.py"), ["my text", "out"])


def container_words(container: dict[str, Any]) -> Request:
    assert container["command"] == ["sh", "-c"]
    (line,) = container["args"]
    words = shlex.split(re.sub(r"\$\w+", "1", line))
    assert words[:2] == ["exec", "kunren"]
    return as_launched(words[2:])


def test_the_job_of_kubernetes_agrees_with_itself() -> None:
    service, job = yaml.safe_load_all((FILES / "kubernetes_job.yaml").read_text())
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    template = job["spec"]["template"]
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    found = container_words(template["spec"]["containers"][0])
    assert int(found.options["--nodes"]) == job["spec"]["completions"] == job["spec"]["parallelism"]
    first = f"{job['metadata']['name']}-0.{template['spec']['subdomain']}"
    assert found.options["--rendezvous"].split(":")[0] == first
    assert template["spec"]["subdomain"] == service["metadata"]["name"]
    assert job["spec"]["completionMode"] == "Indexed" and template["spec"]["restartPolicy"] == "Never"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    assert rules[0] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    by_status = [(rule["action"], rule["onExitCodes"]["operator"], rule["onExitCodes"]["values"]) for rule in rules[1:]]
    assert by_status == [("Ignore", "In", [75]), ("FailJob", "In", [2])]
    names = {rule["onExitCodes"]["containerName"] for rule in rules[1:]}
    assert names == {template["spec"]["containers"][0]["name"]}


def test_the_job_of_kubeflow_agrees_with_itself() -> None:
    (job,) = yaml.safe_load_all((FILES / "kubernetes_pytorchjob.yaml").read_text())
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert replicas["Master"]["replicas"] + replicas["Worker"]["replicas"] == 8
    for kind in ("Master", "Worker"):
        (container,) = replicas[kind]["template"]["spec"]["containers"]
        assert container["name"] == "pytorch"
        found = container_words(container)
        assert (found.source, found.options["--max-restarts"]) == ("train.py", "3")
        assert container["resources"]["limits"]["nvidia.com/gpu"] == int(job["spec"]["nprocPerNode"])


def submit(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The batch script, with commands in the place of Slurm's, on two "nodes" that are both this machine."""
    program(folder / "bin", "srun", SRUN.format(folder=folder))
    program(folder / "bin", "scontrol", SCONTROL.format(folder=folder))
    program(folder / "bin", "kunren", f'#!/bin/bash\nexec {sys.executable} -m kunren "$@"\n')
    (folder / "text").write_bytes(bytes(range(97, 123)) * 200)
    variables = {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(kunren.__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "SLURM_NNODES": "2",
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "node[0-1]",
    }
    return subprocess.Popen(
        ["bash", "slurm.sbatch", str(folder / "text"), str(folder / "out"), *SMALL, *words],
        cwd=FILES,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.distributed
@pytest.mark.slow
def test_the_job_of_slurm_goes_on_until_it_is_done(tmp_path: Path) -> None:
    job = submit(tmp_path, "--steps", "3000")
    try:
        deadline = time.monotonic() + 45
        while not layout.list_checkpoints(tmp_path / "out"):
            assert job.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        for launcher in (tmp_path / "launchers").read_text().split():  # what Slurm does when the time is nearly over
            os.kill(int(launcher), signal.SIGTERM)
        said, _ = job.communicate(timeout=40)
    assert job.returncode == 75, said
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"
    newest = layout.newest_whole(tmp_path / "out")
    assert newest is not None and 10 <= (layout.step_of(newest) or 0) < 3000
    assert not (tmp_path / "out" / "model.safetensors").exists()

    steps = (layout.step_of(newest) or 0) + 5
    job = submit(tmp_path, "--steps", str(steps))
    said, _ = job.communicate(timeout=50)
    assert job.returncode == 0, said
    assert (tmp_path / "scontrol").read_text() == "requeue 77\n"  # not once more
    assert (tmp_path / "out" / f"checkpoint-{steps}").is_dir() and (tmp_path / "out" / "model.safetensors").exists()
