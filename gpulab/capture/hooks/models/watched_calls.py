"""A wrapper of `torch.nn.Module.__call__` for as long as the calls of a step, or of an evaluation, are watched.

Hooks would switch off fast paths of PyTorch. torch.compile must not see the wrapper, or it would compile again without
it: watching ends as soon as anything is compiled, and programs with compiled code are left alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from gpulab.capture.hooks.models.watched_step import WatchedStep
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.uncompiled import has_compiled

REPEATED = "layers, and modules that compute something again"


def watch_calls(step: WatchedStep, thread: int, guard: Guard) -> Callable[[], None] | None:
    """Let `step` note the calls of modules in a thread; return what ends that, or None if code may be compiled.

    A patch that the user's code put over ours stays.
    """
    from torch import nn

    compilations = _first_compilation()
    if compilations is None:
        return None
    kind: Any = nn.Module
    original, process = kind.__call__, os.getpid()

    def watched_call(module: Any, /, *arguments: Any, **options: Any) -> Any:
        __tracebackhide__ = True  # an error in the user's model should show only the user's lines
        # A forked worker has the same thread, and would be watched for as long as it lives.
        if step.is_over or threading.get_ident() != thread or os.getpid() != process:
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
        with contextlib.suppress(ValueError):  # torch.compiler.reset() has removed it
            compilations.remove_start_callback(unpatch)

    compilations.register_start_callback(unpatch)
    kind.__call__ = watched_call
    return restore


def _first_compilation() -> Any:
    """Return what calls back when torch.compile begins to compile; None if it has compiled anything.

    None, too, if it is not imported, which happens with PyTorch's optimizers: importing it takes a second.
    """
    dynamo = sys.modules.get("torch._dynamo")
    return None if dynamo is None or has_compiled() else dynamo.callback.callback_handler
