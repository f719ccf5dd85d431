"""The gain of faster kernels, which is smaller than the saved device time if the host is nearly as slow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.host.instant_device import host_step_time
from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels, short_kernel_name
from gpulab.intervals import Spans, no_spans
from gpulab.replay.removal import removal
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import Gain
from gpulab.wording import duration

_MIN_GAIN_FRAC = 0.05  # if the best case gains less, the host is the limit, and nothing is reported
# The profiler lengthens every call. If its overhead is unknown, calls may take this fraction of their traced time.
_BEST_CALL_FRAC, _LEAST_CALL_FRAC = 0.75, 0.5
_HOST_LIMITS_RATIO = 1.05  # a bound this much longer than the device's own time is one of the host


class KernelGroup(NamedTuple):
    """Kernels of one kind in the interior steps, and their cost in a typical step."""

    kernels: InteriorKernels
    mask: Mask
    cost_ns: int
    step_frac: float  # of the traced step
    largest: str  # full name of the kernel with the longest total time


def kernel_group(evidence: Evidence, is_member: Callable[[str], bool], least_share: float) -> KernelGroup | None:
    """Return the kernels that satisfy `is_member`; None if they take less than `least_share` of the step."""
    kernels = evidence.cached(interior_kernels)
    if kernels is None:
        return None
    mask = kernels.mask_names(is_member)
    longest = kernels.longest_name(mask)
    cost_ns = kernels.cost_ns(mask) if longest else 0
    share = evidence.step_share(cost_ns)
    return KernelGroup(kernels, mask, cost_ns, share, longest[0]) if longest and share >= least_share else None


def largest_kernel(kernels: InteriorKernels, mask: Mask) -> str:
    """Return the short name of the kernel with the longest total time among these; "-" if there is none."""
    longest = kernels.longest_name(mask)
    return short_kernel_name(longest[0]) if longest else "-"


def faster_kernels_gain(
    evidence: Evidence,
    cost_ns: int,
    remaining: tuple[float, float, float],
    basis: str,
    floor_means: str,
    *,
    calls: bool = False,
    spans: Spans | None = None,
    host_spans: Spans | None = None,
    rewrites: str = "",
) -> Gain | None:
    """Return the gain if device work that costs `cost_ns` of a traced step shrinks to a fraction of itself.

    `remaining`: the fractions that remain at worst, at best, and at the bound. No step is shorter than the host's own
    time for it, unless the work is `calls` of the host itself. Returns None if almost nothing is gained. `spans`: when
    the device did this work; the step is then replayed with it shortened, and with the host's work in `host_spans`.
    `rewrites`: the what-if that predicts the same change, and is preferred where it applies.
    """
    step_ns = evidence.step_ns
    host_ns = (0, 0, 0) if calls else _host_ns(evidence)
    remaining_ns = [round(step_ns - (1 - part) * evidence.unprofiled_ns(cost_ns)) for part in remaining]
    worst, best, floor = (min(step_ns, max(1, *times)) for times in zip(host_ns, remaining_ns, strict=True))
    cold_floor = floor
    if not evidence.on_gpu:
        floor = with_warm_caches_ns(floor, step_ns)
        best = max(floor, with_warm_caches_ns(best, step_ns))
    best = min(best, worst)
    gain = Gain(
        step_ns=step_ns,
        best_ns=best,
        worst_ns=worst,
        floor_ns=min(floor, best),
        basis=f"{basis}; the host alone needs {duration(host_ns[0])} per step"
        if host_ns[0] > remaining_ns[0]
        else basis,
        floor_assumes=floor_means,
        cold_floor_ns=max(cold_floor, min(floor, best)),
    )
    if evidence.on_gpu and spans is not None and spans.total_ns:
        realised = (1 - remaining[0], 1 - remaining[1], 1 - remaining[2])
        gain = evidence.gain_of_rewrite(removal("faster", spans, realised, host_spans=host_spans or no_spans()), gain)
    if rewrites:
        gain = evidence.gain_of_named_rewrites(rewrites, gain)
    if evidence.on_gpu and not calls and gain.floor_ns > _HOST_LIMITS_RATIO * remaining_ns[2]:
        gain = replace(gain, floor_assumes=f"{gain.floor_assumes}; the GPU then waits for the CPU")
    return gain_if_significant(gain)


def gain_if_significant(gain: Gain) -> Gain | None:
    """Return the gain, or None if even the best case gains almost nothing."""
    return gain if gain.step_ns - gain.best_ns >= _MIN_GAIN_FRAC * gain.step_ns else None


def _host_ns(evidence: Evidence) -> tuple[int, int, int]:
    """Return the host's time for an un-profiled step: as measured, at best, and at least."""
    host_pace = evidence.cached(host_step_time)
    if evidence.steps.unprofiled_ns is not None:
        needed_ns = evidence.without_profiler_overhead(host_pace.needed_ns)
        return needed_ns, needed_ns, needed_ns
    calls_ns = host_pace.needed_ns - host_pace.uninflated_ns
    return (
        host_pace.needed_ns,
        host_pace.uninflated_ns + round(_BEST_CALL_FRAC * calls_ns),
        host_pace.uninflated_ns + round(_LEAST_CALL_FRAC * calls_ns),
    )


def remaining_fracs(worst: float, best: float, utmost: float) -> tuple[float, float, float]:
    """Return the remaining fractions of work that becomes this many times as fast."""
    return 1 / worst, 1 / best, 1 / utmost
