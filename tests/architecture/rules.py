"""The rules of the house, each a function from a source tree to the places that break it."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_CORE_LINES = 400, 60, 5500
LAYERS = {
    "_version": 0, "base": 0,
    "arguments": 1,
    "plan": 2, "data": 2, "collators": 2, "optim": 2, "losses": 2, "callbacks": 2, "trackers": 2, "model": 2,
    "metrics": 2,
    "engine": 3,
    "loop": 4, "checkpoint": 4, "report": 4,
    "trainer": 5, "seams": 5, "planning": 5,
    "seq2seq": 6, "hub": 6, "search": 6, "hf": 6, "cli": 6,
    "__init__": 7, "__main__": 7,
}  # fmt: skip
# One alternative among equals in each file, or a list of declarations: no part of what has to be read first.
CATALOGUES = (
    "__init__.py",  # the list of public names
    "__main__.py",
    "arguments/", "callbacks/early_stopping", "callbacks/notebook", "callbacks/printer", "callbacks/profiler",
    "callbacks/progress", "checkpoint/formats/", "checkpoint/spread/", "cli/", "collators/",
    "data/batching/", "data/readers/", "data/wrappers/", "engine/backends/", "hf/", "hub/", "loop/guards/",
    "losses/functions/", "metrics/", "model/features/", "optim/groups/", "optim/optimizers/", "optim/schedules/",
    "planning/", "report/", "seams/refused_overrides", "search/", "seq2seq/", "trackers/",
)  # fmt: skip
HOMES = {
    "accelerate": ("engine",),
    "transformers": ("model", "hub", "hf"),
    "peft": ("model", "hub", "hf"),
    "tqdm": ("callbacks",),
}
LOADED_ON_USE = {"transformers", "peft", "datasets", "accelerate", "tqdm"}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc"}


@dataclass(frozen=True)
class Import:
    """What one statement imports, as a dotted name, and when: at "load" of the file, on "use", or for "types" only."""

    name: str
    line: int
    when: str


def sources(package: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Relative path, text and syntax tree of each file, in order."""
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(package).as_posix(), text, ast.parse(text)


def imports(package: Path, path: str, tree: ast.Module) -> list[Import]:
    """Every import statement and `import_module("name")` of a file; relative imports are resolved."""
    when: dict[int, str] = {}
    for node in ast.walk(tree):
        if kind := _defers(node):
            when |= {id(child): kind for child in ast.walk(node) if when.get(id(child)) != "types"}
    folder = [package.name, *path.split("/")[:-1]]
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = folder[: len(folder) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            names = [f"{module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        found += [Import(name, node.lineno, when.get(id(node), "load")) for name in names]
    return found


def _defers(node: ast.AST) -> str | None:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return "types"
    return "use" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else None


def room(path: str) -> str:
    """The top-level package or module that a file belongs to."""
    return path.split("/")[0].removesuffix(".py")


def too_long(package: Path) -> list[str]:
    """Files and functions over their budget."""
    found = []
    for path, text, tree in sources(package):
        if (lines := len(text.splitlines())) > MAX_FILE_LINES:
            found.append(f"{path}: {lines} lines, {MAX_FILE_LINES} allowed")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{path}:{node.lineno} {node.name}: {lines} lines, {MAX_FUNCTION_LINES} allowed")
    return found


def core_too_large(package: Path) -> list[str]:
    """The rooms of the core with their lines of code, largest first, if together they are over the budget."""
    lines: dict[str, int] = {}
    for path, text, tree in sources(package):
        if not path.startswith(CATALOGUES):
            lines[room(path)] = lines.get(room(path), 0) + lines_of_code(text, tree)
    total = sum(lines.values())
    rooms = sorted(lines.items(), key=lambda entry: -entry[1])
    return [f"core: {total} lines, {MAX_CORE_LINES} allowed: {rooms}"] if total > MAX_CORE_LINES else []


def lines_of_code(text: str, tree: ast.Module) -> int:
    """Lines that hold code: no blank ones, no comments, no docstrings. Explaining more must never cost budget."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node, clean=False):
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(lines)


def upward_imports(package: Path) -> list[str]:
    """Imports of a higher layer, also within functions and for types only; and rooms that no layer is given."""
    found = []
    for path, _, tree in sources(package):
        if room(path) not in LAYERS:
            found.append(f"{path}: {room(path)} has no layer: give it one in LAYERS")
            continue
        for entry in imports(package, path, tree):
            top, _, rest = entry.name.partition(".")
            # `from kunren import Trainer` asks the root for a public name; `from kunren import loop` names a room.
            target = rest.split(".")[0] if rest.split(".")[0] in LAYERS else "__init__"
            if top == package.name and LAYERS[target] > LAYERS[room(path)]:
                found.append(f"{path}:{entry.line} ({LAYERS[room(path)]}) imports {entry.name} ({LAYERS[target]})")
    return found


def import_cycles(package: Path) -> list[str]:
    """Modules that import each other at load or on use: an import moved into a function only hides the cycle."""
    modules = {_module(package, path): (path, tree) for path, _, tree in sources(package)}
    edges = {
        module: {_known(entry.name, modules) for entry in imports(package, path, tree) if entry.when != "types"}
        for module, (path, tree) in modules.items()
    }
    edges = {module: targets - {module} for module, targets in edges.items()}
    while True:  # take away what imports nothing that is left: what cannot be taken away is in a cycle or above one
        free = {module for module, targets in edges.items() if not targets & edges.keys()}
        if not free:
            return [f"in a cycle, or above one: {', '.join(sorted(edges))}"] if edges else []
        edges = {module: targets for module, targets in edges.items() if module not in free}


def _module(package: Path, path: str) -> str:
    return ".".join([package.name, *path.removesuffix(".py").split("/")]).removesuffix(".__init__")


def _known(name: str, modules: dict[str, tuple[str, ast.Module]]) -> str | None:
    """The module that "package.module.attribute" loads, or None for other people's."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    return name or None


def strangers(package: Path) -> list[str]:
    """Other people's packages outside their home, or loaded with the file where they are for use only."""
    found = []
    for path, _, tree in sources(package):
        for entry in imports(package, path, tree):
            top = entry.name.partition(".")[0]
            if top in HOMES and room(path) not in HOMES[top]:
                found.append(f"{path}:{entry.line} imports {top}, whose home is {', '.join(HOMES[top])}")
            elif top in LOADED_ON_USE and entry.when == "load" and room(path) != "hf":
                found.append(f"{path}:{entry.line} imports {top} at load: import it in the function that uses it")
    return found


def empty_names(package: Path) -> list[str]:
    """Files and folders named after nothing."""
    return [
        str(path.relative_to(package))
        for path in sorted(package.rglob("*"))
        if path.stem in NAMES_THAT_SAY_NOTHING and (path.is_dir() or path.suffix == ".py")
    ]
