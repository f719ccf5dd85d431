"""Align the clocks of the ranks of a job: a collective that synchronises ends on all of them at the same time.

The difference between two ranks' ends of the same collective is the difference of their clocks, apart from jitter. Its
median is the offset. Clocks of different machines also drift, by some microseconds per second; the drift is estimated
where it exceeds the jitter. Ranks that share no collective with the first one are aligned through other ranks.

What remains unknown: a delay that always ends collectives later on one rank looks like an offset of its clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.ranks.matching import MatchedCollectives, match_collectives
from gpulab.intervals import Ints
from gpulab.run import Run

Floats = NDArray[np.float64]
MIN_MATCHES = 3  # fewer do not show how far they scatter
_MIN_DRIFT_MATCHES = 12
_MAX_SLOPE_POINTS = 256  # slopes between all pairs of points: 32,640 of these
_DEVIATIONS = 4.0  # of the estimate: a drift that moves the clock by less over the recording may be jitter
_DEVIATION_PER_MEDIAN = 1.4826  # standard deviation of normal jitter over its median absolute deviation
_ERROR_PERCENTILE = 90.0


@dataclass(frozen=True, kw_only=True)
class RankClock:
    """The clock of one rank against that of the first rank. None: it cannot be aligned."""

    offset_ns: float | None  # to add to its times, at `middle_ns`
    drift_frac: float = 0.0  # ns per ns that the offset grows; 0 if it cannot be told from jitter
    middle_ns: float = 0.0  # on the clock of this rank
    error_ns: float | None = None  # nine of ten ends of collectives differ by less after alignment
    matches: int = 0  # collectives compared
    through: int | None = None  # index of the rank that it was aligned with

    def aligned_ns(self, times_ns: Ints) -> Ints:
        """Return these times on the clock of the first rank, in ns. Raises ValueError if it cannot be aligned."""
        if self.offset_ns is None:
            raise ValueError("the clock of this rank cannot be aligned: it shares too few collectives with the others")
        shift = self.offset_ns + self.drift_frac * (np.asarray(times_ns, np.float64) - self.middle_ns)
        return np.asarray(times_ns, np.int64) + np.rint(shift).astype(np.int64)


UNALIGNED = RankClock(offset_ns=None)
_REFERENCE = RankClock(offset_ns=0.0, error_ns=0.0)


@dataclass(frozen=True, eq=False)
class ClockAlignment:
    """The clocks of the ranks of a job, in the order of its runs."""

    clocks: tuple[RankClock, ...]

    @property
    def error_ns(self) -> float | None:
        """The largest error of an aligned rank; None unless all ranks are aligned."""
        errors = [clock.error_ns for clock in self.clocks]
        return None if None in errors else max(error for error in errors if error is not None)


def align_clocks(runs: Sequence[Run]) -> ClockAlignment | None:
    """Align the clocks of these ranks to the first one; None if their collectives cannot be matched."""
    matched = match_collectives(runs)
    return None if matched is None else clock_alignment(matched)


def clock_alignment(matched: MatchedCollectives) -> ClockAlignment:
    """Align the clocks of the ranks of these collectives; a rank that shares too few of them is not aligned.

    Each rank is aligned with the already aligned rank with which it shares most collectives.
    """
    ends = matched.start_ns + matched.dur_ns
    shared = matched.member.T.astype(np.int64) @ matched.member.astype(np.int64)
    clocks: list[RankClock] = [_REFERENCE] + [UNALIGNED] * (len(matched.ranks) - 1)
    aligned, waiting = [0], list(range(1, len(clocks)))
    while waiting:
        counts = shared[np.ix_(waiting, aligned)]
        position, partner = np.unravel_index(int(counts.argmax()), counts.shape)
        if counts[position, partner] < MIN_MATCHES:
            break
        index, through = waiting.pop(int(position)), aligned[int(partner)]
        both = matched.member[:, index] & matched.member[:, through]
        clocks[index] = _fit(ends[both, index], ends[both, through], clocks[through], through)
        aligned.append(index)
    return ClockAlignment(tuple(clocks))


def _fit(ends_ns: Ints, partner_ends_ns: Ints, partner: RankClock, through: int) -> RankClock:
    """Return the clock that makes these ends equal to the partner's, which are aligned already."""
    difference = (partner.aligned_ns(partner_ends_ns) - ends_ns).astype(np.float64)
    at = ends_ns.astype(np.float64)
    middle = float(np.median(at))
    drift = _drift(at - middle, difference)
    offset = float(np.median(difference - drift * (at - middle)))
    residual = np.abs(difference - offset - drift * (at - middle))
    return RankClock(
        offset_ns=offset,
        drift_frac=drift,
        middle_ns=middle,
        error_ns=float(np.percentile(residual, _ERROR_PERCENTILE)) + (partner.error_ns or 0.0),
        matches=len(ends_ns),
        through=through,
    )


def _drift(at_ns: Floats, difference_ns: Floats) -> float:
    """Return the growth of the difference: the median slope between two points; 0 if jitter explains it."""
    if len(at_ns) < _MIN_DRIFT_MATCHES:
        return 0.0
    chosen = np.linspace(0, len(at_ns) - 1, min(len(at_ns), _MAX_SLOPE_POINTS)).astype(np.int64)
    order = chosen[np.argsort(at_ns[chosen], kind="stable")]
    left, right = np.triu_indices(len(order), 1)
    distance = at_ns[order][right] - at_ns[order][left]
    far = distance > np.ptp(at_ns) / 4  # near points only add jitter
    if not far.any():
        return 0.0
    slope = float(np.median((difference_ns[order][right] - difference_ns[order][left])[far] / distance[far]))
    centred = difference_ns - slope * at_ns
    jitter = float(np.median(np.abs(centred - np.median(centred))))
    # Over the length of a recording with n jittered points, a fitted line is uncertain by deviation * sqrt(12 / n).
    uncertain_ns = _DEVIATION_PER_MEDIAN * jitter * np.sqrt(12 / len(at_ns))
    moved_ns = abs(slope) * float(np.ptp(at_ns))
    return slope if moved_ns > max(_DEVIATIONS * uncertain_ns, 1.0) else 0.0
