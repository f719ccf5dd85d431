"""Match the kernels (or CPU operators) of two sides: added, removed, changed, same.

They are matched by name and by input sizes if recorded, else by grid size. Without a match of the same size, they are
matched by name only, as "other sizes".

GPU work belongs to the step that launched it, also if it runs in an earlier or later step of the GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.events.enclosing_operators import enclosing_operators
from gpulab.analysis.events.group_statistics import group_by_code
from gpulab.analysis.events.nesting import innermost
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Ints
from gpulab.rows import Array
from gpulab.run import Run
from gpulab.tables import EventKind

ADDED, REMOVED, CHANGED, SAME = "added", "removed", "changed", "same"
OTHER_SIZES = "other sizes"
NOTABLE_COUNT_FRAC = 0.02  # relative change of count from which it is a change
NOTABLE_NS_FRAC = 0.1  # relative change of time; CPU operators differ by 5 % from run to run
NOTABLE_STEP_FRAC = 0.005  # minimum change of time, as a share of all work of a step
MAX_SLACK = 0.5  # one more or less in every step is a change, however few steps there are

Key = tuple[str, str]  # name; sizes or grid, "" if unknown
Tally = Mapping[Key, tuple[float, float]]  # count and ns per step


@dataclass(frozen=True, kw_only=True)
class Match:
    """One kernel or operator of both sides; figures per step."""

    name: str
    sizes: str  # its input sizes or grid; "" if unknown
    status: str  # added, removed, changed or same
    before_count: float
    after_count: float
    before_ns: int
    after_ns: int

    @property
    def difference_ns(self) -> int:
        """Time after minus time before."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, kw_only=True)
class WorkChanges:
    """All matches, largest difference first. Every kernel or operator of a step is in exactly one match."""

    unit: str  # "kernels" (including copies and memsets) or "operators" (by self time)
    matches: tuple[Match, ...]

    def of_status(self, status: str) -> tuple[Match, ...]:
        """Return the matches of this status."""
        return tuple(each for each in self.matches if each.status == status)

    @property
    def before_ns(self) -> int:
        """Total time per step before."""
        return sum(each.before_ns for each in self.matches)

    @property
    def after_ns(self) -> int:
        """Total time per step after."""
        return sum(each.after_ns for each in self.matches)


Recorded = tuple[Run, Steps, Ledger]


def match_work(before: Sequence[Recorded], after: Sequence[Recorded]) -> WorkChanges | None:
    """Match the work of both sides in interior steps; None if only one side ran on a GPU."""
    devices = {ledger.device for _, _, ledger in (*before, *after)}
    if len(devices) != 1 or not before or not after:
        return None
    step_counts = [sum(_step_count(steps, ledger) for _, steps, ledger in side) for side in (before, after)]
    return match_tallies(
        *(_mean([tally(*each) for each in side]) for side in (before, after)),
        on="kernels" if devices == {"gpu"} else "operators",
        slack=min(MAX_SLACK, sum(1 / count for count in step_counts)),
    )


def match_tallies(before: Tally, after: Tally, *, on: str = "kernels", slack: float = 0.0) -> WorkChanges:
    """Match two tallies.

    `slack`: count differences up to this are no change. Rare work falls into the interior steps or not by chance: one
    more or less on each side.
    """
    shared = before.keys() & after.keys()
    before_keys, after_keys = _by_name(before, shared), _by_name(after, shared)
    rows = [(key, before[key], after[key]) for key in shared]
    none = (0.0, 0.0)
    for name in {**before_keys, **after_keys}:
        removed, added = before_keys.get(name, []), after_keys.get(name, [])
        if removed and added:
            rows.append(((name, OTHER_SIZES), _total(before, removed), _total(after, added)))
            continue
        rows += [(key, before[key], none) for key in removed]
        rows += [(key, none, after[key]) for key in added]
    step_ns = max(sum(ns for _, ns in side.values()) for side in (before, after)) if rows else 0.0
    matches = [_match(key, one, other, step_ns, slack) for key, one, other in rows]
    matches.sort(key=lambda match: (-abs(match.difference_ns), -match.before_ns, match.name, match.sizes))
    return WorkChanges(unit=on, matches=tuple(matches))


def tally(run: Run, steps: Steps, ledger: Ledger) -> Tally:
    """Return count and total time of each kernel or operator in a mean interior step."""
    name, sizes, durations_ns = _on_gpu(run, steps) if ledger.device == "gpu" else _on_cpu(run, steps)
    names, details = (run.event_rows.text("name").vocabulary, _vocabulary(run))
    groups = group_by_code((name.astype(np.int64) + 1) * (len(details) + 1) + sizes, durations_ns)
    count = _step_count(steps, ledger)
    result: dict[Key, tuple[float, float]] = {}
    for code, occurrences, total in zip(
        groups.code.tolist(), groups.count.tolist(), groups.total.tolist(), strict=True
    ):
        name_code, detail_code = divmod(code, len(details) + 1)
        key = (names[name_code - 1] if name_code else "without a name", details[detail_code - 1] if detail_code else "")
        result[key] = (occurrences / count, total / count)
    return result


def _on_gpu(run: Run, steps: Steps) -> tuple[Array, Ints, Ints]:
    work = device_work(run, main_device(run))
    call = launch_calls(work)
    launch_ns = np.where(call >= 0, run.event_rows["start_ns"][call], work.start_ns)
    work = work.select(steps.host_steps.interior_mask(launch_ns))
    op = enclosing_operators(run.event_rows, launch_calls(work))
    sizes = _sizes(run, op) if len(run.shape_rows) else _grids(run, work.event_rows)
    return work["name"], sizes, np.asarray(work["dur_ns"], np.int64)


def _on_cpu(run: Run, steps: Steps) -> tuple[Array, Ints, Ints]:
    index = np.flatnonzero(run.event_rows.is_kind(EventKind.OP))
    index = index[steps.interior_mask(run.event_rows["start_ns"][index])]
    ops = run.event_rows.select(index)
    return ops["name"], _sizes(run, index), innermost(ops).per_row_ns(len(ops))


def _step_count(steps: Steps, ledger: Ledger) -> int:
    """Return the number of steps counted."""
    counted = steps.host_steps if ledger.device == "gpu" else steps
    return max(1, int(counted.interior.sum()))


def _sizes(run: Run, event: Ints) -> Ints:
    """Return, for each of these events, a code of its input sizes; 0 if not recorded."""
    codes = np.full(len(run.event_rows) + 1, -1, np.int64)
    codes[run.shape_rows["event"]] = run.shape_rows["shapes"]
    return codes[event] + 1


def _grids(run: Run, event: Ints) -> Ints:
    grids = run.grid_rows.per_event("grid", len(run.event_rows))[event]
    return np.where(grids >= 0, np.searchsorted(_known_grids(run), grids) + 1, 0)


def _known_grids(run: Run) -> Ints:
    grids = np.unique(run.grid_rows["grid"])
    return np.asarray(grids[grids >= 0], np.int64)


def _vocabulary(run: Run) -> tuple[str, ...]:
    if len(run.shape_rows):
        return run.shape_rows.text("shapes").vocabulary
    return tuple(f"{grid} blocks" for grid in _known_grids(run).tolist())


def _mean(tallies: Sequence[Tally]) -> Tally:
    """Return the mean tally over the runs of a side."""
    summed: dict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for run_tally in tallies:
        for key, (count, ns) in run_tally.items():
            summed[key][0] += count / len(tallies)
            summed[key][1] += ns / len(tallies)
    return {key: (count, ns) for key, (count, ns) in summed.items()}


def _by_name(side: Tally, without: Collection[Key]) -> dict[str, list[Key]]:
    keys: dict[str, list[Key]] = defaultdict(list)
    for key in side:
        if key not in without:
            keys[key[0]].append(key)
    return keys


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
    count_change = abs(other[0] - one[0])
    if count_change > slack and not (one[0] and other[0]):
        return ADDED if other[0] else REMOVED
    if key[1] == OTHER_SIZES or count_change > max(slack, NOTABLE_COUNT_FRAC * max(one[0], other[0])):
        return CHANGED
    # The time of one more by chance is no change either.
    by_chance_ns = count_change * max(ns / count for count, ns in (one, other) if count)
    time_change_ns = abs(other[1] - one[1]) - by_chance_ns
    notable = time_change_ns > NOTABLE_NS_FRAC * one[1] and time_change_ns > NOTABLE_STEP_FRAC * step_ns
    return CHANGED if notable else SAME
