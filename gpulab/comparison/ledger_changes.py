"""The compared step times of two sides by part of the ledger, in whole nanoseconds that sum exactly to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpulab.comparison.interval import Statistic
from gpulab.comparison.sides import Basis, ComparedSide
from gpulab.rules import Diagnosis


class PartChange(NamedTuple):
    """One part of the compared step times on both sides."""

    key: str
    label: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """Time after minus time before."""
        return self.after_ns - self.before_ns


def part_changes(before: ComparedSide, after: ComparedSide, basis: Basis) -> tuple[PartChange, ...]:
    """Return each part of the compared step before and after; () if a side has no ledger.

    Each column sums to the step time of its side, so the differences sum to the difference of the step times.
    """
    if not before.ledgers or not after.ledgers:
        return ()
    labels = {part.key: part.label for ledger in (*before.ledgers, *after.ledgers) for part in ledger.parts}
    columns = [_whole_parts(side, basis, list(labels)) for side in (before, after)]
    return tuple(PartChange(key, label, *(column[key] for column in columns)) for key, label in labels.items())


def _whole_parts(side: ComparedSide, basis: Basis, keys: Sequence[str]) -> dict[str, int]:
    """Return the parts of a side's step: the mean of the shares in its runs, of the step time that is compared."""
    shares = [_shares(diagnosis, basis) for diagnosis in side.runs if diagnosis.ledger is not None]
    means = [float(np.mean([share.get(key, 0.0) for share in shares])) for key in keys]
    edges = np.rint(np.cumsum([0.0, *means]) * side.step_ns(basis)).astype(np.int64)
    return dict(zip(keys, np.diff(edges).tolist(), strict=True))


def _shares(diagnosis: Diagnosis, basis: Basis) -> dict[str, float]:
    """Return the share of each part: in all recorded steps for a mean, otherwise in the typical step."""
    ledger, step = diagnosis.ledger, diagnosis.step
    assert ledger is not None
    parts: Mapping[str, float] = {key: float(values.sum()) for key, values in ledger.part_ns.items()}
    if step is not None and (step.is_mean or basis.statistic is not Statistic.MEAN):
        parts = step.traced_part_ns if basis.profiled and not step.is_mean else step.part_ns
    total_ns = max(1.0, float(sum(parts.values())))
    return {key: part_ns / total_ns for key, part_ns in parts.items()}
