"""An optimisation told step by step: three or more runs, what each change gave, and what all of them gave together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpulab.comparison.comparison import Comparison, paired
from gpulab.comparison.ledger_changes import Moved
from gpulab.comparison.sides import Side, basis


@dataclass(frozen=True, kw_only=True, eq=False)
class Story:
    """Sides in the order in which they were given, each compared with the one before it and with the first."""

    sides: tuple[Side, ...]
    step_ns: tuple[int, ...]  # typical step of each side; the differences sum to that of the last from the first
    changes: tuple[Comparison, ...]  # each side but the first, against the one before it
    totals: tuple[Comparison, ...]  # each side but the first, against the first

    @property
    def whole(self) -> Comparison:
        """The last against the first."""
        return self.totals[-1]

    def shrunk(self, change: int) -> tuple[Moved, ...]:
        """The parts of the ledger that this change made shorter, most first."""
        less = [part for part in self.changes[change].parts if part.difference_ns < 0]
        return tuple(sorted(less, key=lambda part: part.difference_ns))


def story(sides: Sequence[Side]) -> Story:
    """What each of several changes gave, one after the other; all by the same steps."""
    firsts = [side.typical.first for side in sides[:-1]]
    averaged = any(first is not None and first.gain is not None and first.gain.averaged for first in firsts)
    upon = basis(sides, averaged=averaged)
    changes = tuple(paired(one, other, upon=upon) for one, other in pairwise(sides))
    totals = (changes[0], *(paired(sides[0], other, upon=upon) for other in sides[2:]))
    return Story(
        sides=tuple(sides),
        step_ns=tuple(side.step_ns(upon) for side in sides),
        changes=changes,
        totals=totals,
    )
