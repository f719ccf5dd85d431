"""One sentence on how a run compares with the earlier runs of its name."""

from __future__ import annotations

from gpulab.rules import Diagnosis
from gpulab.user_data.run_history import RunChange, change_since
from gpulab.wording import clean, count, percent


def earlier_runs_text(diagnosis: Diagnosis) -> str:
    """Return the sentence if the run is notably slower or faster than the earlier ones; "" otherwise."""
    change = change_since(diagnosis.run, typical_step_ns(diagnosis))
    return "" if change is None or not change.is_notable else change_text(change)


def typical_step_ns(diagnosis: Diagnosis) -> float | None:
    """Return the step time that runs are compared by; None without steps."""
    if diagnosis.steps.detected_by == "whole run":
        return None
    return diagnosis.steps.step_ns


def change_text(change: RunChange) -> str:
    """Return the change in words: "41 % slower than the median of the last five; since then: torch 2.12 to 2.13"."""
    amount = percent(abs(change.ratio - 1))
    direction = "slower" if change.ratio > 1 else "faster"
    text = f"A step is {amount} {direction} than the median of the last {count(change.count, 'run')} of this name"
    if not change.settings:
        return f"{text}. Versions, batch size and workers are the same"
    changes = ", ".join(f"{clean(name)} {clean(before)} to {clean(now)}" for name, before, now in change.settings)
    return f"{text}; since then: {changes}"
