"""A second run below the first: where it lies on the first one's axis of time."""

from __future__ import annotations

from gpulab.analysis.steps.detection import Steps
from gpulab.views.sheet.lanes import window


def shift(steps: Steps, other: Steps) -> int:
    """By how much the other run's time is moved, so that the first steps shown of both begin together."""
    mine, theirs = window(steps), window(other)
    if mine is None or theirs is None:
        return 0
    return mine.start_ns - theirs.start_ns
