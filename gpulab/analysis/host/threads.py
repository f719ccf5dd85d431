"""Who used the CPU meanwhile: the recorded thread, the other Python threads, other programs; and who was waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, covered_ns, merged, subtract, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind, MarkKind

LEAST_NS = 300_000_000  # three samples: in less the CPU time of a few steps is a matter of chance
UNFAIR = 2.0
FULL_FRAC = 0.9  # load of all cores from which a thread may have waited for one
COMPUTES_FRAC = 0.3  # a fetch that computes less than this of its time waits for storage, not for the GIL
# Where the system does not tell how long a thread that lost its core waits for one: a time slice of another, or those
# of several (15 ms were measured with five programs on two cores).
SLICE_S, LONG_SLICE_S = 0.004, 0.015


@dataclass(frozen=True, kw_only=True)
class Threads:
    """Shares of the loop's time, 0-1. None: not told."""

    main_frac: float  # the recorded thread used the CPU
    waits_frac: float  # it waited for something that is known: a batch, the device, the backward thread
    fetch_waits_frac: float  # of that, for a batch that it builds itself, and in part did compute
    others_frac: float | None  # CPU time of other Python threads, as a share of one core
    cores_frac: float | None  # load of all cores, by whatever ran on them
    off_core_frac: (
        float  # it was ready to run and had no core; where that is not told, by how often threads lost theirs
    )
    off_core_most_frac: float  # the same at most
    others_at: str | None  # the line the other threads were at most often
    off_core_told: bool = False  # the system counted the time it had no core

    def may_lack_a_core(self, share: float) -> bool:
        """Whether want of a core may be behind half or more of such a share of the time."""
        if self.off_core_told:
            return self.off_core_frac >= share / 2
        return (self.cores_frac or 0) >= FULL_FRAC and 1 - self.main_frac - self.waits_frac >= share / 2

    @property
    def surely_absent_frac(self) -> float:
        """The same, however long it had to wait for a core each time."""
        return max(0.0, 1 - self.main_frac - self.waits_frac - self.off_core_most_frac)

    @property
    def held_frac(self) -> float:
        """The same where other Python threads compute.

        Of two that want a core, each gets its share of those there are. Where the others get twice as much and more,
        it is not for want of a core that this one does not run.
        """
        if (self.others_frac or 0.0) >= UNFAIR * max(self.main_frac, 0.05):
            return max(0.0, 1 - self.main_frac - self.waits_frac)
        return self.absent_frac

    @property
    def absent_frac(self) -> float:
        """It neither computed nor waited for anything that is known, and it was not for want of a core."""
        return max(0.0, 1 - self.main_frac - self.waits_frac - self.off_core_frac)


def threads(run: Run, steps: Steps, ledger: Ledger) -> Threads | None:
    """Who used the CPU while the warm steps ran; None where the recorded thread's CPU time is not told."""
    samples = run.host_rows
    first, last = _pairs(run, steps)
    main = _grown(samples["main_cpu_s"], first, last)
    told = ~np.isnan(main)
    at = samples["at_ns"]
    wall_s = float((at[last] - at[first])[told].sum() / 1e9)
    if wall_s * 1e9 < LEAST_NS:
        return None
    first, last = first[told], last[told]
    others = _grown(samples["others_cpu_s"], first, last)
    cores = samples["cpu_frac"][last]
    off_core = _off_core(samples, first, last, wall_s)
    fetch_ns, own_fetch_ns = _fetches(run, union(at[first], at[last]))
    return Threads(
        main_frac=min(1.0, float(main[told].sum()) / wall_s),
        waits_frac=min(1.0, fetch_ns / 1e9 / wall_s + _device_waits(run, steps)),
        fetch_waits_frac=min(1.0, own_fetch_ns / 1e9 / wall_s),
        others_frac=None if np.isnan(others).all() else max(0.0, float(np.nansum(others)) / wall_s),
        cores_frac=None if np.isnan(cores).all() else float(np.nanmedian(cores)),
        off_core_frac=off_core[0],
        off_core_most_frac=off_core[1],
        off_core_told=not np.isnan(samples["main_delayed_s"][last]).all(),
        others_at=_most(samples.words("others_frame").where(last).to_list()),
    )


def _pairs(run: Run, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Neighbouring samples between which nothing but warm steps ran, by their indices."""
    at = run.host_rows["at_ns"]
    none = np.empty(0, np.intp)
    warm = steps.plain | steps.interior
    if len(at) < 2 or not warm.any():
        return none, none
    # Steps follow one another but for what lies between passes; that is the user's time as well.
    loop = Spans(steps.start_ns[warm].min(keepdims=True), steps.end_ns[warm].max(keepdims=True))
    pauses = np.array(run.recording.pauses_ns, np.int64).reshape(-1, 2)
    free = Coverage.of(subtract(loop, union(pauses[:, 0], pauses[:, 1])))
    whole = free.within(at[:-1], at[1:]) == at[1:] - at[:-1]
    first = np.flatnonzero(whole)
    return first, first + 1


def _off_core(samples: Rows, first: np.ndarray, last: np.ndarray, wall_s: float) -> tuple[float, float]:
    """The share of the time in which the recorded thread wanted a core and had none, and the same at most."""
    delayed = _grown(samples["main_delayed_s"], first, last)
    if not np.isnan(delayed).all():
        told = min(1.0, max(0.0, float(np.nansum(delayed)) / wall_s))
        return told, told
    cores = samples["cpu_frac"][last]
    if np.isnan(cores).all() or np.nanmedian(cores) < FULL_FRAC:
        return 0.0, 0.0
    preempted = float(np.nansum(_grown(samples["preempted"], first, last)))
    return min(1.0, preempted * SLICE_S / wall_s), min(1.0, preempted * LONG_SLICE_S / wall_s)


def _grown(counter: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    grown: np.ndarray = counter[last] - counter[first]
    return grown


def _fetches(run: Run, seen: Spans) -> tuple[int, int]:
    """Time in DataLoader.__next__ without computing; and, of that, in loaders without workers that do compute."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    calls = calls.where(covered_ns(seen, calls["start_ns"], calls["start_ns"] + 1) > 0)
    if not len(calls):
        return 0, 0
    took, computed = calls["end_ns"] - calls["start_ns"], calls["thread_cpu_ns"]
    waited = np.maximum(took - computed, 0)
    alone = np.isin(calls["loader"], [place for place, loader in enumerate(run.loaders) if loader.workers == 0])
    busy = computed[alone].sum() >= COMPUTES_FRAC * took[alone].sum()
    return int(waited.sum()), int(waited[alone].sum()) if busy else 0


def _device_waits(run: Run, steps: Steps) -> float:
    """The share of the interior steps in which the recorded thread waited for the device, or for its helper."""
    window = steps.interior_spans
    if not window.total_ns:
        return 0.0
    return float(covered_ns(_for_device(run), window.start_ns, window.end_ns).sum() / window.total_ns)


def _for_device(run: Run) -> Spans:
    """When the recorded thread was inside a call that may wait for the device, or left the work to another thread."""
    events = run.event_rows
    mine = events["thread"] == run.main_thread
    held = _of(events, mine, Kind.SYNC, Kind.COPY_CALL)
    theirs = _of(events, ~mine & (events["thread"] >= 0), Kind.OP, Kind.LAUNCH)
    return merged(held, subtract(theirs, _of(events, mine, Kind.OP)))


def _of(events: Rows, mask: Mask, *kinds: Kind) -> Spans:
    kind = events["kind"]
    index = np.flatnonzero(mask & np.logical_or.reduce([kind == each for each in kinds]))
    start = events["start_ns"][index]
    return union(start, start + events["dur_ns"][index])


def _most(texts: list[str | None]) -> str | None:
    told = Counter(text for text in texts if text is not None)
    return told.most_common(1)[0][0] if told else None
