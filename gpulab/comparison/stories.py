"""Compare three and more runs: the effect of each change, and of all changes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpulab.comparison.comparison import Comparison, paired
from gpulab.comparison.ledger_changes import Moved
from gpulab.comparison.sides import Side, basis


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """Sides in the given order, each compared with its predecessor and with the first."""

    sides: tuple[Side, ...]
    step_ns: tuple[int, ...]  # typical step time of each side
    changes: tuple[Comparison, ...]  # each side but the first, compared with its predecessor
    totals: tuple[Comparison, ...]  # each side but the first, compared with the first

    @property
    def whole(self) -> Comparison:
        """The last side compared with the first."""
        return self.totals[-1]

    def shrunk(self, change: int) -> tuple[Moved, ...]:
        """Return the parts of the ledger that this change made shorter, largest reduction first."""
        shorter = [part for part in self.changes[change].parts if part.difference_ns < 0]
        return tuple(sorted(shorter, key=lambda part: part.difference_ns))


def story(sides: Sequence[Side]) -> Story:
    """Compare several sides in order, all by the same kind of steps."""
    first_findings = [side.typical.first for side in sides[:-1]]
    averaged = any(first is not None and first.gain is not None and first.gain.averaged for first in first_findings)
    upon = basis(sides, averaged=averaged)
    changes = tuple(paired(one, other, upon=upon) for one, other in pairwise(sides))
    totals = (changes[0], *(paired(sides[0], other, upon=upon) for other in sides[2:]))
    return Story(
        sides=tuple(sides),
        step_ns=tuple(side.step_ns(upon) for side in sides),
        changes=changes,
        totals=totals,
    )
