"""What feeding the model costs: how long a batch takes, whether that is CPU time or waiting, and who makes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import Kind, MarkKind


@dataclass(frozen=True, kw_only=True)
class Feeding:
    """How batches reach the model, per step, un-profiled where that was measured. None: not measured."""

    workers: int | None  # 0: the main process builds the batches; None: some, the number is not known
    setup: Loader | None
    step_ns: int  # the whole step
    fetch_ns: int  # the main thread inside DataLoader.__next__
    traced_fetch_ns: int  # the same in the recorded steps
    exposed_ns: int  # the part of it with the device idle
    fetch_cpu_ns: int | None = None  # CPU time the main thread spent in it
    rest_cpu_ns: int | None = None  # CPU time of the whole process in the rest of the step, all threads
    least_rest_ns: int | None = None  # the rest of the step in the fastest twentieth of them
    worker_cpu_ns: int | None = None  # CPU time all workers spent per batch
    blocked_frac: float | None = None  # share of worker samples that were waiting for storage
    cores_frac: float | None = None  # load of all cores while workers ran, by whatever ran on them

    @property
    def rest_ns(self) -> int:
        """The step without its exposed wait for data: what remains if data were free."""
        return max(1, self.step_ns - self.exposed_ns)

    @property
    def cpu_frac(self) -> float | None:
        """Share of the fetch that was CPU work of the main thread; the rest it waited. None: not measured."""
        if self.fetch_cpu_ns is None or not self.fetch_ns:
            return None
        return min(1.0, self.fetch_cpu_ns / self.fetch_ns)


def feeding(run: Run, steps: Steps, ledger: Ledger) -> Feeding | None:
    """What feeding cost in the steps that are evidence; None where no DataLoader was used."""
    setup = leading_loader(run)
    if setup is None or steps.step_ns is None:
        return None
    scale = steps.step_ns / (steps.traced_ns or steps.step_ns)
    traced_fetch_ns = fetch_ns = _fetch_in_events(run, steps)
    exposed_ns = ledger.median_ns("loader")
    told: dict[str, int | None] = {}
    if len(run.mark_rows):
        told = _by_marks(run, steps)
        fetch_ns = told.pop("fetch_ns") or fetch_ns
        if ledger.device == "gpu":
            told.pop("least_rest_ns", None)  # the host may run ahead of the GPU: its rest is no bound
    measured = ledger.device == "cpu" and len(run.mark_rows)
    # Where the CPU is the device it computes nothing while the main thread fetches: all of that is exposed.
    exposed_ns = fetch_ns if measured else round(exposed_ns * scale)
    return Feeding(
        workers=setup.workers,
        setup=setup,
        step_ns=steps.step_ns,
        fetch_ns=fetch_ns,
        traced_fetch_ns=traced_fetch_ns,
        exposed_ns=min(exposed_ns, steps.step_ns),
        worker_cpu_ns=_worker_cpu_per_batch(run),
        blocked_frac=_blocked_frac(run),
        cores_frac=_cores_frac(run),
        **told,
    )


def leading_loader(run: Run) -> Loader | None:
    """The DataLoader that gave most batches; None where there was none."""
    if not run.loaders:
        return None
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls):
        return run.loaders[0]
    batches = np.bincount(calls["loader"][calls["yielded"]], minlength=1)
    return run.loaders[int(batches.argmax())]


def loader_events(run: Run) -> Rows:
    """DataLoader.__next__ as the trace shows it."""
    return run.event_rows.of_kind(Kind.LOADER)


def _fetch_in_events(run: Run, steps: Steps) -> int:
    """Median time per interior step inside the traced __next__."""
    calls = loader_events(run)
    order = np.argsort(calls["start_ns"], kind="stable")
    start, dur = calls["start_ns"][order], calls["dur_ns"][order]
    first = np.searchsorted(start, steps.start_ns[steps.interior])
    last = np.searchsorted(start, steps.end_ns[steps.interior])
    return typical_ns(_between(dur, first, last), steps.burst) if len(first) else 0


def _by_marks(run: Run, steps: Steps) -> dict[str, int | None]:
    """Fetch time, its CPU time, and what the rest of the step costs, as medians over the best steps there are.

    All fetches of a step count: a loop may draw from several loaders.
    """
    use = steps.plain if steps.plain_ns is not None else steps.interior
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    first = np.searchsorted(calls["start_ns"], steps.start_ns[use])
    last = np.searchsorted(calls["start_ns"], steps.end_ns[use])
    fetched = last > first
    if not fetched.any():
        return {"fetch_ns": None}
    first, last = first[fetched], last[fetched]
    fetch_ns = _between(calls["end_ns"] - calls["start_ns"], first, last)
    return {
        "fetch_ns": typical_ns(fetch_ns, steps.burst),
        "fetch_cpu_ns": typical_ns(_between(calls["thread_cpu_ns"], first, last), steps.burst),
        "rest_cpu_ns": _rest_cpu(calls, first, last, steps.burst),
        # After a long wait the first operators find cold caches and sleeping threads; fed without pause the model
        # warms, so a bound rests on the fastest twentieth.
        "least_rest_ns": int(np.percentile(steps.dur_ns[use][fetched] - fetch_ns, 5)),
    }


def _rest_cpu(calls: Rows, first: Ints, last: Ints, burst: int) -> int | None:
    """CPU time of the process from one step's first fetch to the next one's, less what was used during fetches.

    What other threads use during a fetch is left out: idle OpenMP threads spin there, and stop when cores are wanted.
    """
    followed = last < len(calls)
    if not followed.any():
        return None
    first, last = first[followed], last[followed]
    whole = calls["process_cpu_ns"][last] - calls["process_cpu_ns"][first]
    within = _between(calls["process_cpu_end_ns"] - calls["process_cpu_ns"], first, last)
    return typical_ns(whole - within, burst)


def _between(values: Ints, first: Ints, last: Ints) -> Ints:
    """The sums of `values[first:last]`, one for each pair."""
    done = np.append(np.int64(0), np.cumsum(values))
    return done[last] - done[first]


def _worker_cpu_per_batch(run: Run) -> int | None:
    """CPU time of all workers between the first and the last sample, over the batches given in that time."""
    samples = run.host_rows.where(run.host_rows["workers"] > 0)
    used = samples["worker_cpu_s"]
    known = np.flatnonzero(~np.isnan(used))
    if len(known) < 3:
        return None
    first, last = known[0], known[-1]
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    begun, ended = samples["at_ns"][first], samples["at_ns"][last]
    batches = int(((calls["end_ns"] > begun) & (calls["end_ns"] <= ended) & calls["yielded"]).sum())
    if batches < 2 or used[last] <= used[first]:
        return None
    return int((used[last] - used[first]) * 1e9 / batches)


def _blocked_frac(run: Run) -> float | None:
    """How many of the workers, on average, were waiting for storage when asked."""
    samples = run.host_rows
    told = (samples["workers"] > 0) & ~np.isnan(samples["workers_blocked"])
    if not told.any():
        return None
    return float((samples["workers_blocked"][told] / samples["workers"][told]).mean())


def _cores_frac(run: Run) -> float | None:
    """How busy all cores were, in the median of the samples taken while workers ran."""
    samples = run.host_rows
    told = samples["cpu_frac"][(samples["workers"] > 0) & ~np.isnan(samples["cpu_frac"])]
    return float(np.median(told)) if len(told) else None
