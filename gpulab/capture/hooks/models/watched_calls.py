"""A wrapper of `torch.nn.Module.__call__` for as long as the calls of a step, or of an evaluation, are watched.

Hooks would switch off fast paths of PyTorch. torch.compile must not see the wrapper, or it would compile again without
it: watching ends as soon as anything is compiled, or the compiler is imported, and programs with compiled code are left
alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol

from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.uncompiled import has_compiled

_COMPILER = "torch._dynamo"
REPEATED = "layers, and modules that compute something again"


class WatchedCalls(Protocol):
    """Notes the calls of modules from its creation until `end()`."""

    is_over: bool
    is_within: bool  # a call that makes all others: they do not count

    def before(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any], /) -> Any:
        """Note a call; return what `after` gets, None if it is not watched."""

    def after(self, call: Any, output: Any, /) -> None:
        """Note the end of a call."""

    def end(self) -> object:
        """Stop watching."""


def watch_calls(step: WatchedCalls, thread: int, guard: Guard) -> Callable[[], None] | None:
    """Let `step` note the calls of modules in a thread; return what ends that, or None if code may be compiled.

    A patch that the user's code put over ours stays.
    """
    from torch import nn

    compiler = sys.modules.get(_COMPILER)  # imported with PyTorch's optimizers; importing it takes a second
    if _is_being_imported(compiler) or has_compiled():
        return None
    kind: Any = nn.Module
    original, process = kind.__call__, os.getpid()

    def watched_call(module: Any, /, *arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # an error in the user's model should show only the user's lines
        if compiler is None and _COMPILER in sys.modules:
            unpatch()
        # A forked worker has the same thread, and would be watched for as long as it lives.
        if step.is_over or step.is_within or threading.get_ident() != thread or os.getpid() != process:
            return original(module, *arguments, **options)
        call = guard.call(REPEATED, step.before, None, module, arguments, options)
        try:
            output = original(module, *arguments, **options)
        except BaseException:
            step.end()
            raise
        if call is not None:
            guard.call(REPEATED, step.after, None, call, output)
        return output

    def unpatch(*_: Any) -> None:
        step.end()
        if kind.__dict__.get("__call__") is watched_call:
            kind.__call__ = original

    def restore() -> None:
        unpatch()
        if compiler is not None:
            with contextlib.suppress(ValueError):  # torch.compiler.reset() has removed it
                compiler.callback.callback_handler.remove_start_callback(unpatch)

    if compiler is not None:
        compiler.callback.callback_handler.register_start_callback(unpatch)
    kind.__call__ = watched_call
    return restore


def _is_being_imported(module: ModuleType | None) -> bool:
    """Whether another thread imports a module now, so that a part of it may be missing."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))
