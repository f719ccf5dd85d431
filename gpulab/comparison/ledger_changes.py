"""Ledgers of two sides, part by part, in whole nanoseconds that sum exactly to the step times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpulab.analysis.steps.ledger import Ledger


class PartChange(NamedTuple):
    """One part of a mean recorded step on both sides."""

    key: str
    label: str
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """Time after minus time before."""
        return self.after_ns - self.before_ns


def part_changes(before: Sequence[Ledger], after: Sequence[Ledger]) -> tuple[PartChange, ...]:
    """Return each part before and after: means over steps, then over runs; () if a side has no ledger.

    Each column sums to its mean step time, so the differences sum to the difference of the step times.
    """
    if not before or not after:
        return ()
    labels = {part.key: part.label for ledger in (*before, *after) for part in ledger.parts}
    before_means, after_means = (_means(side, list(labels)) for side in (before, after))
    return tuple(PartChange(key, label, before_means[key], after_means[key]) for key, label in labels.items())


def mean_step_ns(ledgers: Sequence[Ledger]) -> int:
    """Return the mean recorded step time: over the steps of each run, then over the runs."""
    return round(float(np.mean([ledger.step_ns.mean() for ledger in ledgers])))


def _means(ledgers: Sequence[Ledger], keys: list[str]) -> dict[str, int]:
    """Return the mean of each part, rounded so that they sum to the rounded step: largest remainders are rounded up."""
    exact = np.array([np.mean([ledger.sum_ns(key).mean() for ledger in ledgers]) for key in keys])
    rounded = np.floor(exact).astype(np.int64)
    missing = mean_step_ns(ledgers) - int(rounded.sum())
    order = np.argsort(rounded - exact, kind="stable")
    rounded[order[: max(0, missing)]] += 1
    return dict(zip(keys, rounded.tolist(), strict=True))
