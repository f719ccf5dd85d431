"""How fast a loop computes while its DataLoader workers are idle, and what it would take without workers.

Near the end of a pass, the workers have loaded all batches, and leave the cores to the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.data.prefetch_bias import prefetch_capacity
from gpulab.analysis.data.worker_starts import loop_with_starts_ns
from gpulab.analysis.events.recorded_spans import pauses_of, windows_of
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, covered_ns, union_of
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

_LEAST_BATCHES = 4  # computed beside idle workers
_MANY_TIMES = 3.0  # the typical time: such a batch was disturbed, or other code runs after it
# CPU time of loading a batch in the main process / that in a worker, which shares its core with the model and starts
# with cold caches: in ten training loops 0.3 to 0.9, in half of them at least 0.66.
_LOADING = (0.4, 0.9)
_VARIATION = (1.0, 1.05)  # of the time to compute with a batch beside idle workers
_UNKNOWN = (0.7, 1.0)  # the same of the time beside workers, if too few batches were computed beside idle ones


@dataclass(frozen=True, kw_only=True)
class WithoutWorkers:
    """A loop with workers, and the same if the main process loaded the batches. Times of whole loops, in ns."""

    crowded_ns: int  # mean time to compute with a batch of the training
    idle_ns: int  # the same while the workers are idle
    now_ns: int
    best_ns: int
    worst_ns: int
    floor_ns: int  # with batches that cost nothing
    as_slow_ns: int  # the same if the model does not get faster
    steps: int


class _Batches(NamedTuple):
    """The batches of a DataLoader; their times leave out those that the profiler or another DataLoader lengthened."""

    loader: Loader
    batches: int
    total_ns: float  # of all batches, and of the ends of passes
    computing_ns: float  # mean time to compute with a batch
    idle_ns: NDArray[np.float64]  # the same, for batches computed while the workers were idle
    recorded_ns: int  # all passes together, as they were recorded


def without_workers(run: Run, steps: Steps, ledger: Ledger) -> WithoutWorkers | None:
    """Compute how long the loop would take without workers.

    None if no workers were measured, or if too few batches of the training were computed beside idle ones.
    """
    calls, pauses = run.mark_rows.of_kind(MarkKind.NEXT), pauses_of(run)
    for disturbed in (union_of(windows_of(run), pauses), pauses):  # of a short loop, the profiler records all batches
        groups = _measured_batches(run, calls, disturbed, pauses)
        main = max(groups, key=lambda batches: batches.recorded_ns, default=None)
        if main is not None and len(main.idle_ns) >= _LEAST_BATCHES and len(steps):
            return _times_of(run, steps, groups, main)
    return None


def _measured_batches(run: Run, calls: Rows, disturbed: Spans, pauses: Spans) -> list[_Batches]:
    measured = [
        _batches_of(calls, index, loader, disturbed, pauses)
        for index, loader in enumerate(run.loaders)
        if loader.workers and loader.worker_batch_cpu_ns is not None
    ]
    return [batches for batches in measured if batches is not None]


def _times_of(run: Run, steps: Steps, groups: list[_Batches], main: _Batches) -> WithoutWorkers:
    starts_ns = sum((batches.loader.worker_starts or 0) * (batches.loader.worker_start_ns or 0) for batches in groups)
    other_ns = max(0, loop_with_starts_ns(run, steps) - starts_ns - sum(batches.recorded_ns for batches in groups))
    return WithoutWorkers(
        crowded_ns=round(main.computing_ns),
        idle_ns=round(float(np.median(main.idle_ns))),
        now_ns=round(other_ns + starts_ns + sum(batches.total_ns for batches in groups)),
        best_ns=other_ns + _without(groups, 0),
        worst_ns=other_ns + _without(groups, 1),
        floor_ns=other_ns + round(sum(batches.batches * _computing(batches, 0) for batches in groups)),
        as_slow_ns=other_ns + round(sum(batches.batches * batches.computing_ns for batches in groups)),
        steps=len(steps),
    )


def _without(groups: list[_Batches], end: int) -> int:
    """Return the time of all batches without workers, at best and at worst."""
    return round(sum(batches.batches * (_computing(batches, end) + _loading(batches, end)) for batches in groups))


def _computing(batches: _Batches, end: int) -> float:
    """Return the time to compute with a batch without workers, at best and at worst."""
    if len(batches.idle_ns) < _LEAST_BATCHES:
        return _UNKNOWN[end] * batches.computing_ns
    typical = float(np.median(batches.idle_ns))
    mean = float(batches.idle_ns[batches.idle_ns <= _MANY_TIMES * typical].mean())
    return _VARIATION[end] * (float(np.percentile(batches.idle_ns, 25)), max(mean, typical))[end]


def loading_range_ns(loader: Loader) -> tuple[float, float] | None:
    """Return how long the main process would load a batch, at best and at worst; None if no worker was measured.

    What a worker waits counts at worst.
    """
    if loader.worker_batch_cpu_ns is None:
        return None
    best_ns, worst_ns = (part * loader.worker_batch_cpu_ns for part in _LOADING)
    return best_ns, worst_ns + (loader.worker_wait_ns or 0)


def _loading(batches: _Batches, end: int) -> float:
    range_ns = loading_range_ns(batches.loader)
    return 0.0 if range_ns is None else range_ns[end]


def _batches_of(calls: Rows, index: int, loader: Loader, disturbed: Spans, pauses: Spans) -> _Batches | None:
    """Return the batches of one DataLoader; None if none was recorded without disturbance."""
    others, fetches = calls.select(calls["loader"] != index), calls.select(calls["loader"] == index)
    start_ns, end_ns, epoch = fetches["start_ns"], fetches["end_ns"], fetches["epoch"]
    is_followed = np.append(epoch[1:] == epoch[:-1], False) & fetches["yielded"].astype(bool)
    first = np.append(True, epoch[1:] != epoch[:-1])[is_followed]
    begin_ns, received_ns = start_ns[is_followed], end_ns[is_followed]
    next_ns = np.append(start_ns[1:], 0)[is_followed]
    has_other = np.searchsorted(others["start_ns"], next_ns) > np.searchsorted(others["start_ns"], begin_ns)
    is_plain = ~has_other & (covered_ns(disturbed, begin_ns, next_ns) == 0)
    if not (is_plain & ~first).any():
        return None
    computing_ns = (next_ns - received_ns).astype(np.float64)
    later_ns = float((next_ns - begin_ns)[is_plain & ~first].mean())
    firsts_ns = (next_ns - begin_ns)[first & is_plain]
    passes, count = int(first.sum()), int(fetches["yielded"].sum())
    is_end = ~fetches["yielded"].astype(bool)
    return _Batches(
        loader=loader,
        batches=count,
        total_ns=passes * float(firsts_ns.mean() if len(firsts_ns) else later_ns)
        + (count - passes) * later_ns
        + int((end_ns - start_ns)[is_end].sum()),
        computing_ns=float(computing_ns[is_plain].mean()),
        idle_ns=computing_ns[is_plain & _beside_idle_workers(fetches, loader)[is_followed]],
        recorded_ns=int((next_ns - begin_ns - covered_ns(pauses, begin_ns, next_ns)).sum())
        + int((end_ns - start_ns)[is_end].sum()),
    )


def _beside_idle_workers(fetches: Rows, loader: Loader) -> NDArray[np.bool_]:
    """Return which calls begin a batch for which the workers have nothing to load any more: near the end of a pass.

    The main process asks for another batch whenever it receives one, and several batches ahead. The last batch of a
    pass does not count, as it may be smaller, unless it is the only one.
    """
    is_idle = np.zeros(len(fetches), bool)
    ahead = prefetch_capacity(loader)
    for epoch in np.unique(fetches["epoch"]):
        rows = np.flatnonzero(fetches["epoch"] == epoch)
        batches = rows[fetches["yielded"][rows].astype(bool)]
        if len(batches) == len(rows) and len(batches) != loader.batches:
            continue  # the loop left this pass early; some frameworks count the batches, and do not ask for the end
        candidates = batches[max(1, len(batches) // 2, len(batches) - ahead + 1) :]
        is_idle[candidates[:-1] if len(candidates) > 1 else candidates] = True
    return is_idle
