"""Phases that the program named: gpulab.phase("validation"), or a callback of its framework."""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from gpulab.analysis.events.per_run import cached_by_run
from gpulab.intervals import Spans, covered_ns, no_spans, union
from gpulab.phase_names import means_evaluation
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

MOST_NAMES = 20  # more are no longer read, and take long to compute: a program may name every step
_MIN_MARKS = 3  # fewer are no loop: a batch taken to look at it


@cached_by_run
def phase_spans(run: Run) -> dict[str, Spans]:
    """Return the time of each of the `MOST_NAMES` longest named phases, in the order of their first begin.

    Where phases overlap, the latest counts: the spans of different names are disjoint.
    """
    rows = run.phase_rows
    order = np.lexsort((-rows["end_ns"], rows["start_ns"]))
    names = rows.text("name").to_list()
    spans: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    open_rows: list[tuple[int, int, str]] = []  # a heap: minus the position in `order`, end, name
    now_ns = 0

    def advance(until_ns: int) -> None:
        """Share out the time until then among the phases that are open."""
        nonlocal now_ns
        while open_rows and now_ns < until_ns:
            _, end_ns, name = open_rows[0]
            if end_ns <= now_ns:
                heapq.heappop(open_rows)
                continue
            stop_ns = min(end_ns, until_ns)
            spans[name].append((now_ns, stop_ns))
            now_ns = stop_ns
        now_ns = until_ns

    for position, row in enumerate(order):
        name = names[row]
        if name is None:
            continue
        advance(max(now_ns, min(int(rows["start_ns"][row]), run.span_ns)))
        heapq.heappush(open_rows, (-position, min(int(rows["end_ns"][row]), run.span_ns), name))
        spans[name]
    advance(run.span_ns)
    lengths = {name: sum(end_ns - start_ns for start_ns, end_ns in parts) for name, parts in spans.items()}
    longest = sorted(spans, key=lambda name: -lengths[name])[:MOST_NAMES]
    return {name: _union(spans[name]) for name in spans if name in longest}


def name_count(run: Run) -> int:
    """Return how many names of phases there are."""
    codes = run.phase_rows["name"]
    return len(np.unique(codes[codes >= 0]))


def named_ranges(run: Run, name: str) -> Spans:
    """Return all time within phases of this name, with the phases that they contain."""
    rows = run.phase_rows.select(run.phase_rows.matching(lambda word: word == name))
    return union(rows["start_ns"], rows["end_ns"])


def times_of_phase(run: Run, name: str) -> int:
    """Return how often a phase of this name began."""
    return int(run.phase_rows.matching(lambda word: word == name).sum())


@cached_by_run
def evaluation_spans(run: Run) -> Spans:
    """Return the time of the named evaluations in which no optimizer steps."""
    rows = run.phase_rows.select(run.phase_rows.matching(means_evaluation))
    updates = np.sort(run.mark_rows.of_kind(MarkKind.OPTIMIZER)["end_ns"])
    steps = np.searchsorted(updates, rows["end_ns"], side="right") - np.searchsorted(updates, rows["start_ns"])
    rows = rows.select(steps == 0)
    return union(rows["start_ns"], rows["end_ns"])


@cached_by_run
def loop_marks(run: Run) -> Rows:
    """Return the marks without batches of named evaluations; all marks if there is no other loop.

    A program that only evaluates has steps, too.
    """
    marks, spans = run.mark_rows, evaluation_spans(run)
    if not spans.total_ns:
        return marks
    start_ns = marks["start_ns"]
    evaluates = marks.is_kind(MarkKind.NEXT) & (covered_ns(spans, start_ns, start_ns + 1) > 0)
    return marks.select(~evaluates) if (~evaluates).sum() >= _MIN_MARKS else marks


def _union(parts: list[tuple[int, int]]) -> Spans:
    return union(*zip(*parts, strict=True)) if parts else no_spans()
