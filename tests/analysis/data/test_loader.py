"""What feeding costs, told apart: fetching or the rest, computing or waiting."""

import pytest

from gpulab.analysis.data.loader import loading_cost
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.run import Loader
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, NO_WORKERS, event, host_sample, loader_call, mark, run_of


def fed(marks, events=(), **more):
    run = run_of([*events, event(EventKind.OP, "aten::mm", 0, 0.1)], marks=marks, **more)
    run_steps = find_steps(run)
    return loading_cost(run, run_steps, build_ledger(run, run_steps))


def plain_loop(fetches, count=20, step_ms=100.0):
    """Marks and events of a loop whose last half was recorded; `fetches` are (offset, dur, cpu, loader)."""
    marks, events = [], []
    for number in range(count):
        at = number * step_ms
        for offset, dur, cpu, loader in fetches:
            # Of the whole process: 50 ms a step outside fetches, and in each fetch its own CPU and 5 ms of spinning.
            before = number * (50 + sum(cpu + 5 for _, _, cpu, _ in fetches))
            before += sum(cpu + 5 for o, _, cpu, _ in fetches if o < offset)
            marks.append(mark(at + offset, dur, loader=loader, cpu_ms=cpu, process_ms=before, within_ms=cpu + 5))
            events.append(loader_call(at + offset, dur))
        events.append(event(EventKind.OP, "aten::mm", at + 60, 30))
    return {"marks": marks, "events": events, "windows": [(count * step_ms / 2, count * step_ms)]}


def test_cpu_time_and_waiting_of_a_fetch_are_separated():
    computing = fed(**plain_loop([(0, 40, 39, 0)]), loaders=[NO_WORKERS])
    waiting = fed(**plain_loop([(0, 40, 1, 0)]), loaders=[NO_WORKERS])
    assert (computing.fetch_ns, computing.rest_ns) == (40 * MS, 60 * MS)
    assert computing.cpu_frac == pytest.approx(0.975)
    assert waiting.cpu_frac == pytest.approx(0.025)


def test_cpu_time_of_other_threads_during_a_fetch_does_not_count():
    assert fed(**plain_loop([(0, 40, 39, 0)]), loaders=[NO_WORKERS]).rest_cpu_ns == 50 * MS


def test_fetches_from_all_loaders_of_a_step_count():
    both = fed(**plain_loop([(0, 10, 9, 0), (12, 20, 19, 1)]), loaders=[NO_WORKERS, NO_WORKERS])
    assert both.fetch_ns == 30 * MS
    assert both.fetch_cpu_ns == 28 * MS
    assert both.exposed_ns == 30 * MS
    assert both.rest_cpu_ns == 50 * MS


def test_the_lower_bound_uses_the_fastest_steps():
    loop = plain_loop([(0, 40, 39, 0)])
    assert fed(**loop, loaders=[NO_WORKERS]).min_rest_ns == 60 * MS


def test_the_cpu_time_of_workers_is_per_batch():
    samples = [host_sample(at, workers=2.0, worker_cpu_s=at / 1000, workers_blocked=1.0) for at in range(0, 2000, 100)]
    loop = plain_loop([(0, 40, 1, 0)])
    loading = fed(**loop, loaders=[Loader(workers=2)], samples=samples)
    assert loading.worker_cpu_ns == pytest.approx(100 * MS, rel=0.06)
    assert loading.blocked_frac == 0.5


def test_without_a_loader_there_is_no_loading_cost():
    run = run_of([event(EventKind.OP, "aten::mm", 0, 5)])
    run_steps = find_steps(run)
    assert loading_cost(run, run_steps, build_ledger(run, run_steps)) is None
