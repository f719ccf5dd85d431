"""How ranks on one machine share its cores, from made operators whose times are known."""

from types import SimpleNamespace

import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.replay.job.shared_machine import shared_machine
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped

MS = 1e6
STEP_MS, STEPS_OF_A_PART = 100.0, 4


def recorded_in_two_parts(operator_starts_ms, operator_ms, *, pause_ms):
    """A rank with one operator in each step, traced in two parts of four steps with a pause between them."""
    part = stepped(
        lambda at_ms: [event(EventKind.OP, "aten::mm", at_ms + operator_starts_ms, operator_ms)],
        count=STEPS_OF_A_PART,
        step_ms=STEP_MS,
    )
    part_ms = STEPS_OF_A_PART * STEP_MS
    second_ms = part_ms + pause_ms
    events = part + [{**each, "start_ns": each["start_ns"] + round(second_ms * MS)} for each in part]
    return run_of(events, windows=[(0, part_ms), (second_ms, second_ms + part_ms)], cores=2.0)


def machine_of(*runs, offset_ms=(0.0, 0.0)):
    graphs = tuple(SimpleNamespace(run=run, steps=find_steps(run)) for run in runs)
    return shared_machine(SimpleNamespace(graphs=graphs, offset_ns=[offset * MS for offset in offset_ms]))


@pytest.mark.parametrize("pause_ms", [0.0, 300.0, 10_000.0])
def test_times_per_step_do_not_depend_on_the_pause_between_traced_parts(pause_ms):
    early = recorded_in_two_parts(10.0, 60.0, pause_ms=pause_ms)
    late = recorded_in_two_parts(50.0, 40.0, pause_ms=pause_ms)
    machine = machine_of(early, late)
    assert machine.alone_ns == pytest.approx(20 * MS)  # from 70 to 90 ms; the other rank is alone from 10 to 50 ms
    assert machine.capacity_ns == pytest.approx((60 + 40) / 2 * MS)


def test_operators_are_compared_on_one_clock():
    run = recorded_in_two_parts(20.0, 30.0, pause_ms=300.0)
    assert machine_of(run, run).alone_ns == 0
    assert machine_of(run, run, offset_ms=(0.0, 10.0)).alone_ns == pytest.approx(10 * MS)
