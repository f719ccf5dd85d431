"""What of torch is something else for a time, and put back: attributes, kernels, one after the other."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

_ABSENT = object()


def swap(stack: ExitStack, owner: Any, **values: Any) -> None:
    """Set attributes of a module or class until the stack is closed."""
    for name, value in values.items():
        own = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        stack.callback(_put_back, owner, name, own)


def _put_back(owner: Any, name: str, own: Any) -> None:
    if own is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, own)


def extend(stack: ExitStack, items: list[Any], value: Any) -> None:
    """Add to a list until the stack is closed."""
    if value not in items:
        items.append(value)
        stack.callback(items.remove, value)


@contextmanager
def kernels(named: Mapping[str, Callable[..., Any]], key: str) -> Iterator[None]:
    """Register Python kernels for operators of aten under a dispatch key, and take them away again."""
    import torch

    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # Before torch 2.8 none was needed to take the place of PyTorch's own.
    asked = {"allow_override": True} if "allow_override" in inspect.signature(library.impl).parameters else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that one is replaced, which is what is wanted
            for name, kernel in named.items():
                library.impl(name, kernel, key, **asked)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]
