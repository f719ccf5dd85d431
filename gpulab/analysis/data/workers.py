"""What the DataLoader's workers do with their time: compute, wait for storage, or neither; how long batches take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

_STARTING = (".DataLoader.__iter__", "DataLoaderIter.__init__")  # where the main process starts workers
_LEAST_S = 0.25  # watched for less time than this, a worker tells of its start and not of its work


@dataclass(frozen=True, kw_only=True)
class Crew:
    """The workers of a run, each watched by itself; None: not told."""

    busy_frac: float  # CPU time of a worker over the time it lived; above one where it computes on several threads
    read_bytes_per_s: float | None  # from storage, all workers that run at once together
    threads: int | None  # of one worker, all it has


@dataclass(frozen=True, kw_only=True)
class Begun:
    """What the beginnings of later epochs cost."""

    count: int
    each_ns: int
    frac: float  # of the whole loop
    step_ns: int  # the mean one, beginnings included
    spans: Spans


def crew(run: Run, steps: Steps, ledger: Ledger) -> Crew | None:
    """What the workers did from their first look to their last; None where none was watched for long enough."""
    rows = run.worker_rows
    if not len(rows):
        return None
    rows = rows.where(np.lexsort((rows["at_ns"], rows["worker"])))
    first = np.flatnonzero(np.diff(rows["worker"], prepend=-1))
    last = np.append(first[1:], len(rows)) - 1
    lived_s = (rows["at_ns"][last] - rows["at_ns"][first]) / 1e9
    long = lived_s >= _LEAST_S
    if not long.any():
        return None
    first, last, lived_s = first[long], last[long], lived_s[long]
    used_s = rows["cpu_s"][last] - rows["cpu_s"][first]
    if not (told := ~np.isnan(used_s)).any():
        return None
    return Crew(
        busy_frac=float(used_s[told].sum() / lived_s[told].sum()),
        read_bytes_per_s=_read_rate(rows, first, last),
        threads=None if np.isnan(rows["threads"]).all() else int(np.nanmedian(rows["threads"])),
    )


def slowest_first(run: Run, steps: Steps, ledger: Ledger) -> int | None:
    """The longest wait for the first batch of an epoch: no batch keeps a worker longer; None where none was seen."""
    calls = _calls(run)
    if calls is None:
        return None
    opens = np.flatnonzero(np.diff(calls["epoch"], prepend=-1))
    return int((calls["end_ns"] - calls["start_ns"])[opens].max())


def _calls(run: Run) -> Rows | None:
    """The calls of the leading loader that gave a batch; None where there were none."""
    leader = leading_loader(run)
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if leader is None or not len(calls):
        return None
    given = calls.where((calls["loader"] == run.loaders.index(leader)) & calls["yielded"])
    return given if len(given) else None


def later_wait_ns(run: Run, steps: Steps, ledger: Ledger) -> int | None:
    """The mean wait for a batch that is not the first of its epoch; None where none was seen.

    The mean, not the median: workers that finish together give one long wait and several short ones.
    """
    calls = _calls(run)
    if calls is None:
        return None
    waits = (calls["end_ns"] - calls["start_ns"])[np.diff(calls["epoch"], prepend=-1) == 0]
    return int(waits.mean()) if len(waits) else None


def begun(run: Run, steps: Steps, ledger: Ledger) -> Begun | None:
    """What it costs to begin an epoch: workers that are started, and the first batch, which nobody prepared.

    The first epoch is left out, as it has to be begun. None with one epoch. Starting is not part of any call of the
    loader's __next__: it is told by the samples of the main thread that found it there.
    """
    calls = _calls(run)
    if calls is None or not len(steps):
        return None
    opens = np.flatnonzero(np.diff(calls["epoch"], prepend=-1))
    if len(opens) < 2:
        return None
    waits = calls["end_ns"] - calls["start_ns"]
    later = np.delete(waits, opens)
    opens = opens[1:]
    first_ns = np.maximum(waits[opens] - (int(later.mean()) if len(later) else 0), 0)
    loop_ns = max(1, int(steps.end_ns[-1] - steps.start_ns[0]))
    cost_ns = int(first_ns.sum()) + _starting_ns(run, int(calls["start_ns"][0]))
    return Begun(
        count=len(opens),
        each_ns=cost_ns // len(opens),
        frac=min(1.0, cost_ns / loop_ns),
        step_ns=max(1, loop_ns // len(steps)),
        spans=union(calls["start_ns"][opens], calls["end_ns"][opens]),
    )


def _starting_ns(run: Run, after_ns: int) -> int:
    """For how long the main thread was seen starting workers, after the first batch was asked for."""
    samples = run.host_rows.where(run.host_rows["at_ns"] > after_ns)
    if len(samples) < 2:
        return 0
    there = samples.matching(lambda word: word.endswith(_STARTING), "called")
    return int(there.sum()) * int(np.median(np.diff(samples["at_ns"])))


def _read_rate(rows: Rows, first: Ints, last: Ints) -> float | None:
    """Bytes per second, of as many workers as there are at once."""
    read = rows["read_bytes"][last] - rows["read_bytes"][first]
    told = ~np.isnan(read)
    if not told.any():
        return None
    seconds = (rows["at_ns"].max() - rows["at_ns"].min()) / 1e9
    return float(read[told].sum() / seconds)
