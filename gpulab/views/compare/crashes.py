"""Compared runs that did not complete, as text."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.analysis.steps.marked_steps import completed_steps
from gpulab.comparison.sides import ComparedSide, ending
from gpulab.wording import count


def crash_text(sides: Sequence[ComparedSide]) -> str:
    """Name the runs that crashed, before the verdict; "" if none did."""
    sentences = []
    for side in sides:
        for crash in side.crashes:
            step_count = completed_steps(crash.run, crash.steps.detected_by, len(crash.steps))
            after = f"after {count(step_count, 'step')}" if step_count else "before the first complete step"
            name = f'"{crash.run.name}"' if len(side.runs) > 1 else f'"{side.name}"'
            sentences.append(f"{name} {ending(crash.run)} {after}. ")
    return "".join(sentences)
