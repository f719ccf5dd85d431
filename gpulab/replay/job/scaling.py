"""Arrivals and transfers on another number of ranks: the alpha-beta model of rings, and the last of more ranks."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats
from gpulab.replay.job.job_graph import JobGraph
from gpulab.replay.job.joint_sweep import JobSchedule

ROUNDS = {"all-reduce": 2}  # passes around the ring: reduce-scatter and all-gather; all other kinds: one


def ring_transfer_ns(transfer_ns: Floats, kind: Ints, ranks: Ints, *, to_ranks: int, latency_ns: float) -> Floats:
    """Return the duration of collectives on another number of ranks, by the alpha-beta model of a ring.

    A ring of n ranks takes p(n-1) messages of 1/n of the data, p being 2 for all-reduce and 1 for other kinds:
    T(n) = p(n-1) * latency + p(n-1)/n * bytes/bandwidth. The recorded duration gives bytes/bandwidth. Source: Thakur,
    Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH" (2005), section 4.
    """
    passes = np.array([ROUNDS.get(name, 1) for name in KINDS], float)[kind]
    now, then = np.maximum(ranks, 2).astype(float), float(max(2, to_ranks))
    latency = np.minimum(latency_ns, transfer_ns / (passes * (now - 1)))  # no message is slower than the whole
    data_ns = (transfer_ns - passes * (now - 1) * latency) * now / (passes * (now - 1))
    return np.asarray(passes * (then - 1) * latency + passes * (then - 1) / then * data_ns, np.float64)


def later_last_arrival_ns(schedule: JobSchedule, to_ranks: int) -> tuple[float, float]:
    """Return how much later the last of `to_ranks` ranks arrives per step than the last one now: least, most.

    Every rank is taken to be like the recorded ones. The least drawn from their recorded arrivals alone; the most with
    a normal distribution of the same spread, which has no end.
    """
    first = schedule.job.joint.first_of_steps()
    arrivals = schedule.arrival_ns[first]
    deviations = np.sort((arrivals - np.nanmean(arrivals, axis=1, keepdims=True))[~np.isnan(arrivals)])
    if not len(deviations):
        return 0.0, 0.0
    now = len(schedule.job.graphs)
    least = _expected_maximum(deviations, to_ranks) - _expected_maximum(deviations, now)
    spread = float(deviations.std())
    most = spread * (np.sqrt(2 * np.log(to_ranks)) - np.sqrt(2 * np.log(now)))
    least = max(0.0, least)
    return least, max(least, float(most))


def _expected_maximum(ordered: Floats, count: int) -> float:
    """Return the expected maximum of this many draws, with replacement, of an ordered sample."""
    position = np.arange(len(ordered) + 1) / len(ordered)
    return float((ordered * np.diff(position**count)).sum())


def with_later_start(job: JobGraph, later_ns: float) -> JobGraph:
    """Return the job where the first collective of each step takes this much longer."""
    transfer_ns = job.joint.transfer_ns.copy()
    transfer_ns[job.joint.first_of_steps()] += later_ns
    return job.with_joint(transfer_ns=transfer_ns)
