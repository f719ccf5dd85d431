"""Which recording is on: one at a time, as two would measure each other."""

from __future__ import annotations

from typing import Protocol

from gpulab.errors import CaptureError


class Recorder(Protocol):
    """What is being recorded by: a session, or a virtual GPU."""

    name: str

    def mark_step(self) -> None:
        """The user says that a step ended here."""


_active: Recorder | None = None


def claim(recorder: Recorder) -> None:
    """From now on this one records. Raises CaptureError while another does."""
    global _active
    if _active is not None:
        raise CaptureError(
            f"{recorder.name!r} is not recorded: {_active.name!r} is being recorded already.",
            why="two recordings at once would measure each other",
            fix="remove the inner %%gpuprofile, or run it in a cell of its own",
        )
    _active = recorder


def release() -> None:
    """Nothing records any more."""
    global _active
    _active = None


def step() -> None:
    """Mark the end of a step, in loops that have neither a DataLoader nor an optimizer; nothing if none records."""
    if _active is not None:
        _active.mark_step()
