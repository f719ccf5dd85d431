"""CPU contention: threads per core, preemptions, throttling and load while the loop ran."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.workers import worker_activity
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.run_facts import BLAS_CORES, BLAS_SPIN_TIME, BLAS_THREADS, count_from_fact, number_from_fact

_LEAST_S = 0.3  # minimum time between samples for a rate
_QUARTERS = 4
IDLE_THREADS = 3  # threads of a worker that computes on one thread: main thread, queue feeder, watchdog


@dataclass(frozen=True, kw_only=True)
class Contention:
    """Threads and cores while the loop ran. None: unknown."""

    cores: float  # cores that this process may use
    threads: int | None  # intra-op threads of PyTorch in the main process
    worker_threads: int | None  # threads on which one worker can compute
    preempted_per_cpu_s: float | None  # preemptions of threads of the main process per second of CPU time
    main_delayed_frac: float | None  # time in which the main thread was ready to run, but had no core
    throttled_frac: float | None  # time throttled by the CPU quota, as a share of the time
    cores_frac: float | None  # load of all cores, all programs
    iowait_cores: float | None  # cores idle with I/O outstanding
    read_bytes_per_s: float | None  # read rate of the main process from storage, sustained


def contention(run: Run, steps: Steps, ledger: Ledger) -> Contention | None:
    """Compute CPU contention in the loop; None if the number of cores is unknown or the host was not sampled."""
    samples = host_samples_in_loop(run, steps)
    cores = run.machine.cores_allowed
    if cores is None or len(samples) < 2:
        return None
    workers = worker_activity(run, steps, ledger)
    loads, waits = samples["cpu_frac"], samples["iowait_frac"]
    return Contention(
        cores=cores,
        threads=count_from_fact(run, "threads"),
        worker_threads=max(1, workers.threads - IDLE_THREADS + 1) if workers and workers.threads else None,
        preempted_per_cpu_s=_ratio(counter_rate(samples, "preempted"), counter_rate(samples, "process_cpu_s")),
        main_delayed_frac=counter_rate(samples, "main_delayed_s"),
        throttled_frac=counter_rate(samples, "throttled_s"),
        cores_frac=None if np.isnan(loads).all() else float(np.nanmedian(loads)),
        iowait_cores=None if np.isnan(waits).all() else float(np.nanmean(waits)) * (run.machine.cores or cores),
        read_bytes_per_s=sustained_counter_rate(samples, "read_bytes"),
    )


@dataclass(frozen=True, kw_only=True)
class BlasUse:
    """Threads of NumPy's BLAS beside those of PyTorch."""

    threads: int
    cores: float  # that they used together, on average over the loop
    spin_ns: int  # for which one spins after a product of matrices


def blas_use(run: Run) -> BlasUse | None:
    """Return what the threads of NumPy's BLAS used; None if none was busy, or if that was not measured."""
    threads, spin_ns = count_from_fact(run, BLAS_THREADS), count_from_fact(run, BLAS_SPIN_TIME)
    cores = number_from_fact(run, BLAS_CORES)
    if not threads or cores is None or spin_ns is None:
        return None
    return BlasUse(threads=threads, cores=min(threads, cores), spin_ns=spin_ns)


def host_samples_in_loop(run: Run, steps: Steps) -> Rows:
    """Return the host samples from the first step to the last."""
    if not len(steps):
        return run.host_rows
    at = run.host_rows["at_ns"]
    return run.host_rows.select((at >= steps.start_ns[0]) & (at <= steps.end_ns[-1]))


def counter_rate(samples: Rows, column: str) -> float | None:
    """Return the increase of a counter per second between its first and last sample; None if there are too few."""
    known_rows = np.flatnonzero(~np.isnan(samples[column]))
    if len(known_rows) < 2:
        return None
    seconds = (samples["at_ns"][known_rows[-1]] - samples["at_ns"][known_rows[0]]) / 1e9
    increase = float(samples[column][known_rows[-1]] - samples[column][known_rows[0]])
    return increase / seconds if seconds >= _LEAST_S else None


def sustained_counter_rate(samples: Rows, column: str) -> float | None:
    """Return the median rate over the quarters of the loop, which ignores a single jump such as loading a library."""
    if counter_rate(samples, column) is None:
        return None
    is_known = ~np.isnan(samples[column])
    at, value = samples["at_ns"][is_known], samples[column][is_known]
    edges = np.linspace(at[0], at[-1], _QUARTERS + 1)
    return float(np.median(np.diff(np.interp(edges, at, value)) / np.diff(edges))) * 1e9


def _ratio(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator
