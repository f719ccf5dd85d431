"""CPU use during the loop: the recorded thread, other Python threads and other programs, and waits for a core."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, covered_ns, subtract, union, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind, MarkKind

MIN_SAMPLED_NS = 300_000_000  # three samples; over less time the CPU time of a few steps is random
UNFAIR_RATIO = 2.0
FULL_FRAC = 0.9  # load of all cores from which a thread may have waited for a core
COMPUTES_FRAC = 0.3  # a fetch with a smaller share of CPU time waits for storage, not for the GIL
# Assumed wait for a core after a preemption, if the system does not measure it: one time slice of another thread, or
# those of several (15 ms were measured with five programs on two cores).
SLICE_S, LONG_SLICE_S = 0.004, 0.015


@dataclass(frozen=True, kw_only=True)
class CpuUse:
    """CPU use as shares of the time of the loop, 0-1. None: unknown."""

    main_frac: float  # CPU time of the recorded thread
    wait_frac: float  # waits of the recorded thread with a known reason: a batch, the device, a thread, other ranks
    fetch_wait_frac: float  # part of waits_frac: for batches that it loads itself with a notable share of CPU time
    others_frac: float | None  # CPU time of other Python threads, as a share of one core
    cores_frac: float | None  # load of all cores, all programs
    off_core_frac: float  # the recorded thread was runnable but had no core; estimated from preemptions if not measured
    off_core_max_frac: float  # upper bound of off_core_frac
    others_line: str | None  # the most frequent line of the other threads
    off_core_measured: bool = False  # off_core_frac was measured by the system

    def may_wait_for_core(self, share: float) -> bool:
        """Whether waiting for a core may explain half or more of this share of the time."""
        if self.off_core_measured:
            return self.off_core_frac >= share / 2
        return (self.cores_frac or 0) >= FULL_FRAC and 1 - self.main_frac - self.wait_frac >= share / 2

    @property
    def absent_min_frac(self) -> float:
        """Lower bound of absent_frac, with the longest possible waits for a core."""
        return max(0.0, 1 - self.main_frac - self.wait_frac - self.off_core_max_frac)

    @property
    def gil_wait_frac(self) -> float:
        """Share of the time in which the recorded thread may wait for the GIL: absent_frac, or more if others compute.

        Threads that compete for cores get equal shares. If the other threads get at least UNFAIR times as much CPU time
        as this one, a missing core is not the reason why it does not run.
        """
        if (self.others_frac or 0.0) >= UNFAIR_RATIO * max(self.main_frac, 0.05):
            return max(0.0, 1 - self.main_frac - self.wait_frac)
        return self.absent_frac

    @property
    def absent_frac(self) -> float:
        """The thread neither computed nor waited for a known reason or for a core."""
        return max(0.0, 1 - self.main_frac - self.wait_frac - self.off_core_frac)


def thread_cpu_use(run: Run, steps: Steps, ledger: Ledger) -> CpuUse | None:
    """Compute the CPU use during the warm steps; None if the CPU time of the recorded thread is unknown."""
    samples = run.host_rows
    first, last = _sample_pairs(run, steps)
    main_cpu_s = _increase(samples["main_cpu_s"], first, last)
    measured = ~np.isnan(main_cpu_s)
    at = samples["at_ns"]
    wall_s = float((at[last] - at[first])[measured].sum() / 1e9)
    if wall_s * 1e9 < MIN_SAMPLED_NS:
        return None
    first, last = first[measured], last[measured]
    others_cpu_s = _increase(samples["others_cpu_s"], first, last)
    load = samples["cpu_frac"][last]
    off_core = _off_core(samples, first, last, wall_s)
    fetch_ns, own_fetch_ns = _fetches(run, union(at[first], at[last]))
    return CpuUse(
        main_frac=min(1.0, float(main_cpu_s[measured].sum()) / wall_s),
        wait_frac=min(1.0, fetch_ns / 1e9 / wall_s + _waits_for_others(run, steps, ledger)),
        fetch_wait_frac=min(1.0, own_fetch_ns / 1e9 / wall_s),
        others_frac=None if np.isnan(others_cpu_s).all() else max(0.0, float(np.nansum(others_cpu_s)) / wall_s),
        cores_frac=None if np.isnan(load).all() else float(np.nanmedian(load)),
        off_core_frac=off_core[0],
        off_core_max_frac=off_core[1],
        off_core_measured=not np.isnan(samples["main_delayed_s"][last]).all(),
        others_line=_most_frequent(samples.text("others_frame").select(last).to_list()),
    )


def _sample_pairs(run: Run, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of adjacent samples between which only warm steps ran."""
    at = run.host_rows["at_ns"]
    none = np.empty(0, np.intp)
    warm = steps.unprofiled | steps.interior
    if len(at) < 2 or not warm.any():
        return none, none
    # Time between two passes over the data is also time of the user's loop.
    loop = Spans(steps.start_ns[warm].min(keepdims=True), steps.end_ns[warm].max(keepdims=True))
    pauses = np.array(run.recording.pauses_ns, np.int64).reshape(-1, 2)
    steps_time = Coverage.of(subtract(loop, union(pauses[:, 0], pauses[:, 1])))
    only_steps = steps_time.covered_ns(at[:-1], at[1:]) == at[1:] - at[:-1]
    first = np.flatnonzero(only_steps)
    return first, first + 1


def _off_core(samples: Rows, first: np.ndarray, last: np.ndarray, wall_s: float) -> tuple[float, float]:
    """Return the share of the time in which the recorded thread waited for a core, and its upper bound."""
    delayed = _increase(samples["main_delayed_s"], first, last)
    if not np.isnan(delayed).all():
        frac = min(1.0, max(0.0, float(np.nansum(delayed)) / wall_s))
        return frac, frac
    load = samples["cpu_frac"][last]
    if np.isnan(load).all() or np.nanmedian(load) < FULL_FRAC:
        return 0.0, 0.0
    preempted = float(np.nansum(_increase(samples["preempted"], first, last)))
    return min(1.0, preempted * SLICE_S / wall_s), min(1.0, preempted * LONG_SLICE_S / wall_s)


def _increase(counter: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    increase: np.ndarray = counter[last] - counter[first]
    return increase


def _fetches(run: Run, window: Spans) -> tuple[int, int]:
    """Return the time in DataLoader.__next__ without CPU use, and the part in compute-heavy loaders without workers."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    calls = calls.select(covered_ns(window, calls["start_ns"], calls["start_ns"] + 1) > 0)
    if not len(calls):
        return 0, 0
    fetch_ns, cpu_ns = calls["end_ns"] - calls["start_ns"], calls["thread_cpu_ns"]
    wait_ns = np.maximum(fetch_ns - cpu_ns, 0)
    without_workers = np.isin(
        calls["loader"], [index for index, loader in enumerate(run.loaders) if loader.workers == 0]
    )
    computes = cpu_ns[without_workers].sum() >= COMPUTES_FRAC * fetch_ns[without_workers].sum()
    return int(wait_ns.sum()), int(wait_ns[without_workers].sum()) if computes else 0


def _waits_for_others(run: Run, steps: Steps, ledger: Ledger) -> float:
    """Return the share of the interior steps in which the recorded thread waited for the device, a thread or ranks."""
    window = steps.interior_spans
    if not window.total_ns:
        return 0.0
    waits = _delegated_time(run)
    if ledger.device == "cpu" and "communication" in ledger.spans:
        waits = union_of(waits, ledger.spans["communication"])
    return float(covered_ns(waits, window.start_ns, window.end_ns).sum() / window.total_ns)


def _delegated_time(run: Run) -> Spans:
    """Return the time in which the recorded thread was in a call that may wait, or another thread ran operators."""
    events = run.event_rows
    of_main = events["thread"] == run.main_thread
    waits = _spans_of(events, of_main, EventKind.SYNC, EventKind.COPY_CALL)
    of_others = _spans_of(events, ~of_main & (events["thread"] >= 0), EventKind.OP, EventKind.LAUNCH)
    return union_of(waits, subtract(of_others, _spans_of(events, of_main, EventKind.OP)))


def _spans_of(events: Rows, mask: Mask, *kinds: EventKind) -> Spans:
    kind = events["kind"]
    index = np.flatnonzero(mask & np.logical_or.reduce([kind == each for each in kinds]))
    start = events["start_ns"][index]
    return union(start, start + events["dur_ns"][index])


def _most_frequent(texts: list[str | None]) -> str | None:
    counts = Counter(text for text in texts if text is not None)
    return counts.most_common(1)[0][0] if counts else None
