"""Temporary patches of torch: attributes, list items and kernels, all undone when a stack is closed."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

_ABSENT = object()


def patch_attributes(stack: ExitStack, owner: Any, **values: Any) -> None:
    """Set attributes of a module or class until the stack is closed."""
    for name, value in values.items():
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        stack.callback(_restore, owner, name, original)


def _restore(owner: Any, name: str, original: Any) -> None:
    if original is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, original)


def patch_list(stack: ExitStack, items: list[Any], value: Any) -> None:
    """Add to a list until the stack is closed."""
    if value not in items:
        items.append(value)
        stack.callback(items.remove, value)


@contextmanager
def registered_kernels(functions: Mapping[str, Callable[..., Any]], key: str) -> Iterator[None]:
    """Register Python kernels for aten operators under a dispatch key; remove them on exit."""
    import torch

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # Since torch 2.8 replacing PyTorch's own kernel needs this argument.
    options = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning that a kernel is replaced
            for name, kernel in functions.items():
                library.impl(name, kernel, key, **options)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
