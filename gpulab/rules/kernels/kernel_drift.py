"""Kernels that get slower over the recording, although they do the same work."""

from __future__ import annotations

from gpulab.analysis.kernels.drift import drifting_kernels
from gpulab.analysis.kernels.interior_kernels import short_kernel_name
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import SUSPECT, Finding, known_numbers
from gpulab.wording import count, duration, percent, ratio

_MIN_EXCESS_FRAC = 0.05


def kernel_drift(evidence: Evidence) -> Finding | None:
    """The same kernels, launched in the same way, take longer and longer.

    Proof: the durations of kernels with the same name and grid in the four quarters of the recorded steps: each quarter
    is slower than the one before.

    Confused with: lower clocks (`clock_throttling`), which slow all kernels; longer sequences, which change the grid;
    another program on the GPU (`shared_gpu`).

    What to do: look at what grows: a sparse or masked input with more entries, a list of tensors that becomes longer,
    an index that scatters more widely.
    """
    drifts = evidence.cached(drifting_kernels)
    excess = sum(drift.excess_frac for drift in drifts)
    if excess < _MIN_EXCESS_FRAC:
        return None
    first = drifts[0]
    times = ", ".join(duration(ns) for ns in first.quarter_ns)
    return Finding(
        claim=f"{count(len(drifts), 'kernel')} {'gets' if len(drifts) == 1 else 'get'} slower during the recording: "
        f"{percent(excess)} of the step time is above their first durations.",
        evidence=(
            f"{short_kernel_name(first.name)}: {times} (medians of four equal parts of the steps), "
            f"{ratio(first.ratio)} as long at the end, over {first.calls:,} calls with the same grid.",
        ),
        numbers=known_numbers(excess_frac=excess, ratio=first.ratio),
        advice="Record the loop again later: if it goes on, look for what grows from step to step (entries of a sparse "
        "tensor, masks, lists of tensors). If all kernels get slower together, look at clocks and temperature.",
        confidence=SUSPECT,
        informs_only=True,
    )
