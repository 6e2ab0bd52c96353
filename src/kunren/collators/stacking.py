"""One column of a batch, from the values of its rows to an array, and what to say when that cannot be.

`torch.tensor(list of lists)` takes ten times as long as `numpy.array` of the same, so python numbers go through numpy.
Values, shapes and dtypes are those that `torch.tensor` gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy
import torch

Array = Any  # torch.Tensor or numpy.ndarray, as the caller asked


def to_tensor(values: Sequence[Any]) -> torch.Tensor:
    """Stack rows of tensors, arrays, numbers or (nested, even) lists of numbers."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values)  # type: ignore[arg-type]
    if isinstance(first, numpy.ndarray):
        return torch.from_numpy(numpy.stack(values))
    if _is_of_python_numbers(values):
        array = numpy.array(values)
        if array.dtype == numpy.int64 or array.dtype == numpy.bool_:
            return torch.from_numpy(array)
        if array.dtype == numpy.float64:
            return torch.from_numpy(array).to(torch.get_default_dtype())
    return torch.tensor(values)


def to_array(values: Sequence[Any]) -> numpy.ndarray[Any, Any]:
    """The same as a numpy array; python floats stay double."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        return torch.stack(values).numpy()  # type: ignore[arg-type]
    array = numpy.stack(values) if isinstance(first, numpy.ndarray) else numpy.array(values)
    if array.dtype == object:
        raise TypeError(f"values of type {type(first).__name__} have no array type")
    return array


def class_labels(values: Sequence[Any]) -> torch.Tensor:
    """Labels from the column `label`: integers stay integers only if all are; (batch,), or (batch, n) for lists."""
    if isinstance(values[0], torch.Tensor):
        stacked = torch.stack(values)  # type: ignore[arg-type]
        stacked = stacked.reshape(-1) if stacked.numel() == len(values) else stacked
        return stacked.to(torch.float32 if stacked.is_floating_point() else torch.int64)
    # Several numbers a row are several yes-or-no labels, which the loss wants as floats.
    return torch.from_numpy(_label_array(values, integer_dimensions=1))


def label_ids(values: Sequence[Any]) -> torch.Tensor:
    """Labels from the column `label_ids`: a list of numbers per row; tensors keep their type."""
    if isinstance(values[0], torch.Tensor):
        return torch.stack(values)  # type: ignore[arg-type]
    return torch.from_numpy(_label_array(values, integer_dimensions=2))


def class_label_array(values: Sequence[Any]) -> numpy.ndarray[Any, Any]:
    return class_labels(values).numpy()


def label_ids_array(values: Sequence[Any]) -> numpy.ndarray[Any, Any]:
    return to_array(values) if isinstance(values[0], numpy.ndarray) else label_ids(values).numpy()


def explain(name: str, values: Sequence[Any], error: Exception) -> ValueError:
    """The error that says which column, which row and what to change."""
    where = f"Column {name!r} cannot become one array: "
    missing = [row for row, value in enumerate(values) if value is None]
    if missing:
        return ValueError(
            f"{where}it is None in row {missing[0]} of this batch of {len(values)}, but not in every row. "
            "Fill it in, or remove the column from the dataset."
        )
    shapes = [_shape(value) for value in values]
    odd = next((row for row, shape in enumerate(shapes) if shape != shapes[0]), None)
    if odd is not None:
        return ValueError(
            f"{where}row 0 has shape {shapes[0]}, row {odd} has shape {shapes[odd]}. Bring the rows to one length "
            "before, or use a data collator that pads this column."
        )
    kind = next((_innermost(value) for value in values if not _is_number(_innermost(value))), values[0])
    if isinstance(kind, (str, bytes, Mapping)):
        return ValueError(
            f"{where}it holds values of type {type(kind).__name__}. Remove the column from the dataset, or pass a "
            "data_collator that knows what to do with it."
        )
    return ValueError(f"{where}{error}")


def is_unfit(values: Sequence[Any]) -> bool:
    """Whether some, but not all, rows of a column have no value."""
    return any(value is None for value in values) and any(value is not None for value in values)


def _label_array(values: Sequence[Any], integer_dimensions: int) -> numpy.ndarray[Any, Any]:
    array = to_array(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"labels of type {type(values[0]).__name__} are no numbers")
    return with_label_type(array, integer_dimensions)


def with_label_type(array: numpy.ndarray[Any, Any], integer_dimensions: int) -> numpy.ndarray[Any, Any]:
    """int64 where every label is an integer and there are no more than so many dimensions, else float32."""
    is_integer = array.dtype.kind != "f" and array.ndim <= integer_dimensions
    return array.astype(numpy.int64 if is_integer else numpy.float32, copy=False)


def _is_of_python_numbers(values: Sequence[Any]) -> bool:
    if isinstance(values[0], (list, tuple)):
        return type(_innermost(values[0])) in (int, float, bool)
    # torch takes the type of numpy's scalars from each of them, so one among python's numbers counts.
    return {int, float, bool}.issuperset(map(type, values))


def _innermost(value: Any) -> Any:
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, numpy.generic, numpy.ndarray, torch.Tensor))


def _shape(value: Any) -> tuple[int, ...]:
    """The shape as far as the first element of each level tells."""
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return tuple(value.shape)
    if isinstance(value, (list, tuple)):
        return (len(value), *(_shape(value[0]) if value else ()))
    return ()
