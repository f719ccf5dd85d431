"""What happened to a GPU during a run, from its sensors: when, how long, and whether steps were longer then."""

from __future__ import annotations

import pytest

from gpulab import report, timeline
from gpulab.analysis.machine.gpu_events import gpu_events
from gpulab.analysis.steps.detection import find_steps
from gpulab.run import Gpu, Machine
from gpulab.tables import GPU_SAMPLES, EventKind
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

HEAT, POWER_CAP = 0x20, 0x4
NAN = float("nan")
GIB = 2**30


def run(*, bits=lambda at: 0, others=lambda at: 0.0, errors=lambda at: NAN, until_ms=4000, step_ms=100.0, count=40):
    unknown = {column.name: NAN for column in GPU_SAMPLES.columns}
    samples = [
        {**unknown, "at_ns": at * MS, "late_ns": 0, "device": 0, "throttle_bits": float(bits(at)),
         "others_memory_bytes": float(others(at)), "util_frac": 0.9, "ecc_uncorrected": float(errors(at))}
        for at in range(0, until_ms, 100)
    ]  # fmt: skip
    events = stepped(lambda at: [event(EventKind.KERNEL, "gemm", at, 90)], count=count, step_ms=step_ms)
    machine = Machine(gpus=(Gpu(index=0, name="Made GPU"),), cores_allowed=8.0)
    return run_of(events, gpu_rows=rows(GPU_SAMPLES, samples), machine=machine)


def events_of(made):
    return gpu_events(made, find_steps(made))


def test_throttling_has_its_reason_and_its_times():
    (heat,) = events_of(run(bits=lambda at: HEAT if 1000 <= at < 2000 else 0))
    assert (heat.kind, heat.label) == ("throttling", "heat")
    assert (heat.spans.start_ns.tolist(), heat.spans.end_ns.tolist()) == ([1000 * MS], [2000 * MS])


def test_two_episodes_are_one_kind():
    (heat,) = events_of(run(bits=lambda at: HEAT if at % 2000 < 500 else 0))
    assert len(heat.spans.start_ns) == 2


def test_another_process_is_an_event_from_its_arrival():
    (other,) = events_of(run(others=lambda at: 12 * GIB if at >= 2500 else 0))
    assert other.kind == "other process"
    assert other.spans.start_ns.tolist() == [2500 * MS]


def test_a_memory_error_is_an_event_when_its_counter_rises():
    (error,) = events_of(run(errors=lambda at: 3.0 if at < 1500 else 4.0))
    assert (error.kind, error.label) == ("memory error", "uncorrected memory errors")
    assert error.spans.start_ns.tolist() == [1500 * MS]


def test_a_display_server_is_no_event():
    assert events_of(run(others=lambda at: 90 * 2**20)) == ()


def test_readings_that_stop_mean_that_the_gpu_was_lost():
    (lost,) = events_of(run(until_ms=2000))
    assert (lost.kind, lost.spans.start_ns.tolist()) == ("lost", [1900 * MS])


def test_unknown_readings_are_no_event():
    assert events_of(run(bits=lambda at: NAN, others=lambda at: NAN)) == ()


def test_steps_within_are_compared_with_the_others():
    (heat,) = events_of(run(bits=lambda at: HEAT if at < 2000 else 0))
    assert heat.during_ns == pytest.approx(heat.outside_ns, rel=0.01)


def test_report_and_timeline_show_them():
    made = run(bits=lambda at: HEAT if 1000 <= at < 2000 else 0, others=lambda at: 12 * GIB if at >= 2500 else 0)
    text = repr(report(made))
    assert "throttled by heat" in text
    assert "another process holds memory" in text
    groups = [group for part in timeline(made).scene.sides for group in part.placed_groups]
    assert "gpu0:events" in {placed.group.id for placed in groups}
