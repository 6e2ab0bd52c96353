"""kunren keeps the rules of `rules.py`, and each of them catches what it is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kunren
from architecture import rules

PACKAGE = Path(kunren.__file__).parent
Rule = Callable[[Path], list[str]]
RULES: list[Rule] = [
    rules.too_long,
    rules.core_too_large,
    rules.upward_imports,
    rules.import_cycles,
    rules.strangers,
    rules.empty_names,
]

# A name that is added or goes is a decision: it is made here, and told in CHANGELOG.md.
PUBLIC_NAMES = """
Adafactor DataCollatorForLanguageModeling DataCollatorForMultipleChoice
DataCollatorForPermutationLanguageModeling DataCollatorForSeq2Seq DataCollatorForTokenClassification
DataCollatorWithFlattening DataCollatorWithPadding DefaultDataCollator DefaultFlowCallback
EarlyStoppingCallback EvalLoopOutput LOSS_MAPPING fixed_cross_entropy
EvalPrediction IntervalStrategy OptimizerNames PredictionOutput PrinterCallback ProgressCallback SaveStrategy
SchedulerType TrainOutput Trainer TrainerCallback TrainerControl TrainerState TrainingArguments __version__
default_data_collator enable_full_determinism get_constant_schedule get_constant_schedule_with_warmup
get_cosine_schedule_with_warmup get_last_checkpoint get_linear_schedule_with_warmup get_scheduler set_seed
get_cosine_with_hard_restarts_schedule_with_warmup get_cosine_with_min_lr_schedule_with_warmup
get_cosine_with_min_lr_schedule_with_warmup_lr_rate get_greedy_schedule
get_inverse_sqrt_schedule get_polynomial_decay_schedule_with_warmup get_reduce_on_plateau_schedule get_wsd_schedule
GreedyLR NotebookProgressCallback ClearMLCallback CodeCarbonCallback CometCallback DVCLiveCallback MLflowCallback
NeptuneCallback SwanLabCallback TensorBoardCallback TrackioCallback WandbCallback
Seq2SeqTrainer Seq2SeqTrainingArguments HfArgumentParser
"""


TRAINER_IMPORT = "from kunren import Trainer, TrainingArguments"
# What `TRAINER_IMPORT` loads of the catalogues. The rest waits until it is switched on, or asked for by its name; what
# only a training or an evaluation needs waits for the first one.
NEEDED_OF_CATALOGUES = """
checkpoint.formats checkpoint.formats.beside_model checkpoint.formats.direct_file checkpoint.formats.plain_values
checkpoint.formats.safetensors_file checkpoint.formats.shards checkpoint.formats.torch_file
collators collators.columns collators.default collators.stacking
data.batching data.batching.choose data.wrappers data.wrappers.mixture
engine.backends engine.backends.device_clock engine.backends.fused_adamw engine.backends.lean engine.backends.plain
losses.functions metrics metrics.metric_object optim.groups optim.groups.divide optim.optimizers optim.schedules
seams.refused_overrides seams.refused_overrides_called
trackers trackers.json_lines trackers.local_log trackers.registry trackers.run_events
"""
NOT_NEEDED_OTHERWISE = """
arguments.changes arguments.help_texts arguments.help_ja data.reader loop.evaluate loop.run loop.train
losses.functions.label_smoothing model.attention model.transformers_losses plan seams.lifecycle
"""


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_kunren_keeps_the_rule(rule: Rule) -> None:
    assert rule(PACKAGE) == []


def test_the_public_surface_is_frozen() -> None:
    assert sorted(kunren.__all__) == sorted(PUBLIC_NAMES.split())
    assert all(hasattr(kunren, name) for name in kunren.__all__)


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import kunren", "torch numpy transformers datasets accelerate tqdm pandas"),
        ("import kunren.cli.main", "torch numpy transformers datasets accelerate tqdm pandas"),
        (TRAINER_IMPORT, "transformers datasets accelerate tqdm pandas safetensors numpy.random fractions secrets"),
    ],
)
def test_what_an_import_does_not_load(statement: str, unwanted: str) -> None:
    loaded = loaded_by(statement)
    assert "kunren" in loaded
    assert sorted(loaded & set(unwanted.split())) == []


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement adds in a fresh interpreter; to those of torch, where it needs torch."""
    first = "import torch" if "Trainer" in statement else "pass"  # torch itself loads tqdm
    code = f"import sys; {first}; before = set(sys.modules); {statement}; print(*sys.modules.keys() - before)"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return set(result.stdout.split())


def test_a_trainer_loads_what_every_trainer_needs() -> None:
    loaded = {name.removeprefix("kunren.") for name in loaded_by(TRAINER_IMPORT) if name.startswith("kunren.")}
    # Groups of arguments are one class, whose fields are all there.
    of_catalogues = {name for name in loaded if _is_of_a_catalogue(name) and not name.startswith("arguments")}
    assert "collators.default" in of_catalogues
    assert sorted(of_catalogues - set(NEEDED_OF_CATALOGUES.split())) == []
    assert sorted(loaded & set(NOT_NEEDED_OTHERWISE.split())) == []


def _is_of_a_catalogue(name: str) -> bool:
    path = name.replace(".", "/")
    return (path + "/" if (PACKAGE / path).is_dir() else path).startswith(rules.CATALOGUES)


def lines(count: int) -> str:
    return "x = 1\n" * count


def function(count: int) -> str:
    return "def f():\n" + "    x = 1\n" * (count - 1)


# Rule, a tree that breaks it, what the message must name, and the nearest tree that does not.
VIOLATIONS = [
    (rules.too_long, {"base/a.py": lines(401)}, "401 lines", {"base/a.py": lines(400)}),
    (rules.too_long, {"base/a.py": function(61)}, "f: 61 lines", {"base/a.py": function(60)}),
    (
        rules.core_too_large,
        {f"base/a{i}.py": lines(400) for i in range(14)},
        "5600 lines",
        {f"collators/a{i}.py": lines(400) for i in range(14)},
    ),
    (
        rules.upward_imports,
        {"loop/a.py": "from kunren.trainer import Trainer", "trainer.py": ""},
        r"loop/a.py:1 \(4\)",
        {"trainer.py": "from kunren.loop import a"},
    ),
    (
        rules.upward_imports,
        {"base/a.py": "def f():\n    from kunren import Trainer"},
        r"base/a.py:2 \(0\)",
        {"cli/a.py": "from kunren import base"},
    ),
    (
        rules.upward_imports,
        {"base/a.py": "if TYPE_CHECKING:\n    from ..data.b import B"},
        "imports kunren.data.b.B",
        {"base/a.py": "from .b import B"},
    ),
    (rules.upward_imports, {"attic.py": ""}, "attic has no layer", {"plan.py": ""}),
    (
        rules.import_cycles,
        {"data/a.py": "import kunren.data.b", "data/b.py": "def f():\n    from kunren.data import a"},
        "kunren.data.a, kunren.data.b",
        {"data/a.py": "import kunren.data.b", "data/b.py": "if TYPE_CHECKING:\n    from kunren.data import a"},
    ),
    (
        rules.strangers,
        {"loop/a.py": "from accelerate import Accelerator"},
        "whose home is engine",
        {"engine/a.py": "def f():\n    from accelerate import Accelerator"},
    ),
    (
        rules.strangers,
        {"trainer.py": "def f():\n    importlib.import_module('transformers.utils')"},
        "whose home is model, hub, hf",
        {"trainer.py": "def f():\n    importlib.import_module('kunren.utils')"},
    ),
    (
        rules.strangers,
        {"data/a.py": "try:\n    import datasets\nexcept ImportError:\n    pass"},
        "imports datasets at load",
        {"data/a.py": "if typing.TYPE_CHECKING:\n    import datasets"},
    ),
    (rules.empty_names, {"data/utils.py": ""}, "data/utils.py", {"data/padding.py": ""}),
    (rules.empty_names, {"data/common/a.py": ""}, "data/common", {"data/commonly/a.py": ""}),
]


@pytest.mark.parametrize(("rule", "broken", "message", "sound"), VIOLATIONS)
def test_the_rule_catches_a_violation(
    rule: Rule, broken: dict[str, str], message: str, sound: dict[str, str], tmp_path: Path
) -> None:
    found = rule(plant(tmp_path / "broken", broken))
    assert len(found) == 1 and re.search(message, found[0]), found
    assert rule(plant(tmp_path / "sound", sound)) == []


def test_every_rule_is_tested() -> None:
    assert {rule for rule, *_ in VIOLATIONS} == set(RULES)


def plant(folder: Path, files: dict[str, str]) -> Path:
    """Write a package of the given files."""
    package = folder / "kunren"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        (path.parent / "__init__.py").touch()
    return package
