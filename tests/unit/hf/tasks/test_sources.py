"""Where rows come from: files, folders, what has been saved, names of the hub; and what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.arrow_writer import ArrowWriter

from kunren.hf.tasks import sources
from kunren.hf.tasks.base import TaskError
from kunren.hf.tasks.request import Request
from kunren.hf.tasks.sources import sources_of


def read(folder: Path, place: Any, whole_documents: bool = False, **keys: Any) -> dict[str, Any]:
    """The rows of each set; `place` is that of the training set."""
    request = Request("model", "task", str(place), **keys)
    found = sources_of(request, whole_documents)
    return {key: source.read(str(folder / "cache")) for key, source in found.items()}


def rows(*texts: str) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"text": list(texts)})


def test_files_of_each_kind(tmp_path: Path) -> None:
    data = rows("a", "b", "c")
    for suffix, write in (("csv", data.to_csv), ("jsonl", data.to_json), ("parquet", data.to_parquet)):
        write(tmp_path / f"x.{suffix}")
        assert read(tmp_path, tmp_path / f"x.{suffix}")["train_dataset"]["text"][:] == ["a", "b", "c"]
    (tmp_path / "x.tsv").write_text("text\tlabel\na\t1\nb, c\t2\n")
    assert read(tmp_path, tmp_path / "x.tsv")["train_dataset"]["text"][:] == ["a", "b, c"]
    (tmp_path / "x.txt").write_text("a\nb\n")
    assert read(tmp_path, tmp_path / "x.txt")["train_dataset"]["text"][:] == ["a", "b"]
    assert read(tmp_path, tmp_path / "x.txt", whole_documents=True)["train_dataset"]["text"][:] == ["a\nb\n"]


def test_the_sets_of_a_folder(tmp_path: Path) -> None:
    for name, texts in (("train", "abcd"), ("validation", "ef"), ("test", "g"), ("extra", "h")):
        rows(*texts).to_json(tmp_path / f"{name}.jsonl")
    place = str(tmp_path)
    found = read(tmp_path, place, eval_dataset=place, test_dataset=place)
    assert {key: one["text"][:] for key, one in found.items()} == {
        "train_dataset": ["a", "b", "c", "d"],
        "eval_dataset": ["e", "f"],
        "test_dataset": ["g"],
    }
    found = read(tmp_path, place, train_split="extra", eval_split="train[1:3]", test_split="train[:25%]")
    assert [one["text"][:] for one in found.values()] == [["h"], ["b", "c"], ["a"]]
    with pytest.raises(TaskError, match="holds no file whose name begins with 'dev'"):
        read(tmp_path, place, eval_split="dev")
    with pytest.raises(TaskError, match="eval_split is 'dev:3'"):
        read(tmp_path, place, eval_split="dev:3")


def test_what_datasets_has_saved(tmp_path: Path) -> None:
    datasets.DatasetDict({"train": rows("a"), "dev": rows("b"), "other": rows("c")}).save_to_disk(tmp_path / "both")
    place = str(tmp_path / "both")
    found = read(tmp_path, place, eval_dataset=place, test_dataset=place, test_split="other")
    assert [one["text"][:] for one in found.values()] == [["a"], ["b"], ["c"]]
    with pytest.raises(TaskError, match="holds train, dev, other, and not test"):
        read(tmp_path, place, test_split="test")
    rows("d").save_to_disk(tmp_path / "one")
    assert read(tmp_path, tmp_path / "one")["train_dataset"]["text"][:] == ["d"]


def test_the_first_rows_alone(tmp_path: Path) -> None:
    rows("a", "b", "c").to_csv(tmp_path / "x.csv")
    place = str(tmp_path / "x.csv")
    found = read(tmp_path, place, eval_dataset=place, max_train_samples=2, max_eval_samples=9)
    assert [len(one) for one in found.values()] == [2, 3]
    for wrong in (0, -1, True, "2"):
        with pytest.raises(TaskError, match="max_train_samples is .*: it has to be a whole number above 0"):
            read(tmp_path, place, max_train_samples=wrong)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds owner/name, as if it had been downloaded."""
    data = rows("a", "b")
    folder = tmp_path / "hub" / "owner___name" / "default" / "0.0.0" / "0123456789abcdef"
    folder.mkdir(parents=True)
    splits = {split: {"name": split, "num_examples": 2, "dataset_name": "name"} for split in ("train", "validation")}
    info = {"builder_name": "parquet", "dataset_name": "name", "config_name": "default", "version": "0.0.0"}
    datasets.DatasetInfo(features=data.features, splits=splits, **info).write_to_directory(str(folder))
    for split in splits:
        writer = ArrowWriter(features=data.features, path=str(folder / f"name-{split}.arrow"))
        for row in data:
            writer.write({"text": f"{row['text']} {split}"})
        writer.finalize()
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hub"))


@pytest.mark.usefixtures("hub")
def test_a_name_of_the_hub_that_has_been_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(tmp_path, "owner/name", eval_dataset="owner/name", max_eval_samples=1)
    assert [one["text"][:] for one in found.values()] == [["a train", "b train"], ["a validation"]]
    found = read(tmp_path, "owner/name", train_split="validation[1:]")
    assert found["train_dataset"]["text"][:] == ["b validation"]
    request = Request("model", "task", "owner/name", eval_split="validation")
    assert [source.python() for source in sources_of(request).values()] == [
        "datasets.load_dataset('owner/name', split='train')",
        "datasets.load_dataset('owner/name', split='validation')",
    ]
    monkeypatch.setitem(sources._SPLITS, "test_dataset", ("test",))
    with pytest.raises(TaskError, match="owner/name holds train, validation, and none of test"):
        read(tmp_path, "owner/name", test_dataset="owner/name")


def test_what_lies_beside_is_told_of_a_misspelt_path(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(TaskError, match=r"trian\.jsonl does not exist\. Did you mean '.*/train\.jsonl'\?"):
        read(tmp_path, str(tmp_path / "trian.jsonl"))
    with pytest.raises(TaskError, match=r"absent\.jsonl does not exist\.$"):
        read(tmp_path, str(tmp_path / "absent.jsonl"))


@pytest.mark.usefixtures("hub")
def test_what_is_not_there(tmp_path: Path) -> None:
    for place, answer in (
        ("owner/none", "'owner/none' does not exist as a file or folder, and no data set of this name can be had"),
        ("squad", "neither downloaded before nor, if it can be reached, on the hub"),
        ("nowhere.csv", "train_dataset: nowhere.csv does not exist"),
        ("/of/nobody", "train_dataset: /of/nobody does not exist"),
    ):
        with pytest.raises(TaskError, match=answer):
            read(tmp_path, place)
    with pytest.raises(TaskError, match="owner/name: .*for config 'other'.* Set dataset_config or a split"):
        read(tmp_path, "owner/name", dataset_config="other")
    with pytest.raises(TaskError, match='owner/name: Unknown split "tset"'):
        read(tmp_path, "owner/name", train_split="tset")
    (tmp_path / "x.csv").write_text("text\na\n")
    with pytest.raises(TaskError, match="dataset_config='x' is for data sets of the hub, and .*x.csv is not one"):
        read(tmp_path, tmp_path / "x.csv", dataset_config="x")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", b""), ("b.csv", b"text,label\n"), ("c.jsonl", b""), ("d.txt", b"")],
    ids=["csv", "csv with a head", "json", "text"],
)
def test_files_without_rows(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=f"train_dataset: .*{name} is empty: it has no rows"):
        read(tmp_path, tmp_path / name)


@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.txt"])
def test_files_in_another_encoding(name: str, tmp_path: Path) -> None:
    text = '{"text": "良い"}\n' * 2 if name.endswith("jsonl") else "text\n良い\n"
    (tmp_path / name).write_bytes(text.encode("cp932"))
    line = 1 if name.endswith("jsonl") else 2
    with pytest.raises(TaskError, match=f"{name} is not UTF-8: line {line} has the byte 0x97. Convert it.*CP932"):
        read(tmp_path, tmp_path / name)


def test_a_character_that_two_pieces_of_a_file_share_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kunren.hf.tasks.sources._CHUNK", 7)
    (tmp_path / "x.txt").write_text("良い天気\nだった\n", encoding="utf-8")
    assert read(tmp_path, tmp_path / "x.txt")["train_dataset"]["text"][:] == ["良い天気", "だった"]
    (tmp_path / "y.txt").write_bytes("良い天気\nだった".encode()[:-1])
    with pytest.raises(TaskError, match="y.txt is not UTF-8: line 2 has the byte 0xe3"):
        read(tmp_path, tmp_path / "y.txt")


def test_a_broken_file(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('text,label\n"w1,good\n')
    with pytest.raises(TaskError, match="train_dataset: .*x.csv cannot be read: "):
        read(tmp_path, tmp_path / "x.csv")
    (tmp_path / "y.jsonl").write_text('{"text": "a"}\n{"text": \n')
    with pytest.raises(TaskError, match="train_dataset: .*y.jsonl cannot be read: "):
        read(tmp_path, tmp_path / "y.jsonl")
