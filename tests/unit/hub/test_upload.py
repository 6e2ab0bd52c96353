"""What reaches the hub, and when: the same as from transformers, whole, and never at the training's cost."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch
import transformers
from unit.hub import hub_server
from unit.hub.hub_server import TOKEN

import kunren
from kunren.checkpoint import layout
from kunren.hub import pusher
from kunren.hub.problems import HubError

# What kunren writes into its folders, and transformers does not.
OWN_FILES = {"metrics.jsonl", "report.html", "curves.png", "manifest.json", "cursor.json"}


class WaitsForPushes(transformers.TrainerCallback):
    """Makes the sequence the same for both: transformers leaves out what comes while a push is on its way."""

    trainer: Any

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self.trainer._finish_current_push()


class Hooks(kunren.TrainerCallback):
    """Calls what it is given, by the name of the event."""

    def __init__(self, **hooks: Any) -> None:
        self.hooks = hooks

    def on_train_end(self, *args: Any, **kwargs: Any) -> None:
        self.hooks.get("on_train_end", lambda: None)()

    def on_push_begin(self, *args: Any, **kwargs: Any) -> None:
        self.hooks.get("on_push_begin", lambda: None)()


def shared(trainer: Any, hub: Any) -> list[tuple[str, set[str]]]:
    """Message and files of each commit, kunren's own files left out."""
    trainer.train()
    trainer.push_to_hub()
    return [
        (commit.message, {name for name in commit.files if name.rpartition("/")[2] not in OWN_FILES})
        for commit in hub.only().commits
    ]


@pytest.mark.filterwarnings("ignore:Use 'content=")
@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_the_hub_gets_what_transformers_sends(strategy: str, hub: Any, build: Any, tmp_path: Path) -> None:
    found = {}
    for library in (transformers, kunren):
        waits = WaitsForPushes()
        folder = str(tmp_path / library.__name__ / "my-model")
        trainer = build(library, output_dir=folder, hub_strategy=strategy, trainer={"callbacks": [waits]})
        waits.trainer = trainer
        found[library] = shared(trainer, hub)
        assert trainer.hub_model_id == "me/my-model"
        tree = hub.repositories.pop("me/my-model").files()
        weights = {name: safetensors.torch.load(data) for name, data in tree.items() if name.endswith(".safetensors")}
        found[library].append(("files", {name for name in tree if name.rpartition("/")[2] not in OWN_FILES}))
        found[library, "weights"] = weights
    assert found[kunren] == found[transformers]
    ours, theirs = found[kunren, "weights"], found[transformers, "weights"]
    assert ours.keys() == theirs.keys() and "model.safetensors" in ours
    for name, tensors in theirs.items():
        assert all(torch.equal(ours[name][key], tensor) for key, tensor in tensors.items())


def test_a_slow_hub_gets_the_newest_and_holds_up_nothing(hub: Any, build: Any) -> None:
    hub.hang.set()
    seen: list[list[str]] = []

    def at_the_end() -> None:
        seen.append(list(hub.only().messages))
        hub.hang.clear()

    trainer = build(save_steps=1, trainer={"callbacks": [Hooks(on_train_end=at_the_end)]})
    trainer.train()
    assert seen == [[]]  # all four steps were done before the first commit was answered
    messages = hub.only().messages
    assert messages[0] == "Training in progress, step 1" and messages[-1] == "Training in progress, step 4"
    assert len(messages) < 4 and hub.most_uploading == 1
    assert weights_on(hub) == weights_of(trainer.model)
    assert leftovers(trainer) == []


def test_what_is_always_pushed_or_all_is_pushed_in_order(hub: Any, build: Any) -> None:
    hub.delay = 0.05
    build(hub_strategy="all_checkpoints", hub_always_push=True).train()
    assert hub.only().messages == [
        f"Training in progress, step {step}{what}" for step in (2, 4) for what in ("", ", checkpoint")
    ]
    assert {name.partition("/")[0] for name in hub.only().files() if "/" in name} == {"checkpoint-2", "checkpoint-4"}


def test_a_checkpoint_is_whole_though_rotation_deletes_it_amid_the_upload(hub: Any, build: Any, tmp_path: Path) -> None:
    hub.hang.set()
    trainer = build(
        save_steps=1,
        max_steps=3,
        save_total_limit=1,
        hub_strategy="all_checkpoints",
        trainer={"callbacks": [Hooks(on_train_end=hub.hang.clear)]},
    )
    trainer.train()
    assert [path.name for path in layout.list_checkpoints(trainer.args.output_dir)] == ["checkpoint-3"]
    for name, content in hub.only().files().items():
        (tmp_path / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / name).write_bytes(content)
    for step in (1, 2, 3):
        assert layout.problems(tmp_path / "hub" / f"checkpoint-{step}", digests=True) == []


def test_last_checkpoint_is_that_of_one_step(hub: Any, build: Any) -> None:
    trainer = build(hub_strategy="checkpoint", max_steps=2)
    hub.only().branches["main"] |= {"last-checkpoint/rng_state_7.pth": b"old", "mine.txt": b"stays"}
    trainer.train()
    assert "last-checkpoint/rng_state_7.pth" not in hub.only().files()
    assert "mine.txt" in hub.only().files() and "last-checkpoint/optimizer.pt" in hub.only().files()


def test_a_failing_hub_ends_nothing_and_is_told_once(hub: Any, build: Any, caplog: pytest.LogCaptureFixture) -> None:
    trainer = build(save_steps=1)
    hub.failures["commit"] = [500] * 100
    assert trainer.train().global_step == 4
    told = [record.getMessage() for record in caplog.records if "hub has an error of its own" in record.getMessage()]
    assert len(told) == 2  # when it failed, and at the end
    assert told[0].startswith("Sending checkpoint-") and "said once" in told[0]
    assert told[1].startswith("me/model lacks checkpoint-4: ") and "push_to_hub()" in told[1]
    with pytest.raises(HubError, match="Sending the model to me/model has failed: .*500.*All files are in"):
        trainer.push_to_hub()
    caplog.clear()
    trainer.save_model()
    assert "The model is saved, and not shared. Sending" in caplog.text
    assert (Path(trainer.args.output_dir) / "model.safetensors").exists()
    hub.failures.clear()
    trainer.push_to_hub()
    assert weights_on(hub) == weights_of(trainer.model)


def test_a_hiccup_is_tried_again(
    hub: Any, build: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pusher, "RETRY_AFTER_SECONDS", (0.05, 0.05))
    trainer = build(hub_strategy="checkpoint", save_steps=4)
    hub.failures["commit"] = [503, None, 429]  # the model's commit goes through at the second attempt
    trainer.train()
    assert hub.only().messages == ["Training in progress, step 4", "Training in progress, step 4, checkpoint"]
    assert "failed" not in caplog.text
    sent = [request for request in hub.requests if request.startswith("PUT")]
    assert len(sent) == len(set(sent)) > 3  # nothing large is sent twice


def test_the_clients_other_way_to_upload(hub: Any, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hf_xet the client streams files into commits; large ones would go to a storage that the stub has not."""
    monkeypatch.setattr(hub_server, "LARGE", ())
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "0")
    trainer = build(hub_strategy="checkpoint", max_steps=2)
    trainer.train()
    assert hub.only().messages == ["Training in progress, step 2", "Training in progress, step 2, checkpoint"]
    assert weights_on(hub) == weights_of(trainer.model)


def test_rights_that_are_lost_are_told_and_not_tried_again(
    hub: Any, build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = build(save_steps=4)
    hub.failures["commit"] = [403, 200]
    trainer.train()
    assert "the token may not write to me/model" in caplog.text
    assert hub.failures["commit"] == [200]


def test_a_push_in_the_middle_of_a_training_that_fails_is_a_warning(
    hub: Any, build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Pushes(kunren.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            answers.append(trainer.push_to_hub())

    answers: list[Any] = []
    trainer = build(max_steps=1, hub_strategy="end", trainer={"callbacks": [Pushes()]})
    hub.failures["commit"] = [403]
    assert trainer.train().global_step == 1
    assert answers == [None] and "The training goes on." in caplog.text


@pytest.mark.parametrize("blocking", [True, False])
def test_push_returns_what_transformers_returns(blocking: bool, hub: Any, build: Any) -> None:
    began: list[int] = []
    trainer = build(push_to_hub=False, trainer={"callbacks": [Hooks(on_push_begin=lambda: began.append(1))]})
    assert trainer.hub_model_id is None and hub.requests == []
    answer = trainer.push_to_hub("A message", blocking=blocking, private=True, token=TOKEN)
    if not blocking:
        assert isinstance(answer, Future)
        answer = answer.result(60)
    assert isinstance(answer, huggingface_hub.CommitInfo)
    assert (answer.commit_message, answer.repo_url.repo_id) == ("A message", "me/model")
    assert hub.only().private and hub.only().messages == ["A message"] and began == [1]


def test_saving_the_model_pushes_it(hub: Any, build: Any) -> None:
    class Own(kunren.Trainer):
        def create_model_card(self, **options: Any) -> None:
            cards.append(options)

        def push_to_hub(self, *args: Any, **options: Any) -> Any:
            pushes.append(options)
            return super().push_to_hub(*args, **options)

    cards: list[Any] = []
    pushes: list[Any] = []
    trainer = build(cls=Own, hub_strategy="end", hub_model_id="org/another")
    trainer.model.model_tags = ["tiny"]
    trainer.save_model()
    assert hub.repositories["org/another"].messages == ["Model save"]
    assert cards == [{"model_name": "another", "tags": ["tiny"]}] and len(pushes) == 1


def test_a_branch_is_made_and_pushed_to(hub: Any, build: Any) -> None:
    trainer = build(hub_revision="experiment", max_steps=2)
    trainer.train()
    trainer.push_to_hub()
    assert {commit.revision for commit in hub.only().commits} == {"experiment"}
    assert hub.only().files("main") == {} and "model.safetensors" in hub.only().files("experiment")


def test_epochs_are_named_where_they_are_what_is_saved(hub: Any, build: Any) -> None:
    build(save_strategy="epoch", max_steps=-1, num_train_epochs=1).train()
    assert hub.only().messages == ["Training in progress, epoch 1"]


def test_what_is_not_of_the_model_stays_here(hub: Any, build: Any, tmp_path: Path) -> None:
    names = ["notes.txt", ".gitignore", "runs/events.1", "_private.txt", ".env", "run-1/checkpoint-9/model.bin"]
    for name in names:
        (tmp_path / "model" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "model" / name).write_text("*.log" if name == ".gitignore" else "x")
    (tmp_path / "model" / "debug.log").write_text("x")
    trainer = build(max_steps=2)
    trainer.train()
    trainer.push_to_hub()
    found = {name for commit in hub.only().commits for name in commit.files}
    assert found & {*names, "debug.log", "events.jsonl"} == {"notes.txt", ".gitignore", "runs/events.1"}


def test_the_token_is_nowhere(hub: Any, build: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kunren")
    trainer = build(hub_token=TOKEN, hub_strategy="checkpoint", max_steps=2, eval_strategy="steps", eval_steps=1)
    hub.failures["preupload"] = [403]
    trainer.train()
    trainer.save_state()
    trainer.push_to_hub()
    with pytest.raises(HubError) as refused:
        hub.failures["commit"] = [401]
        (tmp_path / "model" / "new.txt").write_text("new")
        trainer.push_to_hub(token=TOKEN)
    texts = [caplog.text, repr(trainer.args), str(trainer.args), str(refused.value)]
    texts += [str(entry) for entry in trainer.state.log_history]
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    contents += [content for commit in hub.only().commits for content in commit.files.values()]
    assert len(contents) > 20
    assert not any(TOKEN in text for text in texts)
    assert not any(TOKEN.encode() in content for content in contents)


def test_ctrl_c_ends_the_wait_for_the_hub(hub: Any, build: Any, caplog: pytest.LogCaptureFixture) -> None:
    hub.hang.set()
    trainer = build(max_steps=2)

    def ask_to_stop() -> None:
        began.append(time.monotonic())
        trainer._run.requests.is_asked_to_stop = len(began) > 1

    began: list[float] = []
    asked = trainer.is_asked_to_stop
    trainer.is_asked_to_stop = lambda: (ask_to_stop(), asked())[1]
    trainer.train()
    assert time.monotonic() - began[0] < 10
    assert "me/model lacks checkpoint-2: it was broken off." in caplog.text and leftovers(trainer) == []


def test_a_training_that_fails_waits_for_no_hub(hub: Any, tmp_path: Path) -> None:
    """The process ends with the error, though the hub has taken the connection and never answers."""
    hub.hang.set()
    script, go = tmp_path / "script.py", tmp_path / "go"
    script.write_text(_FAILING)
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script), str(tmp_path / "model"), str(go)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + 60
        while hub.uploading == 0 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        assert hub.uploading == 1  # an upload is on its way
        failed = time.monotonic()
        go.touch()
        assert process.stderr is not None and "RuntimeError: as planned" in process.stderr.read()
        assert process.wait(30) == 1
    assert time.monotonic() - failed < 20
    assert not [path for path in (tmp_path / "model").iterdir() if path.name.startswith(".hub-push-")]


_FAILING = """
import os, sys, time
import kunren, torch
from torch import nn

class Fails(kunren.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.02)
            raise RuntimeError("as planned")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(2, 1)
    def forward(self, x, labels):
        return {"loss": (self.line(x)[:, 0] - labels).pow(2).mean()}

data = [{"x": torch.ones(2), "labels": torch.ones(())} for _ in range(8)]
args = kunren.TrainingArguments(sys.argv[1], push_to_hub=True, max_steps=3, save_steps=1, report_to="none",
                                use_cpu=True, run_report=False)
trainer = kunren.Trainer(Model(), args, train_dataset=data, callbacks=[Fails()])
trainer.train()
"""


def weights_on(hub: Any) -> dict[str, list[float]]:
    return flat(safetensors.torch.load(hub.only().files()["model.safetensors"]))


def weights_of(model: Any) -> dict[str, list[float]]:
    return flat(model.state_dict())


def flat(tensors: dict[str, torch.Tensor]) -> dict[str, list[float]]:
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items() if tensor.is_floating_point()}


def leftovers(trainer: Any) -> list[Path]:
    return [path for path in Path(trainer.args.output_dir).iterdir() if path.name.startswith(".hub-push-")]
