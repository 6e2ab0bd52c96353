"""image-classification: folders of pictures, one for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
import transformers
from unit.hf.tasks.runs import LEARNING, SIZES, assert_same, by_hand, refused, results, train, write

Image = pytest.importorskip("PIL.Image")
CLASSES = ("cat", "dog")


def save_vit(folder: Path) -> Path:
    transformers.set_seed(0)
    config = transformers.ViTConfig(image_size=32, patch_size=16, **SIZES)
    transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(folder)
    processors = transformers.models.vit
    kind = getattr(processors, "ViTImageProcessorPil", None) or transformers.ViTImageProcessor
    kind(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def draw(folder: Path) -> Path:
    """Dark cats and bright dogs, six and three of each."""
    numbers = numpy.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for brightness, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = numbers.integers(100 * brightness, 100 * brightness + 150, (20, 24, 3)).astype(numpy.uint8)
                Image.fromarray(pixels).save(folder / split / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vit(tmp_path_factory.mktemp("vit"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("pictures"))


def test_the_run_is_that_of_a_script(model: Path, pictures: Path, tmp_path: Path) -> None:
    places = {"train_dataset": str(pictures), "eval_dataset": str(pictures)}
    assert train(tmp_path, task="image-classification", model=str(model), **places) == 0
    processor = transformers.AutoImageProcessor.from_pretrained(model)

    def rows(split: str) -> list[dict[str, Any]]:
        return [
            {"pixel_values": processor(Image.open(path), return_tensors="pt")["pixel_values"][0], "labels": number}
            for number, name in enumerate(CLASSES)
            for path in sorted((pictures / split / name).iterdir())
        ]

    trainer = by_hand(
        tmp_path,
        lambda: transformers.AutoModelForImageClassification.from_pretrained(model, num_labels=2),
        [rows("train"), rows("test")],
        processing_class=processor,
        arguments={"metrics": ["accuracy"]},
    )
    assert_same(trainer, tmp_path, "eval_accuracy")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").id2label == dict(enumerate(CLASSES))
    assert results(tmp_path)["epoch"] == LEARNING["num_train_epochs"]


def test_pictures_in_a_column(model: Path, pictures: Path, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict(
        {"img": [str(path) for path in sorted(pictures.rglob("*.png"))], "kind": ["a", "b", "c"] * 6}
    ).cast_column("img", datasets.Image())
    rows.to_parquet(tmp_path / "train.parquet")
    options = {"task": "image-classification", "model": str(model), "train_dataset": str(tmp_path / "train.parquet")}
    assert train(tmp_path, **options, label_column="kind", max_train_samples=9) == 0
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").label2id == {"a": 0, "b": 1, "c": 2}


def test_mistakes(model: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"task": "image-classification", "model": str(model), "train_dataset": str(pictures)}
    answer = refused(capsys, tmp_path, **options, eval_split="dev")
    assert "holds no folder called dev" in answer
    path = write(tmp_path / "rows.jsonl", [{"image": "cat.png", "label": 0}])
    answer = refused(capsys, tmp_path, **{**options, "train_dataset": str(path)})
    assert "'image' of train_dataset holds no pictures: give a folder with a folder of pictures for each" in answer
    answer = refused(capsys, tmp_path, **{**options, "task": "audio-classification"})
    assert "The task 'audio-classification' has no form without code: write a script with kunren's Trainer" in answer
