"""What is in a batch: its tensors, in whatever containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

MOST = 20_000  # values looked at: a batch may hold a graph of objects, or a long list of numbers


def size_bytes(batch: Any) -> int:
    """Bytes of the tensors in a batch; -1 where it holds none that can be found, or too much to look through."""
    found, all_seen = tensors_of(batch)
    return sum(int(each.numel()) * int(each.element_size()) for each in found) if found and all_seen else -1


def tensors_of(batch: Any) -> tuple[list[Any], bool]:
    """The tensors in a batch, each once, and whether all of it was looked at.

    Looks into lists, tuples, mappings, and the attributes of objects; calls no code of theirs but a mapping's.
    """
    import torch

    found: list[Any] = []
    seen: set[int] = set()
    waiting: deque[Any] = deque([batch])
    for _ in range(MOST):
        if not waiting:
            return found, True
        value = waiting.popleft()
        if id(value) in seen:
            continue
        if isinstance(value, torch.Tensor):
            seen.add(id(value))
            found.append(value)
        elif parts := _parts(value):
            seen.add(id(value))
            waiting.extend(parts)
    return found, not waiting


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return list(value)
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, type) or type(value).__module__ == "builtins":
        return []
    slots = [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    held = getattr(value, "__dict__", None)
    return [*slots, *(held.values() if isinstance(held, dict) else ())]
