"""Name the time of a method of one object: a framework may have no event at its begin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpulab.capture.active_session import phase


class PhaseMethod:
    """Calls a bound method within a phase. It can be pickled as the method can."""

    def __init__(self, method: Callable[..., Any], name: str) -> None:
        functools.update_wrapper(self, method)
        self._method, self._name = method, name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call the method."""
        __tracebackhide__ = True
        with phase(self._name):
            return self._method(*arguments, **options)


def name_method(owner: Any, method: str, name: str) -> None:
    """Make calls of `owner.method` a phase; does nothing if there is no such method, or it is one already."""
    bound = getattr(owner, method, None)
    if callable(bound) and not isinstance(bound, PhaseMethod):
        setattr(owner, method, PhaseMethod(bound, name))


def restore_method(owner: Any, method: str) -> None:
    """Undo `name_method`; a patch that the program put over it stays."""
    if isinstance(vars(owner).get(method), PhaseMethod):
        delattr(owner, method)
