"""Who wants the cores: how many threads there are to run, and how often one had to give its core away."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.workers import crew
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.rows import Rows
from gpulab.run import Run

_LEAST_S = 0.3  # of samples; over less, a rate says little
_QUARTERS = 4
IDLE_THREADS = 3  # of a worker that computes on one thread: itself, its queue's feeder, and one that watches


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Threads against cores while the loop ran; None: not told."""

    cores: float  # that this process may use
    threads: int | None  # that PyTorch computes on in the main process
    worker_threads: int | None  # that one worker can compute on
    preempted_per_cpu_s: float | None  # how often the main process's threads lost their core, per second they ran
    throttled_frac: float | None  # time held back by the quota, all cores together, over the time
    cores_frac: float | None  # load of all cores, by whatever ran on them
    iowait_cores: float | None  # so many cores were idle with a read outstanding
    read_bytes_per_s: float | None  # that the main process read from storage, throughout


def contention(run: Run, steps: Steps, ledger: Ledger) -> Contention | None:
    """How crowded the cores were in the loop; None where their number is not known or the host was not sampled."""
    samples = in_the_loop(run, steps)
    cores = run.machine.cores_allowed
    if cores is None or len(samples) < 2:
        return None
    told = run.facts.get("threads", "")
    workers = crew(run, steps, ledger)
    loads, waits = samples["cpu_frac"], samples["iowait_frac"]
    return Contention(
        cores=cores,
        threads=int(told) if told.isdigit() else None,
        worker_threads=max(1, workers.threads - IDLE_THREADS + 1) if workers and workers.threads else None,
        preempted_per_cpu_s=_per(rate(samples, "preempted"), rate(samples, "process_cpu_s")),
        throttled_frac=rate(samples, "throttled_s"),
        cores_frac=None if np.isnan(loads).all() else float(np.nanmedian(loads)),
        iowait_cores=None if np.isnan(waits).all() else float(np.nanmean(waits)) * (run.machine.cores or cores),
        read_bytes_per_s=steady_rate(samples, "read_bytes"),
    )


def in_the_loop(run: Run, steps: Steps) -> Rows:
    """The host's samples from the first step on to the last."""
    if not len(steps):
        return run.host_rows
    at = run.host_rows["at_ns"]
    return run.host_rows.where((at >= steps.start_ns[0]) & (at <= steps.end_ns[-1]))


def rate(samples: Rows, column: str) -> float | None:
    """By how much a counter grew per second, from its first sample to its last; None where too little was told."""
    told = np.flatnonzero(~np.isnan(samples[column]))
    if len(told) < 2:
        return None
    seconds = (samples["at_ns"][told[-1]] - samples["at_ns"][told[0]]) / 1e9
    grown = float(samples[column][told[-1]] - samples[column][told[0]])
    return grown / seconds if seconds >= _LEAST_S else None


def steady_rate(samples: Rows, column: str) -> float | None:
    """As `rate`, but the median of the loop's quarters: what grows once, as when a library is loaded, is no rate."""
    if rate(samples, column) is None:
        return None
    told = ~np.isnan(samples[column])
    at, value = samples["at_ns"][told], samples[column][told]
    edges = np.linspace(at[0], at[-1], _QUARTERS + 1)
    return float(np.median(np.diff(np.interp(edges, at, value)) / np.diff(edges))) * 1e9


def _per(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
