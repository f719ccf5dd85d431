"""Find the tensors in a batch, and their size in bytes."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

MAX_VALUES = 20_000  # values to visit: a batch may contain a graph of objects, or a long list of numbers


def batch_size_bytes(batch: Any) -> int:
    """Return the bytes of the tensors in a batch; -1 if it has none or has too many values to search."""
    tensors, complete = tensors_of(batch)
    return sum(int(each.numel()) * int(each.element_size()) for each in tensors) if tensors and complete else -1


def tensors_of(batch: Any) -> tuple[list[Any], bool]:
    """Return the tensors in a batch, each once, and whether all of the batch was searched.

    Searches lists, tuples, mappings and attributes of objects. Runs no user code except that of mappings.
    """
    import torch

    tensors: list[Any] = []
    visited: set[int] = set()
    waiting: deque[Any] = deque([batch])
    for _ in range(MAX_VALUES):
        if not waiting:
            return tensors, True
        value = waiting.popleft()
        if id(value) in visited:
            continue
        if isinstance(value, torch.Tensor):
            visited.add(id(value))
            tensors.append(value)
        elif parts := _parts(value):
            visited.add(id(value))
            waiting.extend(parts)
    return tensors, not waiting


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return []
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    attributes = getattr(value, "__dict__", None)
    return [*slots, *(attributes.values() if isinstance(attributes, dict) else ())]
