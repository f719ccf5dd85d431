"""Instants in gpulab's own code at which Python can run a signal handler, and a tracer that sends a signal at one.

CPython checks for signals at a few instructions only: at the start of a function, at a jump backwards, and after a
call of a C function. The tracer follows the opcodes of gpulab's frames, and of the library frames below them, and
counts exactly these instants.
"""

from __future__ import annotations

import dis
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gpulab

PACKAGE = str(Path(gpulab.__file__).parent)
_LIBRARY = sysconfig.get_paths()["stdlib"]
_TORCH = tuple(os.path.join("torch", name) for name in ("profiler", os.path.join("autograd", "profiler")))
_CHECKS = frozenset(["CALL", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD", "CALL_FUNCTION_EX", "CALL_KW"])
_JUMPS = frozenset(["JUMP_BACKWARD", "JUMP_ABSOLUTE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE"])
Location = tuple[str, str, int]  # file, function, offset of the instruction; -1: its start


class InstantTracer:
    """Counts the instants by location; at the n-th visit of `location` it calls `send`, once."""

    def __init__(
        self, location: Location | None = None, visit: int = 1, send: Callable[[], None] | None = None
    ) -> None:
        self.visits: Counter[Location] = Counter()
        self._location, self._visit, self._send = location, visit, send
        self._last: dict[int, int] = {}  # offset of the last instruction of each frame; -1 after a Python call

    def start(self) -> None:
        """Trace this thread."""
        sys.settrace(self._enter)

    def stop(self) -> None:
        """Stop tracing."""
        sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        caller = frame.f_back
        if caller is not None and id(caller) in self._last:
            self._last[id(caller)] = -1
        if not _is_followed(frame):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._last[id(frame)] = -1
        self._arrive(frame, -1)
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "return":
            self._last.pop(id(frame), None)
        elif event == "opcode":
            before = self._last.get(id(frame), -1)
            self._last[id(frame)] = frame.f_lasti
            if before >= 0 and before in _check_offsets(frame.f_code):
                self._arrive(frame, before)
        return self._step

    def _arrive(self, frame: FrameType, offset: int) -> None:
        code = frame.f_code
        location = code.co_filename, code.co_name, offset
        self.visits[location] += 1
        if location == self._location and self.visits[location] == self._visit and self._send is not None:
            self._location = None
            self._send()


@cache
def _check_offsets(code: CodeType) -> frozenset[int]:
    names = _CHECKS | _JUMPS
    return frozenset(each.offset for each in dis.get_instructions(code) if each.opname in names)


def _is_followed(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    if file.startswith(PACKAGE):
        return True
    caller = frame.f_back
    if caller is None or caller.f_trace is None:
        return False
    if file.startswith(_LIBRARY) and "site-packages" not in file:
        return True
    return any(part in file for part in _TORCH)
