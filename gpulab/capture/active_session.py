"""The active recording: one at a time, because two would measure each other. A background monitor pauses for it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from gpulab.errors import CaptureError

if TYPE_CHECKING:
    from gpulab.capture.hooks.phase_recorder import PhaseRecorder


class ActiveRecorder(Protocol):
    """Something that records: a session or a virtual GPU."""

    name: str

    @property
    def phases(self) -> PhaseRecorder:
        """The phases that the program names."""

    def mark_step(self) -> None:
        """Mark the end of a step, as requested by the user's code."""

    def abandon(self) -> None:
        """End the recording without a run."""


class BackgroundRecorder(ActiveRecorder, Protocol):
    """A recorder in the background, fully inactive during any other recording."""

    def pause(self, recorder: str) -> None:
        """Pause for a recording of this name: remove all hooks and threads. Must not raise."""

    def resume(self) -> None:
        """Resume after that recording. Must not raise."""


_active: ActiveRecorder | None = None
_give_way: Callable[[], None] | None = None  # ends the active recording, if it is one that may be ended
_behind: BackgroundRecorder | None = None


def activate(recorder: ActiveRecorder) -> None:
    """Make this the active recorder. Raises CaptureError if another one is active."""
    global _active
    _make_way()
    if _active is not None:
        raise CaptureError(
            f"Cannot record {recorder.name!r} while {_active.name!r} is being recorded.",
            why="two recordings at once would measure each other",
            fix="remove the inner %%gpuprofile, or run it in a separate cell",
        )
    if _behind is not None:
        _behind.pause(recorder.name)
    _active = recorder


def deactivate() -> None:
    """End the active recording; a background monitor resumes."""
    global _active
    _active = None
    if _behind is not None:
        _behind.resume()


def give_way_with(function: Callable[[], None]) -> None:
    """Let the active recording end by this function when the program starts one of its own, as in `gpulab run`."""
    global _give_way
    _give_way = function


def _make_way() -> None:
    """End the active recording if it gives way to others."""
    global _give_way
    function, _give_way = _give_way, None
    if function is not None and _active is not None:
        function()


def leave_to_child() -> None:
    """In a forked process: end its copy of the parent's recording and of the monitor, which goes on in the parent."""
    global _active, _behind
    recorder, _behind = _active, None
    if recorder is not None:
        recorder.abandon()
    _active = None


def register_monitor(monitor: BackgroundRecorder) -> None:
    """Make this the background monitor. Raises CaptureError if there is another one, or if a cell is being recorded."""
    global _behind
    _make_way()
    if _behind is not None:
        raise CaptureError(
            f"The monitor {_behind.name!r} is already running.",
            why="two monitors at once would measure each other",
            fix="use that monitor, or stop it first: %gpumonitor --stop, or its method .stop()",
        )
    if _active is not None:
        raise CaptureError(
            f"The monitor cannot start while {_active.name!r} is being recorded.",
            why="two recordings at once would measure each other",
            fix="start the monitor in a separate cell",
        )
    _behind = monitor


def unregister_monitor() -> None:
    """Unregister the background monitor."""
    global _behind
    _behind = None


def step() -> None:
    """Mark the end of a step in a loop without DataLoader and optimizer. Does nothing if nothing is being recorded."""
    recorder = _active or _behind
    if recorder is not None:
        recorder.mark_step()


def is_recording() -> bool:
    """Whether a recording is active; a background monitor is none, as it pauses for one."""
    return _active is not None


class PhaseBlock:
    """Names the time of a `with` block in the recording that is active when the block begins; else does nothing.

    A class, because contextlib's generators assign to the exception that passes through them.
    """

    __slots__ = ("_name", "_open")

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: tuple[PhaseRecorder, int] | None = None

    def __enter__(self) -> None:
        recorder = _active or _behind
        if recorder is not None:
            phases = recorder.phases
            self._open = phases, phases.begin(self._name)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._open is not None:
            phases, number = self._open
            self._open = None
            phases.end(number)


def phase(name: str) -> PhaseBlock:
    """Name a part of the program: `with gpulab.phase("validation"): ...`. The report shows how long it takes.

    Phases may nest: time counts for the innermost one. Batches in a phase of validation, evaluation, test or prediction
    are no training steps. Does nothing if nothing is being recorded.
    """
    return PhaseBlock(name)
