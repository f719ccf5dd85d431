"""The ledgers of two sides, part by part, in whole nanoseconds that sum to the steps exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpulab.analysis.steps.ledger import Ledger


class Moved(NamedTuple):
    """One part of a mean recorded step on both sides."""

    key: str
    label: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """How much more of it there is after."""
        return self.after_ns - self.before_ns


def parts(before: Sequence[Ledger], after: Sequence[Ledger]) -> tuple[Moved, ...]:
    """Each part before and after, means over steps and then over runs; () where a side has no ledger.

    Each column sums to its mean step, so that the differences sum to the difference of the steps.
    """
    if not before or not after:
        return ()
    labels = {part.key: part.label for ledger in (*before, *after) for part in ledger.parts}
    one, other = (_means(side, list(labels)) for side in (before, after))
    return tuple(Moved(key, label, one[key], other[key]) for key, label in labels.items())


def mean_step_ns(ledgers: Sequence[Ledger]) -> int:
    """The mean recorded step: over the steps of each run, then over the runs."""
    return round(float(np.mean([ledger.step_ns.mean() for ledger in ledgers])))


def _means(ledgers: Sequence[Ledger], keys: list[str]) -> dict[str, int]:
    """Rounded so that they sum to the rounded step: the largest remainders are rounded up."""
    exact = np.array([np.mean([ledger.of(key).mean() for ledger in ledgers]) for key in keys])
    whole = np.floor(exact).astype(np.int64)
    short = mean_step_ns(ledgers) - int(whole.sum())
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: max(0, short)]] += 1
    return dict(zip(keys, whole.tolist(), strict=True))
