"""Kernels, or operators on a CPU, of one side beside those of another: added, removed, changed, the same.

Matched by name and by the sizes of the inputs where these were recorded, else by the grid. What finds no partner of
its size but one of its name is matched with that, as of other sizes.

Work of a GPU belongs to the step that called for it: a copy that runs ahead, or behind, counts where it was asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.enclosing_operator import holders
from gpulab.analysis.events.groups import grouped
from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.launch_delays import calls_of
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Ints
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.tables import Kind

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"
OTHER_SIZES = "other sizes"
NOTABLE_COUNT_FRAC = 0.02  # how often, and how long, before it counts as changed
NOTABLE_NS_FRAC = 0.1  # operators of a CPU differ by 5 % from one run to the next
NOTABLE_STEP_FRAC = 0.005  # of all work of a step
MOST_SLACK = 0.5  # once more or less in every step is a change, however few steps there are

Key = tuple[str, str]  # name; sizes or grid, "" where not told
Tally = Mapping[Key, tuple[float, float]]  # how often and how many ns, per step


@dataclass(frozen=True, kw_only=True)
class Match:
    """One kernel or operator on both sides; figures per step."""

    name: str
    sizes: str  # what tells it apart from others of its name; "" where nothing does
    status: str  # added, removed, changed or same
    before_count: float
    after_count: float
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """How much more of it there is after."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, kw_only=True)
class Matched:
    """All of them, the largest differences first; every kernel or operator of a step is in exactly one."""

    on: str  # "kernels" (copies and fills among them) or "operators", each by its own time
    matches: tuple[Match, ...]

    def of(self, status: str) -> tuple[Match, ...]:
        """Those of this status."""
        return tuple(each for each in self.matches if each.status == status)

    @property
    def before_ns(self) -> int:
        """All of them together, per step."""
        return sum(each.before_ns for each in self.matches)

    @property
    def after_ns(self) -> int:
        """All of them together, per step."""
        return sum(each.after_ns for each in self.matches)


Recorded = tuple[Run, Steps, Ledger]


def matched(before: Sequence[Recorded], after: Sequence[Recorded]) -> Matched | None:
    """What each side ran in its interior steps, matched; None where one ran on a GPU and the other did not."""
    devices = {ledger.device for _, _, ledger in (*before, *after)}
    if len(devices) != 1 or not before or not after:
        return None
    seen = [sum(_seen(steps, ledger) for _, steps, ledger in side) for side in (before, after)]
    return paired(
        *(_mean([tally(*each) for each in side]) for side in (before, after)),
        on="kernels" if devices == {"gpu"} else "operators",
        slack=min(MOST_SLACK, sum(1 / count for count in seen)),
    )


def paired(before: Tally, after: Tally, *, on: str = "kernels", slack: float = 0.0) -> Matched:
    """Each kernel or operator with its like.

    `slack`: counts that differ by no more are no change. What comes now and then falls into the steps that are looked
    at, or beside them: once more or less on each side.
    """
    shared = before.keys() & after.keys()
    left, right = _by_name(before, shared), _by_name(after, shared)
    rows = [(key, before[key], after[key]) for key in shared]
    nothing = (0.0, 0.0)
    for name in {**left, **right}:
        gone, come = left.get(name, []), right.get(name, [])
        if gone and come:
            rows.append(((name, OTHER_SIZES), _total(before, gone), _total(after, come)))
            continue
        rows += [(key, before[key], nothing) for key in gone]
        rows += [(key, nothing, after[key]) for key in come]
    step_ns = max(sum(ns for _, ns in side.values()) for side in (before, after)) if rows else 0.0
    matches = [_match(key, one, other, step_ns, slack) for key, one, other in rows]
    matches.sort(key=lambda each: (-abs(each.difference_ns), -each.before_ns, each.name, each.sizes))
    return Matched(on=on, matches=tuple(matches))


def tally(run: Run, steps: Steps, ledger: Ledger) -> Tally:
    """How often each ran in a mean interior step, and for how long together."""
    name, sizes, took = _on_gpu(run, steps) if ledger.device == "gpu" else _on_cpu(run, steps)
    words, details = (run.event_rows.words("name").vocabulary, _vocabulary(run))
    groups = grouped((name.astype(np.int64) + 1) * (len(details) + 1) + sizes, took)
    count = _seen(steps, ledger)
    told: dict[Key, tuple[float, float]] = {}
    for code, times, total in zip(groups.code.tolist(), groups.count.tolist(), groups.total.tolist(), strict=True):
        word, detail = divmod(code, len(details) + 1)
        key = (words[word - 1] if word else "without a name", details[detail - 1] if detail else "")
        told[key] = (times / count, total / count)
    return told


def _on_gpu(run: Run, steps: Steps) -> tuple[Array, Ints, Ints]:
    work = device_work(run, main_device(run))
    call = calls_of(work)
    asked_ns = np.where(call >= 0, run.event_rows["start_ns"][call], work.start_ns)
    work = work.where(steps.by_host.in_interior(asked_ns))
    op = holders(run.event_rows, calls_of(work))
    sizes = _sizes(run, op) if len(run.shape_rows) else _grids(run, work.event)
    return work["name"], sizes, np.asarray(work["dur_ns"], np.int64)


def _on_cpu(run: Run, steps: Steps) -> tuple[Array, Ints, Ints]:
    index = np.flatnonzero(run.event_rows["kind"] == Kind.OP)
    index = index[steps.in_interior(run.event_rows["start_ns"][index])]
    ops = run.event_rows.where(index)
    return ops["name"], _sizes(run, index), innermost(ops).per_row_ns(len(ops))


def _seen(steps: Steps, ledger: Ledger) -> int:
    """In how many steps things are counted."""
    counted = steps.by_host if ledger.device == "gpu" else steps
    return max(1, int(counted.interior.sum()))


def _sizes(run: Run, event: Ints) -> Ints:
    """For each of these events a number that stands for its sizes, 0 where they were not recorded."""
    codes = np.full(len(run.event_rows) + 1, -1, np.int64)
    codes[run.shape_rows["event"]] = run.shape_rows["shapes"]
    return codes[event] + 1


def _grids(run: Run, event: Ints) -> Ints:
    grids = run.grid_rows.spread("grid", len(run.event_rows))[event]
    return np.where(grids >= 0, np.searchsorted(_known_grids(run), grids) + 1, 0)


def _known_grids(run: Run) -> Ints:
    known = np.unique(run.grid_rows["grid"])
    return np.asarray(known[known >= 0], np.int64)


def _vocabulary(run: Run) -> tuple[str, ...]:
    if len(run.shape_rows):
        return run.shape_rows.words("shapes").vocabulary
    return tuple(f"{grid} blocks" for grid in _known_grids(run).tolist())


def _mean(tallies: Sequence[Tally]) -> Tally:
    """Over the runs of a side."""
    summed: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for each in tallies:
        for key, (count, ns) in each.items():
            summed[key][0] += count / len(tallies)
            summed[key][1] += ns / len(tallies)
    return {key: (count, ns) for key, (count, ns) in summed.items()}


def _by_name(side: Tally, without: Collection[Key]) -> dict[str, list[Key]]:
    found: dict[str, list[Key]] = defaultdict(list)
    for key in side:
        if key not in without:
            found[key[0]].append(key)
    return found


def _total(side: Tally, keys: Sequence[Key]) -> tuple[float, float]:
    return sum(side[key][0] for key in keys), sum(side[key][1] for key in keys)


def _match(key: Key, one: tuple[float, float], other: tuple[float, float], step_ns: float, slack: float) -> Match:
    return Match(
        name=key[0],
        sizes=key[1],
        status=_status(key, one, other, step_ns, slack),
        before_count=one[0],
        after_count=other[0],
        before_ns=round(one[1]),
        after_ns=round(other[1]),
    )


def _status(key: Key, one: tuple[float, float], other: tuple[float, float], step_ns: float, slack: float) -> str:
    moved = abs(other[0] - one[0])
    if moved > slack and not (one[0] and other[0]):
        return ADDED if other[0] else REMOVED
    if key[1] == OTHER_SIZES or moved > max(slack, NOTABLE_COUNT_FRAC * max(one[0], other[0])):
        return CHANGED
    # What comes once more by chance takes its time: that is no change either.
    by_chance_ns = moved * max(ns / count for count, ns in (one, other) if count)
    moved_ns = abs(other[1] - one[1]) - by_chance_ns
    notable = moved_ns > NOTABLE_NS_FRAC * one[1] and moved_ns > NOTABLE_STEP_FRAC * step_ns
    return CHANGED if notable else SAME
