"""`kunren check SCRIPT.py:FUNCTION`: of a Trainer made in Python, each thing that would fail is named."""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from unit.cli.findings_of import failed, files_of, worst

import kunren
from kunren.cli import check, check_room, check_services, check_start
from kunren.cli.check_findings import Finding, Findings
from kunren.planning.forecast import Forecast

SCRIPT = '''\
import torch
from torch import nn

import kunren


class Model(nn.Module):
    """Counts of tokens to three classes; the last token of its embedding is 9."""

    def __init__(self, trained=True):
        super().__init__()
        self.tokens, self.head = nn.Embedding(10, 4), nn.Linear(4, 3)
        self.unused = nn.Linear(2, 2) if trained == "more" else None
        self.requires_grad_(bool(trained))

    def get_input_embeddings(self):
        return self.tokens

    def get_output_embeddings(self):
        return self.head

    def forward(self, input_ids, labels=None):
        logits = self.head(self.tokens(input_ids).mean(dim=1))
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return {"loss": loss, "logits": logits}


def rows(count=11, token=9, label=2):
    return [{"input_ids": torch.tensor([n % 9, token]), "labels": n % 3 if n else label} for n in range(count)]


def make(kind=kunren.Trainer, model=None, train=None, folder="out", **options):
    torch.manual_seed(0)
    given = {"per_device_train_batch_size": 4, "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 1}
    known = kunren.TrainingArguments.__dataclass_fields__
    given |= {name: options.pop(name) for name in list(options) if name in known}
    args = kunren.TrainingArguments(folder, **given)
    data = {"train_dataset": rows() if train is None else train, "eval_dataset": rows(7)}
    return kind(model or Model(), args, **(data | options))


def sound():
    return make()


def collator():
    def collate(rows):
        return {"input_ids": torch.stack([row["input_ids"] for row in rows]), "labels": rows[0]["nothing"]}

    return make(data_collator=collate)


def vocabulary():
    return make(train=rows(token=10))


def labels():
    return make(train=rows(label=3))


def frozen():
    return make(model=Model(trained=False))


def unused():
    return make(model=Model(trained="more"))


class Detached(Model):
    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        return found if labels is None else {**found, "loss": found["loss"].detach() + self.head.bias.sum() * 0 }


class Infinite(Model):
    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        return {**found, "loss": found["loss"] + 1e39} if self.training else found


class Root(Model):
    """The gradient of a root at zero is infinite, and its value is not."""

    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        return found if labels is None else {**found, "loss": found["loss"] + (self.head.bias * 0).sqrt().sum()}


def detached():
    return make(model=Detached())


def infinite():
    return make(model=Infinite())


def root():
    return make(model=Root())


class Fails(Model):
    def forward(self, input_ids, labels=None):
        if (input_ids == 8).any():
            raise RuntimeError("eight is too much")
        return super().forward(input_ids, labels)


def fails():
    return make(model=Fails())


def diverges():
    return make(learning_rate=1e38, optim="sgd", max_grad_norm=None, model=Steep())


class Steep(Model):
    def forward(self, input_ids, labels=None):
        found = super().forward(input_ids, labels)
        return found if labels is None else {**found, "loss": found["loss"] * 1e6}


def metrics():
    def compute_metrics(prediction):
        raise KeyError("no such key")

    return make(compute_metrics=compute_metrics)


def metrics_of_all():
    def compute_metrics(prediction):
        return {"right": float((prediction.predictions.argmax(-1) == [n % 3 for n in range(40)]).mean())}

    return make(compute_metrics=compute_metrics, eval_dataset=rows(40))


def nan_metric():
    return make(compute_metrics=lambda prediction: {"right": float("nan")})


class Forgets(kunren.Trainer):
    def _save(self, output_dir=None, state_dict=None):
        weights = {**self.model.state_dict()}
        weights["head.weight"] = weights["head.weight"] * 2
        super()._save(output_dir, weights)


def forgets():
    return make(kind=Forgets)


class Fine(kunren.Trainer):
    def _save_optimizer_and_scheduler(self, folder):
        raise OSError(28, "No space left on device")


def full():
    return make(kind=Fine)


def stream():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            yield from rows()

    return make(train=Stream(), max_steps=3)


def no_length():
    return make(train=[])


class OwnLoader(kunren.Trainer):
    """Batches of one's own; with `once` they can be gone through only once."""

    once = False

    def get_train_dataloader(self):
        row = rows()[1]
        batches = [{name: torch.as_tensor(value)[None] for name, value in row.items()} for _ in range(4)]
        return iter(batches) if self.once else batches


class ReadOnce(OwnLoader):
    once = True


def own_loader():
    return make(kind=OwnLoader, max_steps=3)


def read_once():
    return make(kind=ReadOnce, max_steps=3)


def pushed():
    return make(push_to_hub=True, hub_model_id="me/it")
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("script") / "checked_script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def found(script: Path, function: str) -> dict[str, Finding]:
    return worst(check.checked(f"{script}:{function}", [], "en"))


def test_a_sound_trainer_passes_and_trains_as_it_would_have(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[Any] = []
    made = check_start.trainer_of
    monkeypatch.setattr(check_start, "trainer_of", lambda *words: kept.append(made(*words)) or kept[-1])
    results = found(script, "sound")
    assert {name for name, one in results.items() if one.verdict != "ok"} == set()
    assert {"vocabulary", "labels", "loss", "gradients", "step", "evaluation", "saving"} <= set(results)
    assert list(tmp_path.iterdir()) == [] and files_of(script.parent).keys() == {"checked_script.py"}
    (trainer,) = kept
    other = made(str(script), "sound")
    assert all(map(torch.equal, trainer.model.state_dict().values(), other.model.state_dict().values()))
    assert trainer.train().training_loss == other.train().training_loss
    assert all(map(torch.equal, trainer.model.state_dict().values(), other.model.state_dict().values()))


BROKEN = {
    "collator": ({"collator"}, "cannot be put into a batch: KeyError: 'nothing'"),
    "vocabulary": ({"vocabulary"}, "row 0 of train_dataset has the token 10, and the embedding of the model has 10"),
    "labels": ({"labels"}, "row 0 of train_dataset has the label 3, and the model has 3 outputs (0 to 2)"),
    "frozen": ({"gradients"}, "no weight of Model is trained"),
    "infinite": ({"loss"}, "the loss of the last rows (8, 9, 10) is inf"),
    "fails": ({"loss"}, "eight is too much"),
    "root": ({"gradients"}, "not finite: head.bias"),
    "diverges": ({"step"}, "after one step these are not finite"),
    "metrics": ({"evaluation"}, "no such key"),
    "nan_metric": ({"evaluation"}, "not finite: eval_right nan"),
    "forgets": ({"saving"}, "after loading these weights are others: head.weight"),
    "full": ({"saving"}, "No space left on device"),
    "no_length": ({"collator"}, "The training set is empty"),
    "pushed": ({"hub"}, "HF_HUB_OFFLINE"),
}


@pytest.mark.parametrize("function", BROKEN)
def test_what_is_broken_is_named(function: str, script: Path, tmp_path: Path) -> None:
    checks, said = BROKEN[function]
    results = found(script, function)
    assert set(failed(results)) == checks
    assert any(said in results[name].detail for name in checks), [results[name].detail for name in checks]
    assert list(tmp_path.iterdir()) == []


def test_what_may_be_meant_is_a_warning(script: Path) -> None:
    unused = found(script, "unused")
    assert failed(unused) == [] and unused["gradients"].detail.endswith("get none: unused.weight, unused.bias")
    of_all = found(script, "metrics_of_all")
    assert failed(of_all) == [] and of_all["evaluation"].verdict == "warning"
    assert failed(found(script, "stream")) == []
    own = found(script, "own_loader")
    assert failed(own) == [] and own["step"].verdict == "ok"
    once = found(script, "read_once")
    assert failed(once) == [] and once["step"].detail.startswith("the data can be gone through once only")
    detached = found(script, "detached")
    assert detached["gradients"].verdict == "warning" and "tokens.weight" in detached["gradients"].detail


# ---- room, trackers and the hub, which a test cannot break for real


def forecast_with(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    real = check_room.forecast
    monkeypatch.setattr(
        check_room, "forecast", lambda *given: dataclasses.replace(real(*given), **values) if values else real(*given)
    )


def test_memory_that_does_not_do(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast_with(monkeypatch, free_device_bytes=100)
    results = found(script, "sound")
    assert failed(results) == ["memory"] and "100 B are free on cpu" in results["memory"].detail
    assert "per_device_train_batch_size" in results["memory"].remedy


def test_a_disk_that_does_not_do(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast_with(monkeypatch, free_disk_bytes=100)
    results = found(script, "sound")
    assert failed(results) == ["disk"] and "100 B are free" in results["disk"].detail


def test_memory_is_measured_with_the_longest_rows_together(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Forecast] = []
    real = check_room.forecast
    monkeypatch.setattr(check_room, "forecast", lambda *given: seen.append(real(*given)) or seen[-1])
    made = check_start.trainer_of

    def with_long_rows(*words: str) -> Any:
        trainer = made(*words)
        lengths = [2] * 20 + [8, 9] + [2] * 20 + [7, 6] + [2] * 5
        trainer.eval_dataset = None
        trainer.train_dataset = [{"input_ids": [1] * length, "labels": 0} for length in lengths]
        trainer.data_collator = lambda rows: {
            "input_ids": torch.tensor([(row["input_ids"] + [0] * 9)[:9] for row in rows])[
                :, : max(len(row["input_ids"]) for row in rows)
            ],
            "labels": torch.tensor([row["labels"] for row in rows]),
        }
        return trainer

    monkeypatch.setattr(check_start, "trainer_of", with_long_rows)
    assert failed(found(script, "sound")) == []
    assert seen[0].largest_batch == "4 rows, 36 tokens"  # the rows of 9, 8, 7 and 6


def test_trackers_are_tried_without_leaving_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackers_of_a_test.py").write_text(
        "from kunren.trackers.tensorboard import TensorBoardTracker\n"
        "class Broken:\n"
        "    class tracker(TensorBoardTracker):\n"
        "        def log(self, metrics, step): raise OSError('no more')\n"
        "    tracker = tracker()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before, home = files_of(tmp_path), files_of(Path.home() / ".config") if (Path.home() / ".config").exists() else {}
    assert check_services.try_offline("kunren.trackers.tensorboard:TensorBoardCallback") is None
    problem = check_services.try_offline("trackers_of_a_test:Broken")
    assert problem == "OSError: no more"
    assert [name for name in files_of(tmp_path) if "__pycache__" not in name] == list(before)
    assert not (Path.home() / ".config").exists() or files_of(Path.home() / ".config") == home


def test_a_tracker_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_services, "try_offline", lambda callback: "it is tired")
    findings = Findings("en")
    check_services.check_trackers(kunren.TrainingArguments("out", report_to="tensorboard"), findings)
    assert findings.found[0] == Finding("trackers", "failed", "tensorboard: it is tired", findings.found[0].remedy)


class Hub:
    """A hub of which `me` is a user, with a group, and a repository of somebody else's."""

    role = "write"

    def whoami(self, token: Any = None) -> dict[str, Any]:
        return {"name": "me", "orgs": [{"name": "us"}], "auth": {"accessToken": {"role": self.role}}}

    def repo_exists(self, name: str, token: Any = None) -> bool:
        return name in ("me/old", "them/old")

    def auth_check(self, name: str, token: Any = None, write: bool = False) -> None:
        assert write
        if name == "them/old":
            error = OSError("you may not")
            error.response = types.SimpleNamespace(status_code=403, headers={})  # type: ignore[attr-defined]
            raise error


@pytest.mark.parametrize(
    ("name", "role", "verdict", "said"),
    [
        ("me/old", "write", "ok", "me may write to me/old"),
        ("new", "write", "ok", "me may make me/new, which is not there yet"),
        ("us/new", "write", "ok", "me may make us/new"),
        ("them/new", "write", "failed", "me may not write into them"),
        ("them/old", "write", "failed", "may not write to them/old"),
        ("me/old", "read", "failed", "may read and not write"),
    ],
)
def test_the_hub_is_asked_and_nothing_is_made(
    name: str, role: str, verdict: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    from kunren.hub import client

    hub = Hub()
    hub.role = role
    monkeypatch.setattr(client, "is_offline", lambda: False)
    monkeypatch.setattr(client, "answering_within", lambda: nullcontext(hub))
    findings = Findings("en")
    check_services.check_hub(
        kunren.TrainingArguments("out/new", hub_model_id=None if name == "new" else name), findings
    )
    assert findings.found[0].verdict == verdict and said in findings.found[0].detail
