"""What a loop would take without workers, by its speed while they are idle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulab.analysis.data.idle_workers import without_workers
from gpulab.analysis.steps.detection import find_steps
from gpulab.tables import MarkKind
from tests.support.runs.made_loading_runs import WORKERS
from tests.support.runs.made_runs import MS, mark, run_of

FETCH_MS, LOADING_MS = 2.0, 10
MEASURED = replace(WORKERS, prefetch_factor=2, worker_batch_cpu_ns=LOADING_MS * MS, worker_wait_ns=0, worker_starts=3)


def loop(*, beside_ms=100.0, idle_ms=60.0, passes=3, batches=12, loader=MEASURED, ends=True, late_ms=0.0, **more):
    """Passes whose last four batches are computed while the workers are idle."""
    marks, at = [], 0.0
    for epoch in range(passes):
        for batch in range(batches):
            marks.append(mark(at, FETCH_MS, epoch=epoch))
            is_idle = batch >= batches - 4
            at += FETCH_MS + (idle_ms if is_idle else beside_ms)
            marks.append(mark(at - 1, 0, kind=MarkKind.OPTIMIZER))
        if ends:
            marks.append(mark(at, FETCH_MS, epoch=epoch, yielded=False))
            at += FETCH_MS
        at += late_ms
    return run_of([], marks=marks, loaders=[loader], **{"windows": (), **more})


def times_of(run):
    return without_workers(run, find_steps(run), None)


def test_a_batch_takes_as_long_as_beside_idle_workers_and_its_loading():
    times = times_of(loop())
    assert (times.idle_ns, times.crowded_ns) == (60 * MS, pytest.approx((8 * 100 + 4 * 60) / 12 * MS))
    assert times.now_ns == pytest.approx(3 * (8 * 102 + 4 * 62 + 2) * MS)
    assert times.best_ns == pytest.approx(36 * (60 + 0.4 * LOADING_MS) * MS)
    assert times.worst_ns == pytest.approx(36 * (1.05 * 60 + 0.9 * LOADING_MS) * MS)
    assert times.floor_ns == pytest.approx(36 * 60 * MS)
    assert times.as_slow_ns == pytest.approx(36 * times.crowded_ns)


def test_other_code_between_the_passes_remains():
    alone, with_more = times_of(loop()), times_of(loop(late_ms=500))
    for field in ("now_ns", "best_ns", "worst_ns", "floor_ns"):
        assert getattr(with_more, field) - getattr(alone, field) == pytest.approx(2 * 500 * MS)


def test_waits_of_workers_count_at_worst_only():
    alone, waiting = (times_of(loop(loader=replace(MEASURED, worker_wait_ns=ns))) for ns in (0, 30 * MS))
    assert waiting.best_ns == alone.best_ns
    assert waiting.worst_ns == pytest.approx(alone.worst_ns + 36 * 30 * MS)


def test_starting_the_workers_is_saved():
    started = times_of(loop(loader=replace(MEASURED, worker_start_ns=40 * MS), late_ms=40))
    assert started.now_ns == pytest.approx(times_of(loop()).now_ns + 3 * 40 * MS)
    assert started.worst_ns == pytest.approx(times_of(loop()).worst_ns)


def test_it_is_unknown_where_workers_were_not_measured_or_never_idle():
    assert times_of(loop(loader=WORKERS)) is None
    assert times_of(loop(loader=replace(MEASURED, workers=0))) is None
    assert times_of(loop(ends=False)) is None, "the loop leaves each pass early"
    assert times_of(loop(passes=1)) is None, "one pass has two such batches"


def test_a_framework_that_counts_the_batches_does_not_ask_for_the_end():
    counted = times_of(loop(ends=False, loader=replace(MEASURED, batches=12)))
    assert counted.idle_ns == times_of(loop()).idle_ns
    assert times_of(loop(ends=False, loader=replace(MEASURED, batches=40))) is None


def test_batches_that_the_profiler_or_an_evaluation_lengthens_do_not_count():
    plain = times_of(loop())
    run = loop(windows=[(0, 1100)], pauses=[(1200, 1300)])
    times = times_of(run)
    assert times.idle_ns == plain.idle_ns
    assert times.now_ns == pytest.approx(plain.now_ns - 100 * MS, rel=0.02)


def test_if_the_profiler_records_all_batches_they_count():
    plain = loop()
    assert times_of(loop(windows=[(0, plain.span_ns / MS)])).worst_ns == times_of(plain).worst_ns
