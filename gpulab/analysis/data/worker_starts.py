"""Cost of starting DataLoader workers: those of the training, and those of evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, Spans, clip, union, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

STARTING = (".DataLoader.__iter__", "DataLoaderIter.__init__")  # functions in which the main process starts workers


@dataclass(frozen=True, kw_only=True)
class WorkerStarts:
    """Cost of starting the workers of all DataLoaders, and of starting them again for later passes."""

    restarts: int  # starts after the first one of each DataLoader
    restarts_ns: int  # their cost
    starts_ns: int  # cost of all starts
    restarted: tuple[int, ...]  # the DataLoaders that start their workers again, by index
    received: int  # batches of all DataLoaders with workers
    received_ns: int  # time to receive these batches, without starts
    loop_ns: int  # from the first start to the last batch or step
    steps: int
    spans: Spans  # waits for the first batches after restarts

    @property
    def mean_restart_ns(self) -> int:
        """Mean cost of starting the workers again."""
        return self.restarts_ns // max(1, self.restarts)

    @property
    def restarts_frac(self) -> float:
        """Share of the loop that goes to starting workers again."""
        return min(1.0, self.restarts_ns / self.loop_ns)

    @property
    def step_ns(self) -> int:
        """Mean step time, with starts and evaluations."""
        return max(1, self.loop_ns // self.steps)


class _LoaderStarts(NamedTuple):
    starts: int
    cost_ns: Ints  # of each start
    batches: int
    received_ns: int
    restart_waits: Spans  # for the first batches after a restart


def worker_starts(run: Run, steps: Steps, ledger: Ledger) -> WorkerStarts | None:
    """Compute the cost of starting workers; None if there are none, or no steps.

    A start costs the time to create the processes, the wait for the first batch beyond that for a later one, and the
    time to end them. Runs of older versions do not hold the first; it comes from samples of the main thread then.
    """
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    loaders = {index: _starts_of(run, calls, index) for index, loader in enumerate(run.loaders) if loader.workers}
    loaders = {index: starts for index, starts in loaders.items() if starts.starts}
    if not loaders or not len(steps):
        return None
    restarted = tuple(
        index for index, starts in loaders.items() if starts.starts > 1 and not run.loaders[index].persistent_workers
    )
    again = [loaders[index] for index in restarted]
    sampled_ns = _sampled_starts_ns(run, int(calls["start_ns"].min()))
    all_ns = sum(int(starts.cost_ns.sum()) for starts in loaders.values()) + sampled_ns
    return WorkerStarts(
        restarts=sum(starts.starts - 1 for starts in again),
        restarts_ns=sum(int(starts.cost_ns[1:].sum()) for starts in again) + (sampled_ns if again else 0),
        starts_ns=all_ns,
        restarted=restarted,
        received=sum(starts.batches for starts in loaders.values()),
        received_ns=sum(starts.received_ns for starts in loaders.values()),
        loop_ns=loop_with_starts_ns(run, steps),
        steps=len(steps),
        spans=union_of(*(starts.restart_waits for starts in again)),
    )


def loop_with_starts_ns(run: Run, steps: Steps, until_ns: int = 0) -> int:
    """Return the time from the first start of workers to the last mark or step, without pauses of the profiler.

    `until_ns`: when the last code of the loop ended, if that was later.
    """
    marks = run.mark_rows
    start_ns = min(int(marks["start_ns"].min()), int(steps.start_ns[0]))
    end_ns = max(int(marks["end_ns"].max()), int(steps.end_ns[-1]), until_ns)
    first_ns = next((loader.worker_start_ns or 0 for loader in run.loaders if loader.workers), 0)
    return max(1, end_ns - start_ns - clip(pauses_of(run), start_ns, end_ns).total_ns + first_ns)


def _starts_of(run: Run, calls: Rows, index: int) -> _LoaderStarts:
    """Return the starts of the workers of one DataLoader; persistent ones start once."""
    fetches, loader = calls.select(calls["loader"] == index), run.loaders[index]
    waits = fetches["end_ns"] - fetches["start_ns"]
    is_first = np.diff(fetches["epoch"], prepend=-1) != 0
    is_later = ~is_first & fetches["yielded"].astype(bool)
    later_ns = int(waits[is_later].mean()) if is_later.any() else 0
    # Of a pass that ended by itself, the last call ends the workers.
    ends_ns = waits[np.append(is_first[1:], True)] * ~fetches["yielded"][np.append(is_first[1:], True)].astype(bool)
    costs = np.maximum(waits[is_first] - later_ns, 0) + ends_ns + (loader.worker_start_ns or 0)
    if loader.persistent_workers:
        costs = costs[:1]
    return _LoaderStarts(
        starts=len(costs),
        cost_ns=costs,
        batches=int(fetches["yielded"].sum()),
        received_ns=int(waits[is_later].sum()) + later_ns * int(is_first.sum()),
        restart_waits=union(fetches["start_ns"][is_first][1:], fetches["end_ns"][is_first][1:]),
    )


def _sampled_starts_ns(run: Run, after_ns: int) -> int:
    """Return the time in which the main thread started workers after the first fetch, by its samples.

    0 if the starts were measured.
    """
    samples = run.host_rows.select(run.host_rows["at_ns"] > after_ns)
    if len(samples) < 2 or any(loader.worker_start_ns is not None for loader in run.loaders):
        return 0
    is_starting = samples.matching(lambda word: word.endswith(STARTING), "called")
    return int(is_starting.sum()) * int(np.median(np.diff(samples["at_ns"])))
