"""Classes of pictures, which are decoded as they are read."""

from __future__ import annotations

from typing import Any

from kunren.hf.tasks.base import Call, Task, TaskError
from kunren.hf.tasks.columns import (
    LABELS,
    classes_of,
    column_of,
    labels_in,
    named_classes,
    place_of,
    refuse_one_class,
    refuse_unknown_classes,
    same_class_names,
)
from kunren.hf.tasks.fitting_metrics import OF_CLASSES


def encode_pictures(
    batch: dict[str, list[Any]],
    processor: Any,
    image: str,
    label: str,
    numbers: dict[str, int] | None,
    mode: str,
) -> dict[str, list[Any]]:
    """Pictures in the colours of `mode` (RGB, or L for shades of grey), as the processor scales them."""
    pictures = [picture.convert(mode) for picture in batch[image]]
    pixels = processor(pictures, return_tensors="np")["pixel_values"]
    labels = [one if numbers is None else numbers[one] for one in batch[label]]
    return {"pixel_values": list(pixels), "labels": labels}


class ImageClassification(Task):
    name = "image-classification"
    auto_class = "AutoModelForImageClassification"
    processor_class = "AutoImageProcessor"
    columns = {"image_column": ("image", "img"), "label_column": LABELS}
    metrics = OF_CLASSES
    default_metrics = ("accuracy",)
    has_new_head = True
    is_lazy = True

    def look(self, rows: dict[str, Any], config: Any, processor: Any) -> None:
        self._image, self._label = (column_of(self, rows, key) for key in self.columns)
        for key, one in rows.items():
            if type(one.features[self._image]).__name__ != "Image":
                raise TaskError(
                    f"{self._image!r} of {key} holds no pictures: give a folder with a folder of pictures for each "
                    "class, or a data set with a column of the type Image."
                )
        self._mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        labels = labels_in(rows, self._label)
        named, count = classes_of(rows, self._label, labels["train_dataset"], config)
        refuse_one_class(self._label, count, labels["train_dataset"])
        self._numbers = None if same_class_names(rows, self._label) is not None else named
        refuse_unknown_classes(rows, labels, range(count) if self._numbers is None else self._numbers)
        self.model_options |= named_classes(named, count)

    def encoding(self, key: str) -> Call | None:
        options = {"image": self._image, "label": self._label, "numbers": self._numbers, "mode": self._mode}
        return Call(encode_pictures, options)

    def check(self, key: str, batch: dict[str, list[Any]], numbers: list[int] | None) -> None:
        for place, picture in enumerate(batch[self._image]):
            if picture is None:
                where = place_of(key, numbers[place] if numbers else None)
                raise TaskError(f"{self._image!r} in {where} is empty: leave it out.")
