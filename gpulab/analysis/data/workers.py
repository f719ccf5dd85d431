"""Activity of DataLoader workers: CPU time, storage reads, waits for batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

_LEAST_S = 0.25  # samples over less time show the start of a worker, not its work


@dataclass(frozen=True, kw_only=True)
class WorkerActivity:
    """Activity of the workers of a run, sampled per worker. None: unknown."""

    busy_frac: float  # CPU time of a worker / its lifetime; above one if it computes on several threads
    read_bytes_per_s: float | None  # from storage, all concurrent workers together
    threads: int | None  # of one worker


def worker_activity(run: Run, steps: Steps, ledger: Ledger) -> WorkerActivity | None:
    """Compute the activity of the workers from first to last sample; None if none was sampled for long enough."""
    rows = run.worker_rows
    if not len(rows):
        return None
    rows = rows.select(np.lexsort((rows["at_ns"], rows["worker"])))
    first = np.flatnonzero(np.diff(rows["worker"], prepend=-1))
    last = np.append(first[1:], len(rows)) - 1
    lifetime_s = (rows["at_ns"][last] - rows["at_ns"][first]) / 1e9
    long_enough = lifetime_s >= _LEAST_S
    if not long_enough.any():
        return None
    first, last, lifetime_s = first[long_enough], last[long_enough], lifetime_s[long_enough]
    cpu_s = rows["cpu_s"][last] - rows["cpu_s"][first]
    if not (is_known := ~np.isnan(cpu_s)).any():
        return None
    return WorkerActivity(
        busy_frac=float(cpu_s[is_known].sum() / lifetime_s[is_known].sum()),
        read_bytes_per_s=_read_rate(rows, first, last),
        threads=None if np.isnan(rows["threads"]).all() else int(np.nanmedian(rows["threads"])),
    )


def longest_first_batch_ns(run: Run, steps: Steps, ledger: Ledger) -> int | None:
    """Return the longest wait for the first batch of an epoch, an upper bound of the time per batch of one worker."""
    calls = _calls(run)
    if calls is None:
        return None
    first_batches = np.flatnonzero(np.diff(calls["epoch"], prepend=-1))
    return int((calls["end_ns"] - calls["start_ns"])[first_batches].max())


def _calls(run: Run) -> Rows | None:
    """Return the calls of the main loader that returned a batch; None if there are none."""
    trained_on = training_loader(run)
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if trained_on is None or not len(calls):
        return None
    fetches = calls.select((calls["loader"] == run.loaders.index(trained_on)) & calls["yielded"])
    return fetches if len(fetches) else None


def mean_later_wait_ns(run: Run, steps: Steps, ledger: Ledger) -> int | None:
    """Return the mean wait for a batch other than the first of its epoch; None if there are none.

    The mean, not the median: workers that finish together cause one long wait and several short ones.
    """
    calls = _calls(run)
    if calls is None:
        return None
    waits = (calls["end_ns"] - calls["start_ns"])[np.diff(calls["epoch"], prepend=-1) == 0]
    return int(waits.mean()) if len(waits) else None


def _read_rate(rows: Rows, first: Ints, last: Ints) -> float | None:
    """Return the read rate of all concurrent workers, in bytes per second."""
    read = rows["read_bytes"][last] - rows["read_bytes"][first]
    is_known = ~np.isnan(read)
    if not is_known.any():
        return None
    seconds = (rows["at_ns"].max() - rows["at_ns"].min()) / 1e9
    return float(read[is_known].sum() / seconds)
