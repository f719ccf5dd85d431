"""Phrases about the evidence that several rules share: idle time, shares of a step, spread over steps."""

from __future__ import annotations

from gpulab.rules.engine.evidence import Evidence
from gpulab.wording import article, count, duration, percent, scale


def sentences(*texts: str) -> str:
    """Return the texts that are not empty, one after the other."""
    return " ".join(text for text in texts if text)


def idle_share(evidence: Evidence, frac: float, cause: str = "data loading") -> str:
    """Return a claim about the idle time of one cause: "Data loading leaves the GPU idle for 34 % of each step".

    The GPU may be idle for longer: the rest has other causes. `cause`: a noun phrase in the singular.
    """
    effect = "leaves the GPU idle" if evidence.on_gpu else "keeps the model waiting"
    return f"{cause[:1].upper()}{cause[1:]} {effect} for {percent(frac)} {step_or_recording(evidence)}"


OTHER_THREADS = (
    "Sums over another number of threads round differently: results agree up to rounding errors, but not bit for bit."
)


def no_kernel_share(evidence: Evidence, frac: float, cause: str) -> str:
    """Return a claim about time without compute: "Waiting for a value leaves the GPU without a kernel for 12 % ..."."""
    cause = f"{cause[:1].upper()}{cause[1:]}"
    return f"{cause} leaves the GPU without a kernel for {percent(frac)} {step_or_recording(evidence)}"


def step_or_recording(evidence: Evidence) -> str:
    """Return the whole of a share: "of each step", or "of the recorded time" for a run without steps.

    With bursts, single steps differ widely, so the share is one "of the step time".
    """
    if is_whole_run(evidence):
        return "of the recorded time"
    return "of the step time" if evidence.ledger.burst > 1 else "of each step"


def is_whole_run(evidence: Evidence) -> bool:
    """Whether no steps were found, so that the whole recording is judged."""
    return evidence.steps.detected_by == "whole run"


def per_step(evidence: Evidence) -> str:
    """Return the scope of a count: "per step", or "in the recording" for a run without steps."""
    return "in the recording" if is_whole_run(evidence) else "per step"


def duration_in_step(evidence: Evidence, dur_ns: int) -> str:
    """Return a duration and the step it is part of, within a sentence: "12 ms of a 40 ms step".

    Both are without the profiler if that was measured: convert a recorded duration with `evidence.unprofiled_ns`.
    """
    if evidence.steps.traced_ns is None:
        return duration(dur_ns)
    return f"{duration(dur_ns)} of {_typical_step(evidence)}"


def step_spends(evidence: Evidence, dur_ns: int) -> str:
    """Return how much of a step some work takes, as the start of a sentence: "A 40 ms step spends 12 ms".

    "in copies" or "on dispatch" follows. `dur_ns`: as in `duration_in_step`.
    """
    step = "A step" if evidence.steps.traced_ns is None else _typical_step(evidence)
    return f"{step[:1].upper()}{step[1:]} spends {duration(dur_ns)}"


def _typical_step(evidence: Evidence) -> str:
    """Return the typical step with its length: "a 40 ms step"."""
    step = duration(evidence.step_ns)
    return f"the recording of {step}" if is_whole_run(evidence) else f"{article(step)} step"


def range_over_steps(evidence: Evidence, *keys: str) -> str:
    """Return the range of these ledger parts over the complete steps: "38-43 ms in the 12 complete steps".

    It is the range that the breakdown of the step time shows. If DataLoader workers deliver batches in groups, single
    steps vary for that reason, which the text says.
    """
    low_ns, high_ns = evidence.typical_step.range_ns(evidence.ledger, *keys)
    steps, burst = len(evidence.ledger.step_ns), evidence.ledger.burst
    if steps == 1:
        return "no steps were found" if is_whole_run(evidence) else "1 complete step"
    if duration(low_ns) == duration(high_ns):
        return f"{duration(high_ns)} in each of the {count(steps, 'complete step')}"
    unit = scale(high_ns)
    limits = f"{unit.number(low_ns)} to {unit(high_ns)}"
    if burst > 1:
        return f"an average, because {burst} workers deliver batches in groups of {burst}"
    return f"{limits} in the {count(steps, 'complete step')}"
