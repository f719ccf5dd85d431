"""Cost of data loading: time per batch, CPU time or waiting, main process or workers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.training_loader import training_loader_index
from gpulab.analysis.events.named_phases import loop_marks
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import EventKind, MarkKind


@dataclass(frozen=True, kw_only=True)
class LoadingCost:
    """Data loading per step, unprofiled if measured. None: not measured."""

    workers: int | None  # 0: the main process loads the data; None: there are workers, their number is unknown
    loader: Loader | None
    step_ns: int  # step time
    fetch_ns: int  # time of the main thread inside DataLoader.__next__, for all batches of a step
    batches: int = 1  # per step: several if gradients are accumulated
    traced_fetch_ns: int  # the same in the recorded steps
    exposed_ns: int  # part of fetch_ns with the device idle
    quick_fetch_ns: int | None = None  # lower quartile of fetch_ns: batches that are ready take about that long
    fetch_cpu_ns: int | None = None  # CPU time of the main thread inside DataLoader.__next__
    rest_cpu_ns: int | None = None  # CPU time of the whole process in the rest of the step, all threads
    min_rest_ns: int | None = None  # 5 % quantile of the rest of the step
    worker_cpu_ns: int | None = None  # CPU time of all workers per step
    blocked_frac: float | None = None  # share of worker samples blocked on storage
    cores_frac: float | None = None  # load of all cores while workers ran, all programs

    @property
    def rest_ns(self) -> int:
        """Step time without the exposed wait for data."""
        return max(1, self.step_ns - self.exposed_ns)

    @property
    def cpu_frac(self) -> float | None:
        """Share of the fetch time that is CPU time of the main thread; the rest is waiting. None: not measured."""
        if self.fetch_cpu_ns is None or not self.fetch_ns:
            return None
        return min(1.0, self.fetch_cpu_ns / self.fetch_ns)


def loading_cost(run: Run, steps: Steps, ledger: Ledger) -> LoadingCost | None:
    """Compute the cost of data loading per step; None without a DataLoader or without a step time."""
    setup = training_loader(run)
    if setup is None or not steps.step_ns:  # the steps of a damaged recording may be empty
        return None
    scale = steps.step_ns / (steps.traced_ns or steps.step_ns)
    traced_fetch_ns = fetch_ns = _fetch_in_events(run, steps)
    exposed_ns = ledger.median_ns("loader")
    by_marks: dict[str, int | None] = {}
    if len(run.mark_rows):
        by_marks = _by_marks(run, steps)
        fetch_ns = by_marks.pop("fetch_ns") or fetch_ns
        if ledger.device == "gpu":
            by_marks.pop("min_rest_ns", None)  # the host may run ahead of the GPU, so its rest of the step is no bound
    batches, batch_cpu_ns = batches_per_step(run, steps), _worker_cpu_per_batch(run)
    measured = ledger.device == "cpu" and len(run.mark_rows)
    # If the CPU is the device, it computes nothing while the main thread fetches: all fetch time is exposed.
    exposed_ns = fetch_ns if measured else round(exposed_ns * scale)
    return LoadingCost(
        workers=setup.workers,
        loader=setup,
        step_ns=steps.step_ns,
        fetch_ns=fetch_ns,
        traced_fetch_ns=traced_fetch_ns,
        exposed_ns=min(exposed_ns, steps.step_ns),
        batches=batches,
        worker_cpu_ns=None if batch_cpu_ns is None else batch_cpu_ns * batches,
        blocked_frac=_blocked_frac(run),
        cores_frac=_cores_frac(run),
        **by_marks,
    )


def training_loader(run: Run) -> Loader | None:
    """Return the DataLoader of the training loop; None if there is none."""
    if not run.loaders:
        return None
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls):
        return run.loaders[0]
    return run.loaders[max(0, training_loader_index(loop_marks(run)))]


def loader_events(run: Run) -> Rows:
    """Return the DataLoader.__next__ events of the trace."""
    return run.event_rows.of_kind(EventKind.LOADER)


def _fetch_in_events(run: Run, steps: Steps) -> int:
    """Return the median time per interior step inside traced __next__ calls."""
    calls = loader_events(run)
    order = np.argsort(calls["start_ns"], kind="stable")
    start, dur = calls["start_ns"][order], calls["dur_ns"][order]
    first = np.searchsorted(start, steps.start_ns[steps.interior])
    last = np.searchsorted(start, steps.end_ns[steps.interior])
    return typical_ns(_range_sums(dur, first, last), steps.burst) if len(first) else 0


def _by_marks(run: Run, steps: Steps) -> dict[str, int | None]:
    """Return fetch time, its CPU time and the rest of the step, as medians over plain steps, else interior steps.

    All fetches of a step count, as a loop may use several loaders.
    """
    used_steps = steps.unprofiled if steps.unprofiled_ns is not None else steps.interior
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    first = np.searchsorted(calls["start_ns"], steps.start_ns[used_steps])
    last = np.searchsorted(calls["start_ns"], steps.end_ns[used_steps])
    fetched = last > first
    if not fetched.any():
        return {"fetch_ns": None}
    first, last = first[fetched], last[fetched]
    fetch_ns = _range_sums(calls["end_ns"] - calls["start_ns"], first, last)
    return {
        "fetch_ns": typical_ns(fetch_ns, steps.burst),
        "quick_fetch_ns": int(np.percentile(fetch_ns, 25)),
        "fetch_cpu_ns": typical_ns(_range_sums(calls["thread_cpu_ns"], first, last), steps.burst),
        "rest_cpu_ns": _rest_cpu(calls, first, last, steps.burst),
        # After a long wait the first operators run with cold caches and sleeping threads. Without waits the model runs
        # faster, so the lower bound uses the 5 % quantile.
        "min_rest_ns": int(np.percentile(steps.dur_ns[used_steps][fetched] - fetch_ns, 5)),
    }


def batches_per_step(run: Run, steps: Steps) -> int:
    """Return the median number of batches in a step: several if gradients are accumulated."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    start_ns = calls["start_ns"][calls["yielded"] & (calls["loader"] == training_loader_index(loop_marks(run)))]
    counts = np.searchsorted(start_ns, steps.end_ns) - np.searchsorted(start_ns, steps.start_ns)
    return max(1, int(np.median(counts[counts > 0]))) if (counts > 0).any() else 1


def _rest_cpu(calls: Rows, first: Ints, last: Ints, burst: int) -> int | None:
    """Return the CPU time of the process between first fetches of successive steps, without the fetches themselves.

    CPU time of other threads during a fetch is excluded: idle OpenMP threads spin, and stop when cores are needed.
    """
    followed = last < len(calls)
    if not followed.any():
        return None
    first, last = first[followed], last[followed]
    total_ns = calls["process_cpu_ns"][last] - calls["process_cpu_ns"][first]
    fetch_ns = _range_sums(calls["process_cpu_end_ns"] - calls["process_cpu_ns"], first, last)
    return typical_ns(total_ns - fetch_ns, burst)


def _range_sums(values: Ints, first: Ints, last: Ints) -> Ints:
    """Return the sum of `values[first:last]` for each pair."""
    cumulative = np.append(np.int64(0), np.cumsum(values))
    return cumulative[last] - cumulative[first]


def _worker_cpu_per_batch(run: Run) -> int | None:
    """Return the CPU time of all workers per batch, between the first and the last sample."""
    samples = run.host_rows.select(run.host_rows["workers"] > 0)
    cpu_s = samples["worker_cpu_s"]
    known_rows = np.flatnonzero(~np.isnan(cpu_s))
    if len(known_rows) < 3:
        return None
    first, last = known_rows[0], known_rows[-1]
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    start_ns, end_ns = samples["at_ns"][first], samples["at_ns"][last]
    batches = int(((calls["end_ns"] > start_ns) & (calls["end_ns"] <= end_ns) & calls["yielded"]).sum())
    if batches < 2 or cpu_s[last] <= cpu_s[first]:
        return None
    return int((cpu_s[last] - cpu_s[first]) * 1e9 / batches)


def _blocked_frac(run: Run) -> float | None:
    """Return the mean share of workers that were blocked on storage when sampled."""
    samples = run.host_rows
    is_known = (samples["workers"] > 0) & ~np.isnan(samples["workers_blocked"])
    if not is_known.any():
        return None
    return float((samples["workers_blocked"][is_known] / samples["workers"][is_known]).mean())


def _cores_frac(run: Run) -> float | None:
    """Return the median load of all cores in samples with workers running."""
    samples = run.host_rows
    load = samples["cpu_frac"][(samples["workers"] > 0) & ~np.isnan(samples["cpu_frac"])]
    return float(np.median(load)) if len(load) else None
