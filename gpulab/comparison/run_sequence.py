"""Compare three and more runs: the effect of each change, and of all changes together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpulab.comparison.compared_prediction import first_finding_prediction
from gpulab.comparison.comparison import Comparison, compare_sides
from gpulab.comparison.displayed import Displayed
from gpulab.comparison.ledger_changes import PartChange
from gpulab.comparison.sides import Basis, ComparedSide, choose_basis


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Story(Displayed):
    """Sides in the given order, each compared with its predecessor and with the first."""

    sides: tuple[ComparedSide, ...]
    step_ns: tuple[int, ...]  # typical step time of each side
    changes: tuple[Comparison, ...]  # each side but the first, compared with its predecessor
    totals: tuple[Comparison, ...]  # each side but the first, compared with the first

    @property
    def overall(self) -> Comparison:
        """The last side compared with the first."""
        return self.totals[-1]

    def shortened_parts(self, change: int) -> tuple[PartChange, ...]:
        """Return the parts of the ledger that this change made shorter, largest reduction first."""
        shorter = [part for part in self.changes[change].parts if part.difference_ns < 0]
        return tuple(sorted(shorter, key=lambda part: part.difference_ns))


def compare_in_order(sides: Sequence[ComparedSide]) -> Story:
    """Compare several sides in order, all by the same kind of steps."""
    first_findings = [side.typical.first for side in sides[:-1]]
    averaged = any(first is not None and first.gain is not None and first.gain.is_mean for first in first_findings)
    upon = choose_basis(sides, averaged=averaged)
    changes = tuple(_compare(one, other, upon) for one, other in pairwise(sides))
    totals = (changes[0], *(_compare(sides[0], other, upon) for other in sides[2:]))
    return Story(
        sides=tuple(sides),
        step_ns=tuple(side.step_ns(upon) for side in sides),
        changes=changes,
        totals=totals,
    )


def _compare(before: ComparedSide, after: ComparedSide, basis: Basis) -> Comparison:
    return compare_sides(before, after, first_finding_prediction(before), basis)
