"""How much each epoch reads from storage, and how long it waits for data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints
from gpulab.run import Run
from gpulab.tables import MarkKind


@dataclass(frozen=True, kw_only=True, eq=False)
class EpochReads:
    """One value per complete epoch of the training loader. Reads from the page cache do not count."""

    start_ns: Ints
    end_ns: Ints
    read_bytes: Ints
    wait_ns: Ints  # in __next__, all batches

    def wait_frac(self, first: int, last: int) -> float:
        """Return the share of the time of these epochs that the loop waits for data."""
        span_ns = int((self.end_ns - self.start_ns)[first:last].sum())
        return float(self.wait_ns[first:last].sum()) / max(1, span_ns)


def epoch_reads(run: Run, steps: Steps, ledger: Ledger | None = None) -> EpochReads | None:
    """Return the reads of each epoch that ended; None with fewer than two, or if reads were not sampled."""
    loader = training_loader(run)
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if loader is None or not len(calls):
        return None
    calls = calls.select(calls["loader"] == run.loaders.index(loader))
    ended = np.unique(calls["epoch"][~calls["yielded"]])
    if len(ended) < 2:
        return None
    at_ns, increases = _read_increases(run)
    if not len(at_ns):
        return None
    rows = []
    for epoch in ended.tolist():
        mask = calls["epoch"] == epoch
        start_ns, end_ns = int(calls["start_ns"][mask].min()), int(calls["end_ns"][mask].max())
        read = increases[(at_ns > start_ns) & (at_ns <= end_ns)].sum()
        rows.append((start_ns, end_ns, int(read), int((calls["end_ns"] - calls["start_ns"])[mask].sum())))
    columns = np.array(rows, np.int64).T
    return EpochReads(start_ns=columns[0], end_ns=columns[1], read_bytes=columns[2], wait_ns=columns[3])


def _read_increases(run: Run) -> tuple[Ints, Ints]:
    """Return when bytes were read from storage, and how many, by this process and by each worker."""
    times: list[Ints] = []
    amounts: list[Ints] = []
    workers = run.worker_rows
    parts = [workers.select(workers["worker"] == worker) for worker in np.unique(workers["worker"]).tolist()]
    for part in (run.host_rows, *parts):
        rows = part.select(~np.isnan(part["read_bytes"]))
        if len(rows) > 1:
            times.append(rows["at_ns"][1:])
            amounts.append(np.diff(rows["read_bytes"]).astype(np.int64))
        if part is not run.host_rows and len(rows):  # what a worker read before its first sample
            times.append(rows["at_ns"][:1])
            amounts.append(rows["read_bytes"][:1].astype(np.int64))
    if not times:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(times), np.maximum(np.concatenate(amounts), 0)
