"""How much of a batch of tokens is padding, read from the memory of its tensors.

No operator of PyTorch runs, and no code of the user's: neither a dispatch mode nor a profiler sees the reading. Padding
is a run of one value at the end, or at the start, of rows of different length; it hardly occurs in between. Vectors of
labels, flattened images and masked labels have their most frequent value everywhere, and are no padded rows.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.capture.hooks.batch_contents import dict_of, is_tensor, parts_of
from gpulab.capture.hooks.models.tensor_memory import array_of

Array = NDArray[Any]

MAX_ELEMENTS = 1_000_000  # of a tensor: reading more takes milliseconds
_MAX_PARTS = 200  # of a batch
_MIN_ROWS, _MIN_LENGTH = 2, 8
_MAX_INSIDE_FRAC = 0.05  # of the positions before the padding may have its value
_MIN_RUNS_FRAC = 0.05  # of all positions: shorter runs of one value show no padding, and no doubt
_MASK = "attention_mask"
_PER_TOKEN = (_MASK, "input_ids", "token_type_ids", "special_tokens_mask", "position_ids", "labels")
_IGNORED_LABEL = -100  # the loss functions of PyTorch leave these positions out


class BatchPadding(NamedTuple):
    """Positions of the padded tensors of a batch, one tensor of each shape; `padding` is None if nothing shows it."""

    rows: int
    positions: int
    padding: int | None
    beyond_longest: int  # those of the padding after the longest row of the batch
    can_be_cut: bool  # a dict of tensors, padded on the right as its attention mask says
    lengths: tuple[Array, ...] = ()  # of the rows of each of these tensors


def measure_padding(batch: Any) -> BatchPadding | None:
    """Return the padding of the integer tensors (rows x positions) of a batch; None without such a tensor."""
    import torch

    arrays = integer_arrays(batch)
    by_shape: dict[tuple[int, int], list[Array]] = {}
    for array in arrays:
        by_shape.setdefault(array.shape, []).append(array)
    with torch._C.DisableTorchFunction():
        can_be_cut = bool(arrays) and _can_be_cut(batch)
    if not by_shape:
        return None
    lengths = {shape: lengths for shape, same in by_shape.items() if (lengths := _row_lengths(same)) is not None}
    if not lengths:
        rows, length = max(by_shape, key=lambda shape: shape[0] * shape[1])
        return BatchPadding(rows, rows * length, None, 0, False)
    positions = sum(rows * length for rows, length in lengths)
    return BatchPadding(
        rows=sum(rows for rows, _ in lengths),
        positions=positions,
        padding=positions - sum(int(each.sum()) for each in lengths.values()),
        beyond_longest=sum(rows * (length - int(each.max())) for (rows, length), each in lengths.items()),
        can_be_cut=can_be_cut,
        lengths=tuple(lengths.values()),
    )


def integer_arrays(batch: Any) -> list[Array]:
    """Return the memory of the integer tensors (rows x positions) of a batch."""
    import torch

    with torch._C.DisableTorchFunction():
        return [array for tensor in _tensors(batch) if (array := _as_array(tensor)) is not None]


def _tensors(batch: Any) -> list[Any]:
    """Return the tensors in the batch, in its lists, tuples and dicts."""
    tensors, parts = [], [batch]
    for part in islice(parts, _MAX_PARTS):  # the list grows meanwhile
        if is_tensor(type(part)):
            tensors.append(part)
        else:
            parts += (parts_of(part) or [])[:_MAX_PARTS]
    return tensors


def _as_array(tensor: Any) -> Array | None:
    """Return a view of the memory of an integer tensor with two dimensions; None for any other."""
    import torch

    kind: Any = torch.Tensor
    dtype, shape = _integer_types().get(kind.dtype.__get__(tensor)), tuple(kind.size(tensor))
    if dtype is None or len(shape) != 2 or shape[0] < _MIN_ROWS or shape[1] < _MIN_LENGTH:
        return None
    return array_of(tensor, dtype) if shape[0] * shape[1] <= MAX_ELEMENTS else None


def _integer_types() -> dict[Any, np.dtype[Any]]:
    import torch

    names = ("int64", "int32", "int16", "int8", "uint8", "bool")
    return {getattr(torch, name): np.dtype(name) for name in names}


def _row_lengths(arrays: list[Array]) -> Array | None:
    """Return the lengths of rows without padding, from tensors of one shape; None if no tensor shows them.

    If tensors differ, those with the least padding count.
    """
    masks = [array for array in arrays if is_mask(array)]
    others = [array for array in arrays if not any([array is mask for mask in masks])]
    lengths = [of_one for array in others if (of_one := _lengths_of_tokens(array, masks)) is not None]
    return max(lengths, key=lambda rows: int(rows.sum())) if lengths else None


def is_mask(array: Array) -> bool:
    """Whether all values are 0 or 1."""
    if array.dtype == np.bool_:
        return True
    return bool(array.max() <= 1 and array.min() >= 0)


def _lengths_of_tokens(array: Array, masks: list[Array]) -> Array | None:
    if (array[0] == array[1]).all() and (array[1:] == array[:1]).all():  # such as the numbers of the positions
        return None
    full = np.full(len(array), array.shape[1])
    best, doubtful = full, False
    for rows in (array, array[:, ::-1]):
        value = _value_at_end(rows)
        if value is None:
            continue
        is_padding = rows == value
        lengths = _lengths_without_end(is_padding)
        runs = rows.size - int(lengths.sum())
        inside = int(np.count_nonzero(is_padding)) - runs
        is_rare = inside <= _MAX_INSIDE_FRAC * lengths.sum()
        if is_rare and _differ(lengths):
            best = min(best, lengths, key=lambda rows: int(rows.sum()))
        elif runs > _MIN_RUNS_FRAC * rows.size:
            doubtful = True
    if best is not full or not doubtful:
        return best
    return next(iter([by_mask for mask in masks if (by_mask := _lengths_by_mask(array, mask)) is not None]), None)


def _value_at_end(rows: Array) -> Any:
    """Return the most frequent value among those with which rows end at least twice in a row; None without one."""
    last = rows[:, -1]
    repeated = last[last == rows[:, -2]]
    if not len(repeated):
        return None
    if (repeated == repeated[0]).all():
        return repeated[0]
    values, counts = np.unique(repeated, return_counts=True)
    return values[counts.argmax()]


def _lengths_without_end(is_padding: NDArray[np.bool_]) -> Array:
    """Return the lengths of rows without the run of True at their end."""
    backwards = is_padding[:, ::-1]
    runs = backwards.argmin(axis=1)
    runs[is_padding.all(axis=1)] = is_padding.shape[1]
    lengths: Array = is_padding.shape[1] - runs
    return lengths


def _differ(lengths: Array) -> bool:
    return bool((lengths != lengths[0]).any())


def _lengths_by_mask(array: Array, mask: Array) -> Array | None:
    """Return the lengths that a mask of 0 and 1 says, if the tokens have one value where it hides them."""
    for hidden in (0, 1):
        is_padding = mask == hidden
        if not is_padding.any() or is_padding.all():
            continue
        values = array[is_padding]
        if not (values == values[0]).all():
            continue
        for runs in (is_padding, is_padding[:, ::-1]):
            lengths = _lengths_without_end(runs)
            if lengths.sum() + len(values) == array.size and _differ(lengths):
                return lengths
    return None


def _can_be_cut(batch: Any) -> bool:
    """Whether cutting all tensors of tokens to the longest row leaves out nothing but padding."""
    items = dict(dict.items(dict_of(batch) or {}))
    if not all([type(key) is str and is_tensor(type(value)) for key, value in items.items()]):
        return False
    mask = _as_array(items[_MASK]) if _MASK in items else None
    if mask is None or not is_mask(mask):
        return False
    hidden = mask == 0
    lengths = _lengths_without_end(hidden)
    if int(lengths.sum()) + int(np.count_nonzero(hidden)) != mask.size or len(mask) == mask.shape[1]:
        return False
    return all([_fits(key, value, mask, int(lengths.max())) for key, value in items.items()])


def _fits(key: str, tensor: Any, mask: Array, longest: int) -> bool:
    """Whether a tensor has one value per row, or is one of known meaning with one per token."""
    import torch

    shape = tuple(torch.Tensor.size(tensor))
    if len(shape) < 2:
        return shape != (mask.shape[1],)
    if shape != mask.shape or key not in _PER_TOKEN:
        return False
    if key != "labels":
        return True
    labels = _as_array(tensor)
    return labels is not None and bool((labels[:, longest:] == _IGNORED_LABEL).all())
