"""What-ifs about the loop's own Python and about garbage, on a GPU and on a CPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict
from gpulab.tables import STALLS, EventKind
from tests.support.runs.made_loading_runs import kernel
from tests.support.runs.made_runs import MS, event, rows, run_of, stall, stepped
from tests.support.tiers import examples

law = examples(30)  # a replay or two each


def predicted(run, spec, samples=12):
    run_steps = find_steps(run)
    return predict(
        build_replay_model(run, run_steps, build_ledger(run, run_steps)), parse_changes(spec), samples=samples
    )


def preparing(python_ms, *, on_gpu=False, **more):
    """Ten steps of 100 ms: so long in Python, then an operator, on a GPU with its kernel and a wait for that."""

    def one(at):
        left = 100 - python_ms
        if not on_gpu:
            return [event(EventKind.OP, "aten::mm", at + python_ms, left)]
        number = int(at) + 1
        call = event(EventKind.LAUNCH, "cudaLaunchKernel", at + python_ms, 0.01, correlation=number)
        wait = event(EventKind.SYNC, "cudaDeviceSynchronize", at + python_ms + 0.02, left - 0.03)
        work = {**kernel(at + python_ms + 0.02, left - 0.06), "correlation": number}
        return [event(EventKind.OP, "aten::mm", at + python_ms - 0.01, left), call, wait, work]

    return run_of(stepped(one, count=10), **more)


loops = st.builds(preparing, st.floats(3, 90), on_gpu=st.booleans())


@law
@given(loops, st.floats(0, 3), st.floats(0, 2))
def test_dearer_python_never_makes_a_step_shorter(run, factor, more):
    one, other = (predicted(run, f"python={each}", samples=3) for each in (factor, factor + more))
    assert one.likely_ns <= other.likely_ns + 1


@law
@given(loops)
def test_python_that_takes_as_long_as_it_does_changes_nothing(run):
    prediction = predicted(run, "python=1", samples=3)
    assert prediction.likely_ns == pytest.approx(prediction.step_ns, rel=1e-6)


@law
@given(loops, st.floats(0, 1))
def test_no_python_is_the_least_that_cheaper_python_gives(run, factor):
    without, less = predicted(run, "no_python"), predicted(run, f"python={factor}")
    assert without.floor_ns <= without.likely_ns <= less.likely_ns + 1 <= less.step_ns + 2
    assert without.floor_ns == less.floor_ns


@law
@given(loops)
def test_changes_of_python_and_of_garbage_can_be_named_in_any_order(run):
    one, other = (
        predicted(run, spec, samples=3).likely_ns for spec in ("python=0.5 no_python", "no_python python=0.5")
    )
    assert one == other


def test_python_that_is_moved_out_leaves_the_device_what_it_does():
    prediction = predicted(preparing(40, on_gpu=True), "no_python", samples=100)
    assert prediction.floor_ns == pytest.approx(60 * MS, rel=0.01)
    assert prediction.floor_ns <= prediction.likely_ns < 61 * MS


def test_python_that_is_moved_out_leaves_a_cpu_its_operators_which_may_be_faster_undisturbed():
    prediction = predicted(preparing(40), "no_python", samples=100)
    assert prediction.floor_ns < 60 * MS
    assert prediction.likely_ns < 61 * MS


def test_moving_python_is_refused_if_steps_have_none():
    with pytest.raises(RunError, match="Python code >="):
        predicted(preparing(0.1), "no_python")


def collected(*, every, took_ms=30.0):
    stalls = [stall(100 * step + 5, took_ms) for step in range(0, 10, every)]
    return preparing(40, stall_rows=rows(STALLS, stalls))


def test_garbage_that_is_not_collected_gives_its_time_back():
    prediction = predicted(collected(every=1), "no_gc", samples=100)
    assert prediction.floor_ns <= prediction.likely_ns <= 70 * MS
    assert prediction.worst_ns > 60 * MS
    assert prediction.limit is None


def test_occasional_garbage_collection_does_not_change_the_typical_step():
    with pytest.raises(RunError, match="of 8 steps"):
        predicted(collected(every=4), "no_gc")


def test_without_collections_there_is_none_to_switch_off():
    with pytest.raises(RunError, match="garbage"):
        predicted(preparing(40), "no_gc")
