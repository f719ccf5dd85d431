"""Prefetch bias: find steps served from batches that queued up while gpulab blocked the main thread.

While gpulab starts or stops the profiler, the DataLoader workers continue until `prefetch_factor` batches per worker
are queued. The steps that take these batches do not wait for data. They are too short to show the step time of a loop
that is limited by its workers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

DEFAULT_PREFETCH_FACTOR = 2  # PyTorch's default prefetch_factor
WAITED_FRAC = 0.1  # a call that takes a larger share of the time to the next call waited: no batch was queued


def prefetch_capacity(loader: Loader) -> int:
    """Return the maximum number of prefetched batches: `prefetch_factor` per worker."""
    return max(0, loader.workers or 0) * max(0, loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR)


def prefetched_call_ns(run: Run) -> Ints:
    """Return the start times of the `__next__` calls that took such a batch, in order of time."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    per_loader = [
        _queued_of_loader(run, calls.select(calls["loader"] == index), prefetch_capacity(loader))
        for index, loader in enumerate(run.loaders)
        if loader.workers
    ]
    return np.sort(np.concatenate(per_loader)) if per_loader else np.empty(0, np.int64)


def _queued_of_loader(run: Run, calls: Rows, queue_length: int) -> Ints:
    """Return the same for one loader: after each pause, `queue_length` calls, and further calls until one waited.

    The queue lasts longer than `queue_length` steps if steps are nearly as long as the loading of a batch, because
    workers refill it. If no later call waits, the workers kept up. But if they did not keep up in the longer, recorded
    steps, the loop ended before the queue was empty.
    """
    order = np.argsort(calls["start_ns"], kind="stable")
    start, end, epoch = (calls[name][order] for name in ("start_ns", "end_ns", "epoch"))
    from_queue = np.zeros(len(start), bool)
    waited = _waited(start, end)
    pauses = sorted(run.recording.pauses_ns)
    for index, (_, resume_ns) in enumerate(pauses):
        first = int(np.searchsorted(start, resume_ns))
        if not 0 < first < len(start) or epoch[first] != epoch[first - 1]:
            continue  # a new pass starts with an empty queue
        until_ns = pauses[index + 1][0] if index + 1 < len(pauses) else run.span_ns
        last = min(int(np.searchsorted(start, until_ns)), int(np.searchsorted(epoch, epoch[first], side="right")))
        later = np.flatnonzero(waited[first + queue_length : last])
        if len(later):
            from_queue[first : first + queue_length + later[0]] = True
        else:
            from_queue[first : last if _waits_for_workers(run, start, end) else min(first + queue_length, last)] = True
    call_ns: Ints = start[from_queue]
    return call_ns


def _waited(start: Ints, end: Ints) -> NDArray[np.bool_]:
    """Return a mask of the calls that waited for their batch, by their share of the time until the next call."""
    interval = np.append(np.diff(start), 0)
    return np.asarray((end - start > WAITED_FRAC * interval) & (interval > 0), bool)


def _waits_for_workers(run: Run, start: Ints, end: Ints) -> bool:
    """Whether the longest recorded window shows a loop that waits for its workers."""
    windows = run.recording.windows_ns
    if not windows:
        return False
    start_ns, end_ns = max(windows, key=lambda window: window[1] - window[0])
    in_window = (start >= start_ns) & (end <= end_ns)
    if in_window.sum() < 3:
        return False
    fetch_ns = int((end - start)[in_window][1:-1].sum())
    return fetch_ns > WAITED_FRAC * int(start[in_window][-1] - start[in_window][1])
