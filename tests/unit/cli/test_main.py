"""The `kunren` command: what it prints, what it runs, and how it answers mistakes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kunren
from kunren.cli import demo
from kunren.cli.main import main


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of demos that takes the place of the real ones."""

    def scripts() -> dict[str, Path]:
        return {path.stem: path for path in sorted(tmp_path.glob("*.py"))}

    monkeypatch.setattr(demo, "demo_scripts", scripts)
    return tmp_path


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"kunren {kunren.__version__}\n"


def test_the_list_names_each_demo_with_its_first_line_and_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[::2]] == ["digits", "names", "sentiment", "text"]
    assert all(len(line.split()) > 5 for line in lines[::2])
    assert all(Path(line.strip()).is_file() for line in lines[1::2])


def test_a_misspelt_demo_gets_the_nearest_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "sentimant"]) == 2
    answer = capsys.readouterr().err
    assert "'sentimant'" in answer and "digits, names, sentiment, text" in answer
    assert "Did you mean 'sentiment'?" in answer


def test_a_demo_runs_as_a_script_with_its_own_options(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (examples / "echo.py").write_text("import sys\nif __name__ == '__main__':\n    print(sys.argv[1:])\n")
    before = list(sys.argv)
    assert main(["demo", "echo", "a sentence", "--output-dir", "there"]) == 0
    assert capsys.readouterr().out == "['a sentence', '--output-dir', 'there']\n"
    assert sys.argv == before


def test_a_missing_package_is_told_with_the_remedy(examples: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (examples / "needy.py").write_text("import a_package_that_nobody_has\n")
    assert main(["demo", "needy"]) == 2
    answer = capsys.readouterr().err
    assert "a_package_that_nobody_has" in answer and "pip install 'kunren[demo]'" in answer


def test_a_module_missing_from_kunren_itself_is_a_plain_error(examples: Path) -> None:
    (examples / "broken.py").write_text("import kunren.no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        main(["demo", "broken"])


@pytest.mark.parametrize("name", sorted(demo.demo_scripts()))
def test_each_demo_is_short_and_says_what_it_does(name: str) -> None:
    path = demo.demo_scripts()[name]
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 95
    assert demo.summary(path).endswith((".", ":"))


# What each prints at its end, and where its number has to lie.
RESULTS = [
    ("digits", r"([\d.]+)% after", range(98, 101)),
    pytest.param("names", r"([\d.]+)% after", range(94, 100), marks=pytest.mark.slow),
    pytest.param("sentiment", r"([\d.]+)% after", range(87, 96), marks=pytest.mark.slow),
    pytest.param("text", r"perplexity .* ([\d.]+) after", range(20, 90), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "pattern", "expected"), RESULTS)
def test_the_demo_reaches_its_result(name: str, pattern: str, expected: range, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kunren.cli.main", "demo", name, "--output-dir", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = re.search(pattern, result.stdout)
    assert found and int(float(found[1])) in expected, result.stdout
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_python_m_kunren_is_the_command() -> None:
    run = subprocess.run([sys.executable, "-m", "kunren", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("kunren ")
