"""Stop a loop that waits for an assumed value: it would never end, because the value is always the same.

Only a `while` loop can wait for a value; a `for` loop ends with its iterator. The guard counts the passes in which an
exit condition of the loop reads an assumed value. The count starts again when an optimizer steps, when a batch is
fetched, when the condition reads a true value, and when the program enters the loop anew.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from gpulab.capture.hooks.user_variables import frame_variables
from gpulab.errors import CaptureError
from gpulab.virtual.device.endless_loops.exits import Loop, innermost_loop

FREE_READS = 64  # reads at one line before the program's source is analysed
MAX_EQUAL_PASSES = 200  # passes of a loop that only tensors can end, while none of its variables changes
MAX_TENSOR_PASSES = 2_000  # passes of a loop that only tensors can end
MAX_PASSES = 10_000
_MAX_FRAMES = 100
_VISIBLE = (int, float, str, bool, type(None))
_PACKAGES = (str(Path(__file__).parents[3]),)  # gpulab: its frames are not the program's


@dataclass
class _Waiting:
    """A loop that reads an assumed value in each pass."""

    key: Any
    state: Any = None
    passes: int = 0
    equal_passes: int = 0


class LoopGuard:
    """Counts the reads of assumed values in loops; raises CaptureError where a loop cannot end."""

    def __init__(self) -> None:
        self._reads: dict[tuple[CodeType, int], int] = {}  # assumed reads by code and line since the last progress
        self._loop: _Waiting | None = None

    def progress(self) -> None:
        """An optimizer stepped or a batch was fetched: count again."""
        self._reads.clear()
        self._loop = None

    def read_true_value(self) -> None:
        """A true value was read: the loop that waits may end."""
        if self._reads:
            frame = _program_frame()
            if frame is not None and self._reads.pop((frame.f_code, frame.f_lineno), 0):
                self._loop = None

    def read_assumed_value(self) -> None:
        """An assumed value was read; raises CaptureError if the loop that waits for it cannot end."""
        frame = _program_frame()
        if frame is None:
            return
        line = (frame.f_code, frame.f_lineno)
        count = self._reads[line] = self._reads.get(line, 0) + 1
        if count <= FREE_READS:
            return
        place = _waiting_loop(frame)
        if place is None:
            return
        loop_frame, loop = place
        key = _entry_key(loop_frame, loop)
        if self._loop is None or self._loop.key != key:
            self._loop = _Waiting(key)
        self._count_pass(self._loop, frame, loop_frame, loop)

    def _count_pass(self, waiting: _Waiting, frame: FrameType, loop_frame: FrameType, loop: Loop) -> None:
        waiting.passes += 1
        if not loop.has_other_exit and frame is loop_frame:
            state = _visible_state(loop_frame)
            waiting.equal_passes = waiting.equal_passes + 1 if state == waiting.state else 0
            waiting.state = state
        most = MAX_PASSES if loop.has_other_exit or frame is not loop_frame else MAX_TENSOR_PASSES
        if waiting.equal_passes >= MAX_EQUAL_PASSES or waiting.passes >= most:
            self._reads.clear()
            self._loop = None
            raise _endless_loop(loop_frame, loop, waiting)


def _program_frame() -> FrameType | None:
    """Return the innermost frame of the program: not of gpulab, not of PyTorch."""
    import torch

    packages = (*_PACKAGES, str(Path(torch.__file__).parent))
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None or not frame.f_code.co_filename.startswith(packages):
            return frame
        frame = frame.f_back
    return None


def _waiting_loop(frame: FrameType) -> tuple[FrameType, Loop] | None:
    """Return the loop that waits for the value read in this frame, and the frame with the loop."""
    outer: FrameType | None = frame
    for _ in range(_MAX_FRAMES):
        if outer is None:
            return None
        loop = innermost_loop(outer)
        if loop is not None:
            return (outer, loop) if loop.is_while and loop.reads_exit else None
        outer = outer.f_back
    return None


def _entry_key(frame: FrameType, loop: Loop) -> Any:
    """Return what tells one run of a loop from the next: where its frame was called, and with which variables there."""
    callers: list[Any] = []
    outer = frame.f_back
    for _ in range(_MAX_FRAMES):
        if outer is None:
            break
        callers.append((id(outer), outer.f_lasti, _numbers(outer)))
        outer = outer.f_back
    variables = frame_variables(frame)
    outer_values = [_identity(variables[name]) for name in loop.outer_variables if name in variables]
    return frame.f_code, loop.first_line, id(frame), tuple(outer_values), tuple(callers)


def _numbers(frame: FrameType) -> tuple[Any, ...]:
    return tuple((name, value) for name, value in frame_variables(frame).items() if type(value) in _VISIBLE)


def _identity(value: Any) -> Any:
    return value if type(value) in _VISIBLE else id(value)


def _visible_state(frame: FrameType) -> tuple[Any, ...]:
    """Return numbers, text and sizes in the variables of a frame."""
    import torch

    state: list[Any] = []
    for name, value in frame_variables(frame).items():
        if isinstance(value, torch.Tensor):
            state.append((name, tuple(value.shape)))
        elif isinstance(value, list | tuple | dict | set):
            state.append((name, len(value)))
        else:
            state.append((name, _identity(value)))
    return tuple(state)


def _endless_loop(frame: FrameType, loop: Loop, waiting: _Waiting) -> CaptureError:
    return CaptureError(
        "A loop of the program cannot end on the virtual GPU.",
        why=f"line {loop.first_line} of {frame.f_code.co_filename}, `{loop.source}`, waits for a value that depends on "
        f"data. A virtual GPU does not compute it: the value assumed was the same in {waiting.passes} passes",
        fix="bound the loop by a number of passes too, or run it on the CPU (`.cpu()` before it)",
    )
