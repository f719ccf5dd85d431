"""Batch times of a DataLoader: request, arrival and end of use of each batch; load of the workers over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.data.loader import loader_events, training_loader
from gpulab.intervals import Ints
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BatchTimes:
    """Times of each batch: requested, received, and done, which is the next request; -1: unknown."""

    requested_ns: Ints
    received_ns: Ints
    done_ns: Ints
    setup: Loader | None

    def __len__(self) -> int:
        return len(self.requested_ns)

    @property
    def wait_ns(self) -> Ints:
        """How long the loop waited for each batch."""
        return self.received_ns - self.requested_ns

    @property
    def use_ns(self) -> Ints:
        """How long the loop used each batch; -1: unknown."""
        return np.where(self.done_ns >= 0, self.done_ns - self.received_ns, -1)

    @property
    def wait_frac(self) -> float:
        """Fraction of time that the loop waited, over the batches with a has_use wait and use."""
        has_use = self.done_ns >= 0 if (self.done_ns >= 0).any() else np.ones(len(self), bool)
        wait_ns, kept_ns = self.wait_ns[has_use].sum(), np.maximum(self.use_ns[has_use], 0).sum()
        return float(wait_ns / max(1, wait_ns + kept_ns))


@dataclass(frozen=True, eq=False)
class WorkerSamples:
    """One worker between samples: the load in each interval, and whether it waited for storage at the end of it."""

    number: int
    at_ns: Ints  # one more than there are intervals
    load: Floats  # cores used; NaN: unknown
    blocked: Floats  # 1 or 0; NaN: unknown

    @property
    def load_frac(self) -> float | None:
        """Mean load; None if unknown."""
        return mean_load([self])

    @property
    def blocked_frac(self) -> float | None:
        """Fraction of samples in which the worker waited for storage; None if unknown."""
        valid = self.blocked[~np.isnan(self.blocked)]
        return float(valid.mean()) if len(valid) else None


def find_batch_times(run: Run) -> BatchTimes | None:
    """Return the batches of the loader with most batches, from marks or else from the trace; None if there are none."""
    setup = training_loader(run)
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if setup is not None and len(calls):
        calls = calls.select(calls["loader"] == run.loaders.index(setup))
        requested, received, yielded = calls["start_ns"], calls["end_ns"], calls["yielded"]
    else:
        traced = loader_events(run)
        order = np.argsort(traced["start_ns"], kind="stable")
        requested = traced["start_ns"][order]
        received, yielded = requested + traced["dur_ns"][order], np.ones(len(order), bool)
    if not yielded.any():
        return None
    done = np.append(requested[1:], -1)
    return BatchTimes(requested[yielded], received[yielded], done[yielded], setup)


def worker_samples(run: Run) -> Iterator[WorkerSamples]:
    """Yield each worker with at least two samples, in the order of their numbers."""
    rows = run.worker_rows
    for number in np.unique(rows["worker"]).tolist():
        samples = rows.select(rows["worker"] == number)
        samples = samples.select(np.argsort(samples["at_ns"], kind="stable"))
        at_ns = samples["at_ns"]
        if len(at_ns) < 2 or at_ns[-1] == at_ns[0]:
            continue
        load = np.diff(samples["cpu_s"]) / np.maximum(np.diff(at_ns) / 1e9, 1e-9)
        yield WorkerSamples(number, at_ns, load, samples["blocked"][1:])


def mean_load(workers: Sequence[WorkerSamples]) -> float | None:
    """Return CPU time of all workers divided by the time they were sampled; None if unknown."""
    cpu_ns = sampled_ns = 0.0
    for worker in workers:
        valid = ~np.isnan(worker.load)
        span = np.diff(worker.at_ns)[valid]
        cpu_ns, sampled_ns = cpu_ns + float((worker.load[valid] * span).sum()), sampled_ns + float(span.sum())
    return cpu_ns / sampled_ns if sampled_ns else None
