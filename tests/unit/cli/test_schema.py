"""`kunren schema`: what CONFIG may hold is valid by it, and what kunren refuses is not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kunren.arguments.effective import default_values, effective_values
from kunren.arguments.help_texts import LANGUAGES, help_sections
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.arguments.optimization import RENAMED_OPTIMIZERS
from kunren.cli.main import main
from kunren.cli.run_config import OWN_KEYS, read_config
from kunren.cli.schema import schema

ROOT = Path(__file__).parents[3]
CHECKED = jsonschema.Draft202012Validator(schema("en"))
ENTRIES = [entry for _, entries in help_sections("en") for entry in entries]


def mistakes(values: Any) -> list[str]:
    return [error.message for error in CHECKED.iter_errors(values)]


@pytest.mark.parametrize("language", LANGUAGES)
def test_it_is_a_schema_with_every_name_and_its_explanation(language: str) -> None:
    found = schema(language)
    jsonschema.Draft202012Validator.check_schema(found)
    arguments = found["$defs"]["arguments"]["properties"]
    assert set(found["properties"]) == {*OWN_KEYS, *default_values(), *LEGACY_NAMES, "arguments"}
    assert set(arguments) == set(found["properties"]) - {"arguments"}
    texts = {entry.name: entry.text for _, entries in help_sections(language) for entry in entries}
    assert {name: arguments[name]["description"] for name in texts} == texts
    assert all(arguments[name]["deprecated"] for name in LEGACY_NAMES if name not in texts)
    assert arguments["learning_rate"]["default"] == 5e-5 and "polynomial" in arguments["lr_scheduler_type"]["enum"]


def test_what_is_printed_as_the_configuration_is_valid(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["train", "--print_config"]) == 0
    (tmp_path / "run.yaml").write_text(capsys.readouterr().out, encoding="utf-8")
    values = read_config(tmp_path / "run.yaml")
    assert len(values) == len(OWN_KEYS) + len(ENTRIES) and mistakes(values) == []


def test_every_configuration_of_the_documentation_and_the_examples_is_valid(tmp_path: Path) -> None:
    blocks = [
        block
        for path in sorted((ROOT / "docs").glob("*.md"))
        for block in re.findall(r"^```yaml\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    ]
    blocks += [path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.yaml"))]
    blocks = [block for block in blocks if re.search(r"^(model|num_examples|train_dataset):", block, re.MULTILINE)]
    assert len(blocks) >= 2
    for block in blocks:
        (tmp_path / "run.yaml").write_text(block, encoding="utf-8")
        assert mistakes(read_config(tmp_path / "run.yaml")) == [], block


VALID = {
    "texts that are numbers": "learning_rate: '5e-5'\nmax_steps: '10'\nsave_steps: '.5'\n",
    "switches in words": "bf16: yes\nfp16: 'off'\n",
    "under arguments": "model: bert\narguments:\n  learning_rate: 1\n",
    "nothing under arguments": "arguments:\n",
    "version 1.1 reads no as false": "eval_strategy: no\n",
    "an old name": "evaluation_strategy: epoch\nlogging_dir: there\n",
    "a list, or one of it": "metrics: accuracy\nreport_to: [tensorboard]\ntext_column: [a, b]\n",
    "switches that are declared as text": "resume_from_checkpoint: true\nfsdp: true\n",
    "unset": "max_grad_norm: null\nlr_scheduler_kwargs:\ndisable_tqdm:\nmodel:\n",
    "dicts": "lr_scheduler_kwargs: {num_cycles: 2}\nparameter_groups: [{pattern: a, learning_rate: 1}]\n",
}
WRONG = {
    "a key one letter off": "learning_rat: 1\n",
    "a key one letter off under arguments": "arguments:\n  learning_rat: 1\n",
    "a name of other libraries": "batch_size: 8\n",
    "a choice": "lr_scheduler_type: cosin\n",
    "a whole number": "max_steps: 1.5\n",
    "a number": "learning_rate: fast\n",
    "a switch": "bf16: maybe\n",
    "a list where a text stands": "output_dir: [a]\n",
    "no null": "learning_rate: null\n",
    "a dict": "lr_scheduler_kwargs: 3\n",
    "a list of lines": "- 1\n",
}


@pytest.mark.parametrize("case", VALID)
def test_valid(case: str, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(VALID[case])
    assert mistakes(read_config(tmp_path / "run.yaml")) == []
    assert mistakes(yaml.safe_load(VALID[case])) == []  # as an editor reads it, under `arguments` too


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str) -> None:
    assert len(mistakes(yaml.safe_load(WRONG[case]))) == 1


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_of_each_argument_the_default_is_valid_and_choices_are_all(entry: Any) -> None:
    assert mistakes({entry.name: entry.default}) == mistakes({entry.name: default_values()[entry.name]}) == []
    if entry.choices and "list" not in entry.kinds:
        assert mistakes({entry.name: "neither of them"}) != []
        with pytest.raises(ValueError, match=entry.name):
            effective_values({entry.name: "neither of them"})
        assert all(mistakes({entry.name: choice}) == [] for choice in entry.choices)


def test_old_names_of_optimizers_are_valid() -> None:
    assert [mistakes({"optim": name}) for name in RENAMED_OPTIMIZERS] == [[]] * len(RENAMED_OPTIMIZERS)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kunren.schema.json"
    assert main(["schema", "--output", str(path), "--lang", "ja"]) == 0
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(schema("ja")))
    assert main(["schema", "--lang", "en"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "A run of kunren"
    assert main(["schema", "--output", str(tmp_path / "no" / "where.json")]) == 2
    assert "where.json: No such file" in capsys.readouterr().err


def test_it_loads_no_torch() -> None:
    code = (
        "import sys; from kunren.cli.main import main; main(['schema']); main(['train', '--print_config']);"
        "print(sorted({'torch', 'transformers', 'datasets'} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.strip() == "[]"
