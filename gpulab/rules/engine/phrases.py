"""Phrases about the evidence that several rules share: idle time, shares of a step, spread over steps."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.wording import article, count, duration, percent


def idle_share(evidence: Evidence, frac: float) -> str:
    """Return the start of a claim about idle time: "GPU idle 41 % of each step"."""
    subject = "GPU idle" if evidence.on_gpu else "The model waits"
    return f"{subject} {percent(frac)} {step_or_recording(evidence)}"


def no_kernel_share(evidence: Evidence, frac: float) -> str:
    """Return the start of a claim about time without compute: "The GPU runs no kernel during 12 % of each step"."""
    return f"The GPU runs no kernel during {percent(frac)} {step_or_recording(evidence)}"


def step_or_recording(evidence: Evidence) -> str:
    """Return the whole of a share: "of each step", or "of the recorded time" for a run without steps."""
    return "of the recorded time" if evidence.steps.detected_by == "whole run" else "of each step"


def duration_in_step(evidence: Evidence, dur_ns: int) -> str:
    """Return a duration and the traced step it is part of: "12 ms of a 40 ms step"."""
    if evidence.steps.traced_ns is None:
        return duration(dur_ns)
    step = duration(evidence.steps.traced_ns)
    if evidence.steps.detected_by == "whole run":
        return f"{duration(dur_ns)} of {step} recorded"
    return f"{duration(dur_ns)} of {article(step)} step"


def range_over_steps(evidence: Evidence, *keys: str) -> str:
    """Return the number of interior steps and the range of these ledger parts over them."""
    low_ns, high_ns = evidence.ledger.range_ns(*keys)
    steps = len(evidence.ledger.step_ns)
    if steps == 1:
        return "1 interior step"
    low, high = duration(low_ns), duration(high_ns)
    return f"{count(steps, 'interior step')}, {low if low == high else f'{low} to {high}'} each"
