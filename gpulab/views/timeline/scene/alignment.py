"""Aligns a second run with the first one on a common time axis."""

from __future__ import annotations

from gpulab.analysis.steps.detection import Steps
from gpulab.views.sheet.lanes import middle_window


def alignment_shift_ns(steps: Steps, other: Steps) -> int:
    """Return the time in ns to add to the other run, so that the first visible steps of both begin together."""
    first_window, other_window = middle_window(steps), middle_window(other)
    if first_window is None or other_window is None:
        return 0
    return first_window.start_ns - other_window.start_ns
