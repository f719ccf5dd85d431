"""Attributes with one value per thread: PyTorch's fake mode is made for a single thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def per_thread_property(name: str, make: Callable[[], Any]) -> Any:
    """Return a property with one value per thread, created by `make` on first use."""

    def get(self: Any) -> Any:
        values = _thread_values(self)
        if name not in values:
            values[name] = make()
        return values[name]

    def put(self: Any, value: Any) -> None:
        _thread_values(self)[name] = value

    return property(get, put)


def _thread_values(mode: Any) -> dict[str, Any]:
    storage: threading.local = mode.__dict__.setdefault("_threads", threading.local())
    return storage.__dict__
