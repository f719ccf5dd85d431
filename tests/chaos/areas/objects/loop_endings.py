"""Loops that end in an exception, also of an odd class."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import torch

import gpulab
from tests.chaos.areas.objects.loop import LOOPS, Interruption, Oddity, loop, train
from tests.chaos.program import Log


def _raising(name: str, error: Callable[[], BaseException]) -> None:
    def run(log: Log, *parts: Any) -> Any:
        train(log, *parts)
        raise error()

    LOOPS[f"raises {name}"] = run


class _WeirdTextError(Exception):
    def __str__(self) -> str:
        raise Oddity("str")

    def __repr__(self) -> str:
        raise Interruption("repr")


class _EqualError(Exception):
    def __eq__(self, other: object) -> bool:
        raise Oddity("eq")

    def __bool__(self) -> bool:
        raise Oddity("bool")

    __hash__ = None  # type: ignore[assignment]


class _ReadOnlyError(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise Oddity("setattr")


class _TextOnlyError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class _OddClassError(RuntimeError):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise Oddity("class")


def _with_cause() -> BaseException:
    error = Oddity("caused")
    error.__cause__ = KeyError("cause")
    error.__context__ = ValueError("context")
    return error


def _cycle() -> BaseException:
    error, other = Oddity("first"), Oddity("second")
    error.__context__, other.__context__ = other, error
    return error


_raising("oddity", lambda: Oddity("plain", 1, {"a": 2}))
_raising("weird text", lambda: _WeirdTextError("weird"))
_raising("odd text", lambda: _TextOnlyError("odd"))
_raising("unequal", lambda: _EqualError("unequal"))
_raising("read-only", lambda: _ReadOnlyError("read-only"))
_raising("odd class", lambda: _OddClassError("class"))
_raising("with cause", _with_cause)
_raising("cycle", _cycle)
_raising("stop", lambda: StopIteration("stop"))
_raising("stop async", lambda: StopAsyncIteration("stop"))
_raising("generator exit", lambda: GeneratorExit("exit"))
_raising("exit", lambda: SystemExit(4))
_raising("exit text", lambda: SystemExit("text"))
_raising("keyboard", lambda: KeyboardInterrupt("keyboard"))
_raising("memory", lambda: MemoryError("memory"))
_raising("cancelled", lambda: asyncio.CancelledError("cancelled"))
_raising("interruption", lambda: Interruption("interruption"))
_raising("out of memory", lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
_raising("gpulab error", lambda: gpulab.GpulabError("problem", why="why", fix="fix"))
_raising("unicode", lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "surrogate \udc80"))
_raising("huge text", lambda: Oddity("x" * 3_000_000))
_raising("os error", lambda: OSError(28, "No space left on device"))
if sys.version_info >= (3, 11):
    _raising(
        "group",
        lambda: ExceptionGroup("group", [Oddity("a"), KeyError("b")]),  # noqa: F821
    )


@loop("raises while handling")
def _(log: Log, *parts: Any) -> Any:
    try:
        train(log, *parts)
        raise Oddity("first")
    except Oddity:
        raise KeyError("second")  # noqa: B904  (its context is compared)


@loop("raises at once")
def _(log: Log, *parts: Any) -> Any:
    raise Oddity("at once")


@loop("recursion without end")
def _(log: Log, *parts: Any) -> Any:
    def endless() -> Any:
        return endless()

    train(log, *parts)
    return endless()
