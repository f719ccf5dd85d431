"""How the loop was fed: when each batch was asked for, when it came, and what the workers did meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.data.loader import leading_loader, loader_events
from gpulab.intervals import Ints
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Batches:
    """Each batch: asked for, handed over, and done with, when the next one was asked for; -1: not told."""

    asked_ns: Ints
    came_ns: Ints
    done_ns: Ints
    setup: Loader | None

    def __len__(self) -> int:
        return len(self.asked_ns)

    @property
    def wait_ns(self) -> Ints:
        """How long the loop waited for each."""
        return self.came_ns - self.asked_ns

    @property
    def kept_ns(self) -> Ints:
        """How long the loop worked on each; -1: not told."""
        return np.where(self.done_ns >= 0, self.done_ns - self.came_ns, -1)

    @property
    def waited_frac(self) -> float:
        """Share of its time in which the loop waited, over the batches of which both wait and use are told."""
        told = self.done_ns >= 0 if (self.done_ns >= 0).any() else np.ones(len(self), bool)
        wait_ns, kept_ns = self.wait_ns[told].sum(), np.maximum(self.kept_ns[told], 0).sum()
        return float(wait_ns / max(1, wait_ns + kept_ns))


@dataclass(frozen=True, eq=False)
class Watched:
    """One worker between its looks: the load in each stretch, and whether it waited for storage at its end."""

    number: int
    at_ns: Ints  # one more than there are stretches
    load: Floats  # cores it used; NaN: not told
    blocked: Floats  # 1 or 0; NaN: not told

    @property
    def load_frac(self) -> float | None:
        """Its mean load; None where it was not told."""
        return mean_load([self])

    @property
    def blocked_frac(self) -> float | None:
        """Share of the looks at which it waited for storage; None where that was not told."""
        told = self.blocked[~np.isnan(self.blocked)]
        return float(told.mean()) if len(told) else None


def batches(run: Run) -> Batches | None:
    """By the marks, of the loader that gave most; else by the calls in the trace; None where there were none."""
    setup = leading_loader(run)
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if setup is not None and len(calls):
        calls = calls.where(calls["loader"] == run.loaders.index(setup))
        asked, came, given = calls["start_ns"], calls["end_ns"], calls["yielded"]
    else:
        traced = loader_events(run)
        order = np.argsort(traced["start_ns"], kind="stable")
        asked = traced["start_ns"][order]
        came, given = asked + traced["dur_ns"][order], np.ones(len(order), bool)
    if not given.any():
        return None
    done = np.append(asked[1:], -1)
    return Batches(asked[given], came[given], done[given], setup)


def watched(run: Run) -> Iterator[Watched]:
    """Each worker that was looked at twice or more, in the order in which they were first seen."""
    rows = run.worker_rows
    for number in np.unique(rows["worker"]).tolist():
        mine = rows.where(rows["worker"] == number)
        mine = mine.where(np.argsort(mine["at_ns"], kind="stable"))
        at = mine["at_ns"]
        if len(at) < 2 or at[-1] == at[0]:
            continue
        load = np.diff(mine["cpu_s"]) / np.maximum(np.diff(at) / 1e9, 1e-9)
        yield Watched(number, at, load, mine["blocked"][1:])


def mean_load(seen: Sequence[Watched]) -> float | None:
    """CPU time of all workers over the time they were watched; None where it was not told."""
    used = lived = 0.0
    for each in seen:
        known = ~np.isnan(each.load)
        span = np.diff(each.at_ns)[known]
        used, lived = used + float((each.load[known] * span).sum()), lived + float(span.sum())
    return used / lived if lived else None
