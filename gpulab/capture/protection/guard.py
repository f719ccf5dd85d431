"""The guard around gpulab's code in the user's thread: a failure of ours never reaches the user's program.

An exception that a signal handler raises while our code runs belongs to the user, and so do KeyboardInterrupt and
SystemExit: these pass. Everything else disables the feature that failed, and the report says so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import ParamSpec, TypeVar

from gpulab.run import Gap
from gpulab.wording import clean

T = TypeVar("T")
P = ParamSpec("P")
_OUR_MODULES = frozenset({"builtins", "gpulab", "torch", "psutil", "pynvml", "numpy"})
_MAX_REASON = 300  # characters


class Guard:
    """Calls functions of gpulab in the user's thread; a feature that failed is not called again."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._failed: set[str] = set()

    def call(self, feature: str, function: Callable[P, T], default: T, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the function's result; `default` if it fails, or if this feature has failed before."""
        if feature in self._failed:
            return default
        try:
            return function(*args, **kwargs)
        except Exception as error:  # protects the user's program; the failure is reported as a gap
            if is_from_outside(error):
                raise
            self.disable(feature, error)
            return default

    def disable(self, feature: str, error: BaseException) -> None:
        """Do not call this feature again, and report why."""
        if feature not in self._failed:
            self._failed.add(feature)
            self.gaps.append(
                Gap(what=feature, why=f"it failed: {error_text(error)}", fix="please report this with the cell")
            )


def is_from_outside(error: BaseException) -> bool:
    """Whether a signal handler, or another thread, raised this exception while our code was running."""
    return outside_error(error) is not None


def outside_error(error: BaseException) -> BaseException | None:
    """Return the exception that a signal handler, or another thread, raised: this one, its cause or its context."""
    pending: list[BaseException] = [error]
    while pending:
        link = pending.pop()
        if _passed_signal_handler(link.__traceback__) or _is_asynchronous(link):
            return link
        pending += [linked for linked in (link.__cause__, link.__context__) if linked is not None]
    return None


def _passed_signal_handler(trace: TracebackType | None) -> bool:
    """Whether a frame of this traceback is a signal handler's: Python passes it the frame that it interrupted."""
    previous: FrameType | None = None
    while trace is not None:
        frame = trace.tb_frame
        if previous is not None and not _is_ours(frame) and _receives(frame, previous):
            return True
        previous, trace = frame, trace.tb_next
    return False


def _receives(frame: FrameType, interrupted: FrameType) -> bool:
    code = frame.f_code
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04)  # CO_VARARGS
    values: list[object] = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
    values += [item for value in values if type(value) is tuple for item in value]
    return any([value is interrupted for value in values])


def _is_asynchronous(error: BaseException) -> bool:
    """Whether another thread set this exception: it appears in our own frame, and is of a class that we never use."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not _is_ours(trace.tb_frame):
        return False
    root = type(error).__module__.partition(".")[0]
    return root not in _OUR_MODULES and root not in sys.stdlib_module_names


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("gpulab.")


def error_text(error: BaseException) -> str:
    """The exception as text; the user's class may fail at that, too."""
    name = class_name(type(error))
    try:
        text = clean(str(error), _MAX_REASON)
    except Exception:  # the user's `__str__`; the name of the class must do
        return name
    return f"{name}: {text}" if text else name


def class_module(kind: type) -> str:
    """The module of a class, whatever its metaclass says."""
    return str(type.__dict__["__module__"].__get__(kind))


def class_name(kind: type) -> str:
    """The name of a class, whatever its metaclass says."""
    return str(type.__dict__["__name__"].__get__(kind))
