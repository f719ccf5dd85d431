"""Which recording is on: one at a time, as two would measure each other. A monitor behind it stops for as long."""

from __future__ import annotations

from typing import Protocol

from gpulab.errors import CaptureError


class Recorder(Protocol):
    """What is being recorded by: a session, or a virtual GPU."""

    name: str

    def mark_step(self) -> None:
        """The user says that a step ended here."""


class Yielding(Recorder, Protocol):
    """What records in the background, and does nothing at all while another recording is on."""

    def give_way(self, recorder: str) -> None:
        """Another recording, of this name, begins: leave no hook and no thread. Must not raise."""

    def go_on(self) -> None:
        """It has ended. Must not raise."""


_active: Recorder | None = None
_behind: Yielding | None = None


def claim(recorder: Recorder) -> None:
    """From now on this one records. Raises CaptureError while another does."""
    global _active
    if _active is not None:
        raise CaptureError(
            f"{recorder.name!r} is not recorded: {_active.name!r} is being recorded already.",
            why="two recordings at once would measure each other",
            fix="remove the inner %%gpuprofile, or run it in a cell of its own",
        )
    if _behind is not None:
        _behind.give_way(recorder.name)
    _active = recorder


def release() -> None:
    """Nothing records any more, but for a monitor in the background."""
    global _active
    _active = None
    if _behind is not None:
        _behind.go_on()


def settle(monitor: Yielding) -> None:
    """From now on this one records in the background. Raises CaptureError where another does, or a cell is recorded."""
    global _behind
    if _behind is not None:
        raise CaptureError(
            f"{_behind.name!r} is monitored already.",
            why="two monitors at once would measure each other",
            fix="go on with that one, or end it first: %gpumonitor --stop, or .stop() of what gpulab.monitor() gave",
        )
    if _active is not None:
        raise CaptureError(
            f"The monitor cannot start while {_active.name!r} is being recorded.",
            why="two recordings at once would measure each other",
            fix="start the monitor in a cell of its own",
        )
    _behind = monitor


def leave() -> None:
    """No monitor is on any more."""
    global _behind
    _behind = None


def step() -> None:
    """Mark the end of a step, in loops that have neither a DataLoader nor an optimizer; nothing if none records."""
    recorder = _active or _behind
    if recorder is not None:
        recorder.mark_step()
