"""Phrases about the evidence that several rules share: idle time, shares of a step, spread over steps."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.wording import article, count, duration, percent, scale

_NOTICEABLE_OVERHEAD = 1.05  # traced over un-profiled step time; with less, a text gives one step time only


def sentences(*texts: str) -> str:
    """Return the texts that are not empty, one after the other."""
    return " ".join(text for text in texts if text)


def idle_share(evidence: Evidence, frac: float, cause: str = "data loading") -> str:
    """Return a claim about the idle time of one cause: "Data loading leaves the GPU idle for 34 % of each step".

    The GPU may be idle for longer: the rest has other causes. `cause`: a noun phrase in the singular.
    """
    effect = "leaves the GPU idle" if evidence.on_gpu else "keeps the model waiting"
    return f"{cause[:1].upper()}{cause[1:]} {effect} for {percent(frac)} {step_or_recording(evidence)}"


def no_kernel_share(evidence: Evidence, frac: float, cause: str) -> str:
    """Return a claim about time without compute: "Waiting for a value leaves the GPU without a kernel for 12 % ..."."""
    cause = f"{cause[:1].upper()}{cause[1:]}"
    return f"{cause} leaves the GPU without a kernel for {percent(frac)} {step_or_recording(evidence)}"


def step_or_recording(evidence: Evidence) -> str:
    """Return the whole of a share: "of each step", or "of the recorded time" for a run without steps."""
    return "of the recorded time" if is_whole_run(evidence) else "of each step"


def is_whole_run(evidence: Evidence) -> bool:
    """Whether no steps were found, so that the whole recording is judged."""
    return evidence.steps.detected_by == "whole run"


def per_step(evidence: Evidence) -> str:
    """Return the scope of a count: "per step", or "in the recording" for a run without steps."""
    return "in the recording" if is_whole_run(evidence) else "per step"


def duration_in_step(evidence: Evidence, dur_ns: int) -> str:
    """Return a duration and the step it is part of: "12 ms of a 40 ms step".

    If steps were also timed without the profiler, the text says that this one was traced; if the profiler makes a step
    noticeably longer, it has both lengths.
    """
    if evidence.steps.traced_ns is None:
        return duration(dur_ns)
    step = duration(evidence.steps.traced_ns)
    if is_whole_run(evidence):
        return f"{duration(dur_ns)} of {step} recorded"
    overhead = evidence.steps.profiler_overhead
    if overhead is None:
        return f"{duration(dur_ns)} of {article(step)} step"
    without = f"; {duration(evidence.steps.unprofiled_ns)} without the profiler"
    return f"{duration(dur_ns)} of a traced step ({step}{without if overhead >= _NOTICEABLE_OVERHEAD else ''})"


def range_over_steps(evidence: Evidence, *keys: str) -> str:
    """Return the number of complete steps and the range of these ledger parts over them."""
    low_ns, high_ns = evidence.ledger.range_ns(*keys)
    steps = len(evidence.ledger.step_ns)
    if steps == 1:
        return "no steps were found" if is_whole_run(evidence) else "1 complete step"
    unit = scale(high_ns)
    limits = (
        f"{unit.range(low_ns, high_ns)} {unit.unit}" if duration(low_ns) != duration(high_ns) else duration(high_ns)
    )
    burst = evidence.ledger.burst
    in_groups = f"on average over groups of {burst} steps; single steps: " if burst > 1 else ""
    return f"{in_groups}{limits} per step, over {count(steps, 'complete step')}"
