"""Which steps took batches that queued up while gpulab, starting or stopping the profiler, held the main thread.

A DataLoader's workers go on in that time, until `prefetch_factor` batches of each lie ready. The steps that take
these are as short as if data were free: they do not tell what a step costs where workers set the pace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

PREFETCHED = 2  # PyTorch's prefetch_factor where none is given
WAITED_FRAC = 0.1  # a call that takes more of the time to the next one than this waited: nothing lay ready


def capacity(loader: Loader) -> int:
    """How many batches lie ready at most: `prefetch_factor` for each worker."""
    return max(0, loader.workers or 0) * max(0, loader.prefetch_factor or PREFETCHED)


def queued_ns(run: Run) -> Ints:
    """When the calls of `__next__` began that took such a batch, in order of time."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    found = [
        _of_one(run, calls.where(calls["loader"] == number), capacity(loader))
        for number, loader in enumerate(run.loaders)
        if loader.workers
    ]
    return np.sort(np.concatenate(found)) if found else np.empty(0, np.int64)


def _of_one(run: Run, calls: Rows, most: int) -> Ints:
    """The same of one loader: after each pause, as many calls as batches could lie ready, and on until one waited.

    The queue outlasts `most` steps where these are nearly as long as a batch takes to make, as it is filled up
    meanwhile. Where no call waits any more the workers kept up, unless they did not in the longer, recorded steps:
    then the loop ended before the queue did.
    """
    order = np.argsort(calls["start_ns"], kind="stable")
    start, end, epoch = (calls[name][order] for name in ("start_ns", "end_ns", "epoch"))
    free = np.zeros(len(start), bool)
    waited = _waited(start, end)
    pauses = sorted(run.recording.pauses_ns)
    for number, (_, ended_ns) in enumerate(pauses):
        first = int(np.searchsorted(start, ended_ns))
        if not 0 < first < len(start) or epoch[first] != epoch[first - 1]:
            continue  # a new pass begins with an empty queue
        until_ns = pauses[number + 1][0] if number + 1 < len(pauses) else run.span_ns
        last = min(int(np.searchsorted(start, until_ns)), int(np.searchsorted(epoch, epoch[first], side="right")))
        later = np.flatnonzero(waited[first + most : last])
        if len(later):
            free[first : first + most + later[0]] = True
        else:
            free[first : last if _was_fed_slowly(run, start, end) else min(first + most, last)] = True
    taken: Ints = start[free]
    return taken


def _waited(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Of each call whether it waited for its batch, by its share of the time from it to the next."""
    whole = np.append(np.diff(start), 0)
    return np.asarray((end - start > WAITED_FRAC * whole) & (whole > 0), bool)


def _was_fed_slowly(run: Run, start: Ints, end: Ints) -> bool:
    """Whether the longest recording shows a loop that waits for its workers."""
    windows = run.recording.windows_ns
    if not windows:
        return False
    began_ns, ended_ns = max(windows, key=lambda window: window[1] - window[0])
    within = (start >= began_ns) & (end <= ended_ns)
    if within.sum() < 3:
        return False
    spent_ns = int((end - start)[within][1:-1].sum())
    return spent_ns > WAITED_FRAC * int(start[within][-1] - start[within][1])
