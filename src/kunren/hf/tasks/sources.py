"""Where rows come from: a file, a folder of files, what `datasets` has saved, or a name on the hub."""

from __future__ import annotations

import codecs
import csv
import glob
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kunren.hf.nearby_files import did_you_mean_path
from kunren.hf.tasks.base import TaskError
from kunren.hf.tasks.request import SETS, Request

_READERS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",
}
_OF_TEXT = (".csv", ".tsv", ".json", ".jsonl", ".txt")
_EVALUATION = ("validation", "valid", "eval", "dev", "test")
_SPLITS = {
    "train_dataset": ("train",),
    "eval_dataset": _EVALUATION,
    "test_dataset": ("test", *_EVALUATION[:-1]),
}
_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
_SPLIT = re.compile(r"([\w.-]*)(\[[^\]]*\])?")
_OF_PICTURES = ("image-classification", "AutoModelForImageClassification")
_SIGNS_OF_NO_ROWS = ("corresponds to no data", "BatchSize must be greater than 0")
_UNESCAPED = re.compile(r"\[([*?[])\]")  # of a name that `datasets` would take for a pattern
_LONGEST_REASON = 300
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """How the rows of one set are read: `datasets.FUNCTION(*values, **options)`, its `part`, and the first `limit`."""

    key: str
    place: str
    function: str  # load_dataset or load_from_disk
    values: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    part: str | None = None
    limit: int | None = None
    is_of_hub: bool = False

    def python(self, module: str = "datasets") -> str:
        """The expression that reads the rows."""
        arguments = [*map(repr, self.values), *(f"{name}={value!r}" for name, value in self.options.items())]
        read = f"{module}.{self.function}({', '.join(arguments)})"
        return read if self.part is None else f"{read}[{self.part!r}]"

    def read(self, cache: str) -> Any:
        """The rows, without more than `limit`; what is made of files lies in the folder `cache`."""
        import datasets

        options = dict(self.options)
        if self.function == "load_dataset" and not self.is_of_hub:
            options["cache_dir"] = cache
            files = [_UNESCAPED.sub(r"\1", file) for file in options.get("data_files", [])]
            try:
                if files and not any(Path(file).stat().st_size for file in files):
                    raise self._empty()
                _refuse_other_encodings(self.key, files)
                _refuse_nameless_fields(self.key, files, options.get("sep", ","))
            except OSError as error:
                raise TaskError(f"{self.key}: {error.filename} cannot be read: {error.strerror}.") from None
        try:
            rows = getattr(datasets, self.function)(*self.values, **options)
        except Exception as error:  # whatever the libraries below raise for files that are not what they seem
            raise self._unreadable(error) from error
        if self.part is not None:
            rows = rows[self.part]
        if self.limit is not None:
            rows = rows.select(range(min(self.limit, len(rows))))
        if len(rows) == 0:
            raise self._empty()
        return rows

    def _empty(self) -> TaskError:
        return TaskError(f"{self.key}: {self.place} is empty: it has no rows.")

    def _unreadable(self, error: Exception) -> TaskError:
        if self.is_of_hub:
            return _not_on_hub(self.key, self.place, error)
        cause = error.__cause__ or error
        if any(sign in f"{error} {cause}" for sign in _SIGNS_OF_NO_ROWS):
            return self._empty()
        return TaskError(f"{self.key}: {self.place} cannot be read: {_shortened(cause or error)}")


def sources_of(request: Request, whole_documents: bool = False) -> dict[str, Source]:
    """Where the rows of each set that is asked for are; TaskError for a place that there is not.

    An evaluation or test set without a place of its own is a split of the place of the training set.
    """
    try:
        import datasets  # noqa: F401  what follows needs it
    except ImportError as error:
        raise TaskError("Data from files needs the package datasets: pip install 'kunren[hf]'.") from error
    found = {}
    for key in SETS:
        short = key.removesuffix("_dataset")
        place, split = getattr(request, key), getattr(request, f"{short}_split")
        if place is None and split is not None:
            place = request.train_dataset
        if place is not None:
            limit = _limit(f"max_{short}_samples", getattr(request, f"max_{short}_samples"))
            of_pictures = request.task in _OF_PICTURES
            found[key] = _source(key, place, split, limit, request.dataset_config, whole_documents, of_pictures)
    return found


def _shortened(error: BaseException) -> str:
    """Some errors have the types of all columns in them."""
    text = " ".join(str(error).split())
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."


def _limit(key: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise TaskError(f"{key} is {value!r}: it has to be a whole number above 0.")
    return value


def _source(
    key: str,
    place: str,
    split: str | None,
    limit: int | None,
    config: str | None,
    whole_documents: bool,
    of_pictures: bool,
) -> Source:
    path = Path(place)
    try:
        is_there = path.exists()
    except OSError as error:
        raise TaskError(f"{key}: {place[:200]} cannot be read: {error.strerror}.") from None
    if not is_there:
        if not _HUB_NAME.fullmatch(place) or path.suffix.lower() in _READERS:
            raise TaskError(f"{key}: {place} does not exist.{did_you_mean_path(path)}")
        return _of_hub(key, place, split, limit, config)
    if config is not None:
        raise TaskError(f"dataset_config={config!r} is for data sets of the hub, and {path} is not one.")
    name, piece = _split_parts(key, split)
    if (path / "dataset_dict.json").is_file():
        part = name or _split_in(key, place, _splits_saved(path))
        if part not in _splits_saved(path):
            raise TaskError(f"{key}: {path} holds {', '.join(_splits_saved(path))}, and not {part}.")
        return Source(key, place, "load_from_disk", (str(path),), {}, part, limit)
    if (path / "dataset_info.json").is_file():
        return Source(key, place, "load_from_disk", (str(path),), {}, None, limit)
    if of_pictures and path.is_dir() and not any(file.suffix.lower() in _READERS for file in path.iterdir()):
        folder = _folder_of_pictures(key, path, name)
        pictures = {"data_dir": str(folder), "split": f"train{piece}"}
        return Source(key, place, "load_dataset", ("imagefolder",), pictures, None, limit)
    files = _files(key, path, name)
    kind = next(iter({_READERS[file.suffix.lower()] for file in files}))
    options: dict[str, Any] = {"data_files": [glob.escape(str(file)) for file in files], "split": f"train{piece}"}
    if files[0].suffix.lower() == ".tsv":
        options["sep"] = "\t"
    if kind == "text" and whole_documents:
        options["sample_by"] = "document"
    return Source(key, place, "load_dataset", (kind,), options, None, limit)


def _split_parts(key: str, split: str | None) -> tuple[str, str]:
    """`train[:100]` is the name of a split and a piece of it."""
    found = _SPLIT.fullmatch(split or "")
    if found is None:
        raise TaskError(
            f"{key.removesuffix('_dataset')}_split is {split!r}: give a name, or one with [:1000] or [:10%]."
        )
    return found[1], found[2] or ""


def _splits_saved(path: Path) -> list[str]:
    import json

    return list(json.loads((path / "dataset_dict.json").read_text(encoding="utf-8"))["splits"])


def _split_in(key: str, place: str, there: list[str]) -> str:
    found = next((split for split in _SPLITS[key] if split in there), None)
    if found is None:
        raise TaskError(f"{key}: {place} holds {', '.join(there)}, and none of {', '.join(_SPLITS[key])}.")
    return found


def _files(key: str, path: Path, split: str) -> list[Path]:
    """The files of one kind that make up the set: of a folder, those that begin with the name of it."""
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix.lower() in _READERS)
    if path.is_dir():
        wanted = (split,) if split else _SPLITS[key]
        named = ([file for file in files if file.stem.startswith(one)] for one in wanted)
        others = [file for file in files if key == "train_dataset" or not file.stem.startswith("train")]
        files = next(filter(None, named), [] if split else others)
        if split and not files:
            raise TaskError(f"{key}: {path} holds no file whose name begins with {split!r}.")
    kinds = {_READERS.get(file.suffix.lower()) for file in files}
    if len(kinds) != 1 or None in kinds:
        raise TaskError(f"{key}: {path} has to be, or to hold, files of one kind: {', '.join(_READERS)}.")
    return files


def _folder_of_pictures(key: str, path: Path, split: str) -> Path:
    """The folder of the set, with one for each class in it: the one named so, or all."""
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir())
    wanted = (split,) if split else _SPLITS[key]
    named = next((folder for one in wanted for folder in folders if folder.name == one), None)
    if named is None and (split or (key != "train_dataset" and any(folder.name == "train" for folder in folders))):
        raise TaskError(f"{key}: {path} holds no folder called {' or '.join(wanted)}.")
    return path if named is None else named


def _of_hub(key: str, name: str, split: str | None, limit: int | None, config: str | None) -> Source:
    import datasets

    if split is None:
        try:
            split = _split_in(key, name, list(datasets.get_dataset_split_names(name, config)))
        except TaskError:
            raise
        except Exception as error:
            raise _not_on_hub(key, name, error) from error
    values = (name,) if config is None else (name, config)
    return Source(key, name, "load_dataset", values, {"split": split}, None, limit, is_of_hub=True)


def _not_on_hub(key: str, name: str, error: Exception) -> TaskError:
    if isinstance(error, ValueError):  # of the data set's configurations and splits
        return TaskError(f"{key}: {name}: {' '.join(str(error).split())} Set dataset_config or a split.")
    return TaskError(
        f"{key}: {name!r} does not exist as a file or folder, and no data set of this name can be had: neither "
        f"downloaded before nor, if it can be reached, on the hub ({type(error).__name__})."
        f"{did_you_mean_path(Path(name))}"
    )


def _refuse_other_encodings(key: str, files: list[str]) -> None:
    """Readers differ in what they do to bytes that are no UTF-8: some replace them, some fail without a place."""
    for file in files:
        if Path(file).suffix.lower() not in _OF_TEXT:
            continue
        decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
        with open(file, "rb") as stream:
            while True:
                chunk = stream.read(_CHUNK)
                try:
                    decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError as error:
                    line += error.object[: error.start].count(b"\n")
                    wrong = error.object[error.start]
                    raise TaskError(
                        f"{key}: {file} is not UTF-8: line {line} has the byte 0x{wrong:02x}. Convert it, as with "
                        f"`iconv -f CP932 -t UTF-8`, if CP932 (Shift JIS) is what it is in."
                    ) from None
                if not chunk:
                    break
                line += chunk.count(b"\n")


def _refuse_nameless_fields(key: str, files: list[str], separator: str) -> None:
    """Readers take the first field for the row's name where there are more fields than names: columns would shift."""
    for file in files:
        if _READERS.get(Path(file).suffix.lower()) != "csv":
            continue
        with open(file, encoding="utf-8-sig", newline="") as stream:
            rows = (row for row in csv.reader(stream, delimiter=separator) if row)
            try:
                names, first = next(rows, []), next(rows, [])
            except csv.Error:  # which is told by who reads all of it
                continue
        if len(first) > len(names):
            raise TaskError(
                f"{key}: {file} has {len(names)} names in its first row, {', '.join(names)[:80]}, and {len(first)} "
                "fields in the second: give each a name, and put quotes around texts with commas."
            )
