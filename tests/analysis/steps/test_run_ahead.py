"""A host that runs ahead of its GPU: marks lie as close as the calls do, and the step is what the GPU makes it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.analysis.steps.run_ahead import find_gpu_steps
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from tests.support.runs.made_runs import event, on_gpu
from tests.support.runs.simulated_machine import Call, Setup, loops, run_like, simulate, step_ms
from tests.support.tiers import examples

FEW_LARGE = [Call(host_us=10.0, kernel_us=4000.0)] * 5


def test_a_step_of_few_large_kernels_takes_as_long_as_the_gpu_needs():
    run_steps = find_steps(run_like(FEW_LARGE, steps=8))
    assert run_steps.step_ns / 1e6 == pytest.approx(step_ms(FEW_LARGE), rel=0.01)
    assert run_steps.host_steps.step_ns / 1e6 == pytest.approx(0.07, rel=0.01), "as close as the calls"


def test_the_ledger_of_a_run_ahead_loop_is_busy():
    run = run_like(FEW_LARGE, steps=8)
    run_ledger = build_ledger(run, find_steps(run))
    assert run_ledger.busy_frac > 0.99
    assert run_ledger.median_ns("matmul") / 1e6 == pytest.approx(20.0, rel=0.01)


def test_gpu_steps_are_adjacent_and_contain_the_work_they_launched():
    run = run_like(FEW_LARGE, steps=8)
    run_steps = find_steps(run)
    assert np.array_equal(run_steps.start_ns[1:], run_steps.end_ns[:-1])
    kernels = run.event_rows.of_kind(EventKind.KERNEL)
    step_of_kernel = np.searchsorted(run_steps.start_ns, kernels["start_ns"], side="right") - 1
    assert np.bincount(step_of_kernel[step_of_kernel >= 0]).tolist() == [5] * len(run_steps)


def test_a_loop_that_waits_in_every_step_keeps_the_steps_of_its_marks():
    run_steps = find_steps(run_like([*FEW_LARGE, Call(waits=True)], steps=8))
    assert run_steps.host is None
    assert run_steps.step_ns / 1e6 == pytest.approx(step_ms([*FEW_LARGE, Call(waits=True)]), rel=0.01)


def test_steps_that_only_fill_the_launch_queue_are_no_steps_of_the_gpu():
    """600 launches in a step, 1,000 in the queue: the first steps last as long as their calls, the others wait."""
    full = [Call(host_us=10.0, kernel_us=40.0)] * 600
    run_steps = find_steps(run_like(full, steps=10))
    assert run_steps.host is not None
    assert run_steps.host.dur_ns[0] < 0.5 * run_steps.dur_ns[0]
    assert run_steps.dur_ns[run_steps.recorded] / 1e6 == pytest.approx([24.6] * 9, rel=0.01)


def test_a_replay_reproduces_the_gpu_step_and_faster_kernels_shorten_it():
    run = run_like(FEW_LARGE, steps=8)
    run_steps = find_steps(run)
    ready = build_replay_model(run, run_steps, build_ledger(run, run_steps))
    free = predict(ready, parse_changes("instant_gpu"))
    assert free.step_ns / 1e6 == pytest.approx(20.0, rel=0.02)
    assert free.best_ns < 0.1 * free.step_ns


def test_the_diagnosis_is_about_kernels_and_uses_the_gpu_step():
    first = diagnose(run_like(FEW_LARGE, steps=8)).first
    assert first.rule == "no_tf32"
    assert first.gain.step_ns / 1e6 == pytest.approx(20.0, rel=0.01)


@pytest.mark.parametrize("count", [3, 4, 5, 6, 9])
def test_the_gpu_step_is_found_with_few_steps(count):
    run_steps = find_steps(run_like(FEW_LARGE, steps=count))
    assert run_steps.step_ns / 1e6 == pytest.approx(step_ms(FEW_LARGE), rel=0.01)


@pytest.mark.parametrize("behind_ns", [70 * 10**6, 10**6])
def test_on_a_virtual_gpu_far_behind_its_host_a_smaller_difference_is_no_noise(behind_ns):
    host_ns = np.array([2, 60, 65]) * 10**6
    end_ns = np.cumsum(host_ns)
    finished_ns = end_ns[-1] + behind_ns + np.arange(-3, 1) * 65 * 10**6
    steps = [
        find_gpu_steps(finished_ns, end_ns - host_ns, end_ns, computed=is_computed) for is_computed in (True, False)
    ]
    assert [each is not None for each in steps] == [behind_ns > 65 * 10**6 / 2, False]


def in_parts(calls, *counts, rest=30):
    """The run of a loop that was recorded in parts of these numbers of steps, with unrecorded steps between them."""
    events, windows, at_ms = [], [], 0.0
    for count in counts:
        part, _ = simulate(calls, count, Setup())
        ends_ms = max(each["start_ns"] + each["dur_ns"] for each in part) / 1e6
        number = len(events) + 1
        events += [
            {
                **each,
                "start_ns": each["start_ns"] + round(at_ms * 1e6),
                "correlation": each["correlation"] + number if each["correlation"] >= 0 else -1,
            }
            for each in part
        ]
        host_ms = max(each["start_ns"] + each["dur_ns"] for each in part if each["kind"] == EventKind.STEP) / 1e6
        windows.append((at_ms, at_ms + host_ms))
        first_ms, at_ms = at_ms + host_ms, at_ms + ends_ms + 5.0
        plain_ms = (at_ms - first_ms) / rest
        events += [event(EventKind.STEP, "ProfilerStep#0", first_ms + n * plain_ms, plain_ms) for n in range(rest)]
    return on_gpu(events, windows=windows)


@pytest.mark.parametrize("counts", [(8,), (1, 8), (1, 8, 5), (1, 4, 4, 4)])
def test_the_gpu_step_is_found_in_each_recorded_part(counts):
    run_steps = find_steps(in_parts(FEW_LARGE, *counts))
    assert run_steps.traced_ns / 1e6 == pytest.approx(step_ms(FEW_LARGE), rel=0.01)
    assert (run_steps.dur_ns[run_steps.interior] / 1e6) == pytest.approx(step_ms(FEW_LARGE), rel=0.01)
    assert run_steps.host is not None


@pytest.mark.parametrize("counts", [(1, 8), (1, 5, 5)])
def test_a_loop_that_waits_keeps_the_steps_of_its_marks_in_each_recorded_part(counts):
    waiting = [*FEW_LARGE, Call(waits=True)]
    run_steps = find_steps(in_parts(waiting, *counts))
    assert run_steps.host is None
    assert run_steps.traced_ns / 1e6 == pytest.approx(step_ms(waiting), rel=0.01)


def test_a_few_queue_filling_steps_do_not_change_the_step_time():
    # A queue of 12 takes two steps of five launches at once; the third waits for most of what it calls for.
    run_steps = find_steps(run_like(FEW_LARGE, steps=8, queue=12))
    assert run_steps.dur_ns[3:] / 1e6 == pytest.approx([20.0] * len(run_steps.dur_ns[3:]), rel=0.01)
    assert run_steps.step_ns / 1e6 == pytest.approx(20.0, rel=0.01)


def test_the_report_says_that_the_steps_are_those_of_the_gpu():
    assert "the host ran ahead" in " ".join(repr(report(run_like(FEW_LARGE, steps=8))).split())
    assert "ran ahead" not in repr(report(run_like([*FEW_LARGE, Call(waits=True)], steps=8)))


def test_a_step_without_launches_gives_no_gpu_steps():
    events, _ = simulate(FEW_LARGE, 6, Setup())
    ends = max(each["start_ns"] + each["dur_ns"] for each in events) / 1e6
    idle = [event(EventKind.STEP, f"ProfilerStep#{n}", ends + n, 1.0) for n in range(6, 9)]
    assert find_steps(on_gpu([*events, *idle])).host is None


@examples(60)
@given(calls=loops(), count=st.integers(6, 12))
def test_no_step_is_shorter_than_the_work_of_the_gpu_in_it(calls, count):
    run = run_like(calls, steps=count)
    kernels = run.event_rows.of_kind(EventKind.KERNEL)
    work_ns = int(kernels["dur_ns"].sum()) / count
    # The queue may fill in the midst of so few steps; but by more than the margin no step is too short.
    assert find_steps(run).step_ns >= 0.9 * work_ns
