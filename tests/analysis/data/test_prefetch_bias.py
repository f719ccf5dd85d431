"""Steps that took batches which queued up while the profiler stopped do not tell what a step costs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.rules import diagnose
from gpulab.run import Loader
from gpulab.views.report.provenance import provenance
from tests.support.runs.made_runs import MS, mark, run_of

READY_MS = 0.2  # what a call takes that finds its batch ready


def fed(*, workers, prefetch, batch_ms, step_ms, recorded_ms, count, warm=6, recorded=14, stop_ms=500.0):
    """A loop played batch by batch: worker k mod n builds batch k, asked for when batch k - n * prefetch is taken.

    The profiler's start takes 1 ms, before step `warm`; its stop `stop_ms`, `recorded` steps later.
    """
    ahead, free_at = workers * prefetch, [0.0] * workers
    requested_at, marks, pauses, now = [0.0] * ahead, [], [], 0.0
    for number in range(count):
        pause_ms = {warm: 1.0, warm + recorded: stop_ms}.get(number)
        if pause_ms is not None:
            pauses.append((now, now + pause_ms))
            now += pause_ms + 0.01
        worker = number % workers
        free_at[worker] = max(free_at[worker], requested_at[number]) + batch_ms
        ready_at = max(now + READY_MS, free_at[worker])
        marks.append(mark(now, ready_at - now))
        now = ready_at
        requested_at.append(now)
        now += recorded_ms if warm <= number < warm + recorded else step_ms
    loader = Loader(workers=workers, batch_size=8, prefetch_factor=prefetch)
    window = (pauses[0][1], pauses[1][0]) if len(pauses) > 1 else (pauses[0][1], now)
    return run_of(marks=marks, windows=[window], pauses=pauses, loaders=[loader])


def told_ms(**of):
    run_steps = find_steps(fed(**of))
    return None if run_steps.unprofiled_ns is None else run_steps.unprofiled_ns / MS


def test_with_slow_workers_the_step_time_is_the_time_they_need_per_batch():
    loop = {"workers": 4, "prefetch": 2, "batch_ms": 80.0, "step_ms": 8.0, "recorded_ms": 9.0}
    assert told_ms(**loop, count=60) == pytest.approx(20.0, rel=0.02)
    assert told_ms(**loop, count=46) == pytest.approx(20.0, rel=0.02), "half of them were free"


def test_a_queue_that_is_refilled_lasts_longer_than_its_length():
    """Steps of 16 ms against a batch every 20: eight batches last 8 / (1 - 16 / 20) = 40 steps."""
    loop = {"workers": 4, "prefetch": 2, "batch_ms": 80.0, "step_ms": 16.0, "recorded_ms": 17.0}
    assert told_ms(**loop, count=100) == pytest.approx(20.0, rel=0.02)
    assert told_ms(**loop, count=45) is None, "all that ran without the profiler took from the queue"


def test_with_fast_workers_unprofiled_steps_count():
    loop = {"workers": 2, "prefetch": 2, "batch_ms": 10.0, "step_ms": 20.0, "recorded_ms": 24.0}
    assert told_ms(**loop, count=40) == pytest.approx(20.0 + READY_MS)


def test_too_few_steps_after_the_queue_give_no_unprofiled_step_time():
    run = fed(workers=4, prefetch=2, batch_ms=80.0, step_ms=8.0, recorded_ms=9.0, count=31)
    run_steps = find_steps(run)
    assert (run_steps.unprofiled_ns, run_steps.profiler_overhead) == (None, None)
    assert run_steps.prefetch_biased == 8
    facts = dict(provenance(diagnose(run))[0].rows)
    assert re.search(r"too few.*\b8 do not count", facts["step time"])


def test_without_workers_there_is_no_prefetch_bias():
    marks = [mark(20.0 * number, 12.0) for number in range(40)]
    run = run_of(marks=marks, windows=[(121, 400)], pauses=[(119, 119.9), (401, 419)], loaders=[Loader(workers=0)])
    assert (find_steps(run).prefetch_biased, find_steps(run).unprofiled_ns) == (0, 20 * MS)


def test_a_new_pass_after_the_recording_starts_with_an_empty_queue():
    first = [mark(20.0 * number, 0.2) for number in range(20)]
    end = [mark(400.0, 0.1, yielded=False)]
    second = [mark(500.0 + 20.0 * number, 0.2, epoch=1) for number in range(20)]
    loader = Loader(workers=1, prefetch_factor=4)
    run = run_of(marks=first + end + second, windows=[(101, 399)], pauses=[(401, 499)], loaders=[loader])
    assert find_steps(run).prefetch_biased == 0


@given(
    workers=st.integers(1, 4),
    prefetch=st.integers(1, 4),
    pace=st.floats(0.1, 3.0),
    count=st.integers(24, 120),
    stop_ms=st.floats(0.0, 2000.0),
)
def test_the_unprofiled_step_time_is_right_or_absent(workers, prefetch, pace, count, stop_ms):
    """However fast the loop is beside its workers: its own pace or theirs, whichever is slower."""
    supply_ms = 20.0
    step_ms = pace * supply_ms
    step_time_ms = told_ms(
        workers=workers,
        prefetch=prefetch,
        batch_ms=supply_ms * workers,
        step_ms=step_ms,
        recorded_ms=1.05 * step_ms,
        count=count,
        stop_ms=stop_ms,
    )
    assert step_time_ms is None or step_time_ms == pytest.approx(max(supply_ms, step_ms + READY_MS), rel=0.12)
