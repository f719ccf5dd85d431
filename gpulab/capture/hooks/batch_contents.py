"""What a batch consists of, which decides what it costs to pass it from a worker to the main process.

None of the user's code runs: objects are told apart by exact type, and a batch with parts of another class is unknown.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

MAX_OBJECTS = 20_000  # a batch of more is unknown: counting it would take milliseconds
_SIMPLE_TYPES = (str, bytes, int, float, bool, complex, type(None))


class BatchContents(NamedTuple):
    """The parts of a batch: tensors, the bytes of tensors and arrays, and other objects: arrays, strings, numbers."""

    tensors: int
    bytes: int
    objects: int


def describe_batch(batch: Any) -> BatchContents | None:
    """Count what is in the batch, in its lists, tuples and dicts; None if there is anything else in it, or too much."""
    import numpy
    import torch

    tensors = size = objects = 0
    pending = [batch]
    with torch._C.DisableTorchFunction():
        while pending:
            part = pending.pop()
            kind = type(part)
            if is_tensor(kind):
                if torch.Tensor.layout.__get__(part) is not torch.strided:  # type: ignore[attr-defined]
                    return None
                tensors += 1
                size += torch.Tensor.numel(part) * torch.Tensor.element_size(part)
            elif kind is numpy.ndarray and part.dtype != object:
                objects += 1
                size += part.nbytes
            elif kind in _SIMPLE_TYPES or issubclass(kind, numpy.generic):
                objects += 1
            elif (parts := parts_of(part)) is not None:
                pending += parts
            else:
                return None
            if tensors + objects + len(pending) > MAX_OBJECTS:
                return None
    return BatchContents(tensors, size, objects)


def is_tensor(kind: type) -> bool:
    """Whether this is a class of tensors whose size PyTorch itself tells."""
    import torch

    if not issubclass(kind, torch.Tensor):
        return False
    subclasses = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return not any(["__torch_dispatch__" in vars(base) for base in subclasses])


def parts_of(part: Any) -> list[Any] | None:
    """The parts of a list, a tuple, a dict or a UserDict, such as the BatchEncoding of transformers."""
    kind = type(part)
    if issubclass(kind, tuple):
        return list(islice(tuple.__iter__(part), MAX_OBJECTS + 1))
    if issubclass(kind, list):
        return list(islice(list.__iter__(part), MAX_OBJECTS + 1))
    mapping = dict_of(part)
    return None if mapping is None else list(islice(dict.values(mapping), MAX_OBJECTS + 1))


def dict_of(part: Any) -> dict[Any, Any] | None:
    """The dict itself, or that of a UserDict such as the BatchEncoding of transformers; None for anything else."""
    if not issubclass(type(part), dict):
        try:
            part = object.__getattribute__(part, "__dict__").get("data")
        except AttributeError:
            return None
    return part if issubclass(type(part), dict) else None
