"""What faster work on the device gives: less than it saves there, where the host is nearly as slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.host.host_bound import pace
from gpulab.analysis.kernels.interior import Interior, interior, short
from gpulab.intervals import Spans
from gpulab.replay.removal import without
from gpulab.rules.engine.evidence import Evidence, warmed_ns
from gpulab.rules.engine.finding import Gain
from gpulab.wording import duration

WORTH_FRAC = 0.05  # where even at best less than this comes out of it, the host is what limits: nothing is said
# Recording lengthens every call. Where by how much was not measured, the host's own need may be so much less.
BEST_CALLS, LEAST_CALLS = 0.75, 0.5


class KernelGroup(NamedTuple):
    """Kernels of one kind in the interior steps, and what they cost a typical step."""

    kernels: Interior
    mask: Mask
    cost_ns: int
    share: float  # of the traced step
    largest: str  # the full name of the kernel that takes most time


def kernel_group(evidence: Evidence, is_member: Callable[[str], bool], least_share: float) -> KernelGroup | None:
    """The kernels whose names satisfy this; None where there are none, or they take a smaller share of the step."""
    kernels = evidence.once(interior)
    if kernels is None:
        return None
    mask = kernels.which(is_member)
    most = kernels.most(mask)
    cost_ns = kernels.cost_ns(mask) if most else 0
    share = evidence.step_share(cost_ns)
    return KernelGroup(kernels, mask, cost_ns, share, most[0]) if most and share >= least_share else None


def largest_kernel(kernels: Interior, mask: Mask) -> str:
    """The short name of the kernel among these that takes most time; "-" where there is none."""
    most = kernels.most(mask)
    return short(most[0]) if most else "-"


def faster_work(
    evidence: Evidence,
    cost_ns: int,
    left: tuple[float, float, float],
    basis: str,
    floor_means: str,
    *,
    calls: bool = False,
    spans: Spans | None = None,
) -> Gain | None:
    """The gain where work that costs so much of a traced step shrinks to a part of itself.

    `left`: the parts that remain at worst, at best and at the utmost. No step is shorter than what the host needs for
    it, unless the work is `calls` of the host itself; None where next to nothing is gained. `spans`: when the device
    did it, where the step can be replayed with that shortened.
    """
    step_ns = evidence.step_ns
    hosts = (0, 0, 0) if calls else _host_ns(evidence)
    shrunk = [round(step_ns - (1 - part) * evidence.plain_ns(cost_ns)) for part in left]
    worst, best, floor = (min(step_ns, max(1, *each)) for each in zip(hosts, shrunk, strict=True))
    if not evidence.on_gpu:
        floor = warmed_ns(floor, step_ns)
        best = max(floor, warmed_ns(best, step_ns))
    best = min(best, worst)
    gain = Gain(
        step_ns=step_ns,
        best_ns=best,
        worst_ns=worst,
        floor_ns=min(floor, best),
        basis=f"{basis}; the host alone needs {duration(hosts[0])} of each step" if hosts[0] > shrunk[0] else basis,
        floor_means=floor_means,
    )
    if evidence.on_gpu and spans is not None and spans.total_ns:
        realised = (1 - left[0], 1 - left[1], 1 - left[2])
        gain = evidence.replayed(without("faster", spans, realised, device_only=True), gain)
    return worth_having(gain)


def worth_having(gain: Gain) -> Gain | None:
    """The gain, unless even at best next to nothing comes out."""
    return gain if gain.step_ns - gain.best_ns >= WORTH_FRAC * gain.step_ns else None


def _host_ns(evidence: Evidence) -> tuple[int, int, int]:
    """What the host needs for an un-profiled step: as measured, and as little as it may be."""
    told = evidence.once(pace)
    if evidence.steps.plain_ns is not None:
        needed_ns = evidence.without_recording(told.needed_ns)
        return needed_ns, needed_ns, needed_ns
    calls_ns = told.needed_ns - told.steady_ns
    return (
        told.needed_ns,
        told.steady_ns + round(BEST_CALLS * calls_ns),
        told.steady_ns + round(LEAST_CALLS * calls_ns),
    )


def by_ratio(worst: float, best: float, utmost: float) -> tuple[float, float, float]:
    """What is left of work that becomes so many times as fast."""
    return 1 / worst, 1 / best, 1 / utmost
