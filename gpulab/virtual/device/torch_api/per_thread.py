"""Attributes that every thread has its own of: PyTorch's fake mode is made for one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def of_thread(name: str, make: Callable[[], Any]) -> Any:
    """Such an attribute, made in each thread when first asked for."""

    def get(self: Any) -> Any:
        held = _own_of_thread(self)
        if name not in held:
            held[name] = make()
        return held[name]

    def put(self: Any, value: Any) -> None:
        _own_of_thread(self)[name] = value

    return property(get, put)


def _own_of_thread(mode: Any) -> dict[str, Any]:
    own: threading.local = mode.__dict__.setdefault("_threads", threading.local())
    return own.__dict__
