"""The critical path of a step: as long as the step, without gaps; what is not on it may shrink without effect."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.replay.critical_path import KIND_LABELS, critical_path, scale_kind, shortening_gains
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, mark, run_of
from tests.support.runs.simulated_machine import Call, graph, loops, run_like
from tests.support.tiers import examples

LAUNCH_BOUND = [Call(host_us=40.0, kernel_us=5.0)] * 30
GPU_BOUND = [Call(host_us=10.0, kernel_us=60.0)] * 30
LOADING = [Call(loads_us=900.0), *[Call(host_us=10.0, kernel_us=60.0)] * 10, Call(waits=True)]
TWO_STREAMS = [Call(host_us=10.0, kernel_us=20.0), Call(host_us=10.0, kernel_us=90.0, stream=8)] * 10


def timed(run):
    return sweep(graph(run))


calls = loops((7, 7, 7, 8))


def check(path):
    """Segments follow one another without a gap, none is empty, and they are as long as the step."""
    for before, after in itertools.pairwise(path.segments):
        assert before.end_ns == after.start_ns
    assert all(each.dur_ns > 0 for each in path.segments)
    assert sum(path.by_kind.values()) == path.step_ns
    lengths = path.schedule.device_steps_ns if path.bound_by == "device" else path.schedule.host_steps_ns
    if path.schedule.graph.steps.detected_by != "whole run":
        assert path.step_ns == pytest.approx(float(lengths[path.step]), abs=2)


@examples(80)
@given(calls, st.floats(0.1, 3), st.floats(0.1, 3))
def test_the_path_is_as_long_as_the_step_whatever_was_changed(loop, gpu, host):
    base = timed(run_like(loop)).graph
    changed = base.with_device(dur_ns=base.device.dur_ns * gpu).with_host(call_ns=base.host.call_ns * host)
    changed = changed.scaled_before(dict.fromkeys(changed.host.before_ns, host))
    for step in (None, *range(len(base.step_start_node))):
        check(critical_path(sweep(changed), step))


@examples(60)
@given(calls, st.floats(0.0, 1.0))
def test_a_path_does_not_get_shorter_by_more_than_what_is_taken_from_it(loop, left):
    # A step that is measured on the host is its own path: work that is not on it may shrink without effect.
    base = timed(run_like(loop))
    path = critical_path(base)
    on_path = {segment.index for segment in path.segments if segment.on_device}
    off = np.array([work not in on_path for work in range(len(base.graph.device))])
    dur = np.where(off, base.graph.device.dur_ns * left, base.graph.device.dur_ns)
    begin = path.segments[0].start_ns
    then = sweep(base.graph.with_device(dur_ns=dur))
    last = path.segments[-1]
    end = then.device_end_ns[last.index] if last.on_device else then.node_end_ns[base.graph.step_end_node[path.step]]
    # Where it ends moves by no more than where it begins does.
    moved_ns = path.segments[-1].end_ns - end
    started = begin - min(then.node_end_ns[base.graph.step_start_node[path.step]], begin)
    assert moved_ns <= max(started, 0.0) + off_before(base, path, off, left) + 2


def off_before(base, path, off, left):
    """How much device work before the step was made shorter: the backlog that a step may inherit."""
    before = np.arange(len(off)) < base.graph.host.first_op[base.graph.step_start_node[path.step]]
    return float((base.graph.device.dur_ns * (1 - left))[before & off].sum())


def test_a_busy_gpu_decides_by_its_kernels_and_a_waiting_one_by_its_host():
    path = critical_path(timed(run_like(GPU_BOUND, steps=12)))
    assert path.by_kind["matmul"] > 0.95 * path.step_ns
    path = critical_path(timed(run_like(LAUNCH_BOUND, steps=12)))
    assert path.by_kind["dispatch"] + path.by_kind["glue"] + path.by_kind["launch"] > 0.95 * path.step_ns
    assert path.spans(on_device=True).total_ns < 0.02 * path.step_ns


def test_a_loop_that_waits_goes_through_loading_and_kernels_in_turn():
    path = critical_path(timed(run_like(LOADING, steps=12)))
    assert path.by_kind["loader"] == pytest.approx(900_000, abs=2_000)
    assert path.by_kind["matmul"] == pytest.approx(10 * 60_000, abs=2_000)
    kinds = [kind for kind, _ in itertools.groupby(each.kind for each in path.segments)]
    assert kinds.index("loader") < kinds.index("matmul")


def test_of_two_streams_the_slower_one_decides():
    base = timed(run_like(TWO_STREAMS, steps=12))
    path = critical_path(base)
    streams = base.graph.run.event_rows["stream"][base.graph.device.event]
    on_path = [streams[each.index] for each in path.segments if each.on_device and each.kind == "matmul"]
    assert np.mean(np.array(on_path) == 8) > 0.9


def test_on_a_cpu_the_path_is_the_track_itself():
    events, marks, at = [], [], 0.0
    for _ in range(10):
        events += [loader_call(at, 30.0), event(EventKind.OP, "aten::mm", at + 30.0, 20.0)]
        marks.append(mark(at, 30.0))
        at += 50.0
    path = critical_path(timed(run_of(events, marks=marks, loaders=[NO_WORKERS])))
    assert path.by_kind == {"loader": 30_000_000, "compute": 20_000_000}
    assert [(each.kind, each.on_device) for each in path.segments] == [("loader", False), ("compute", False)]


def test_what_would_shorten_it_is_replayed_not_read_off_the_path():
    balanced = [Call(loads_us=600.0), *[Call(host_us=10.0, kernel_us=59.0)] * 10]
    base = timed(run_like(balanced, steps=20))
    path = critical_path(base)
    gains = {lever.kind: lever for lever in shortening_gains(base, path)}
    for lever in gains.values():
        assert 0 <= lever.tenth_ns <= lever.all_ns + 1
        assert lever.all_ns <= base.host_device_step_ns
    # Host and GPU take the same time: taking away all of the one leaves the other.
    assert max(lever.all_ns for lever in gains.values()) < 0.2 * base.host_device_step_ns


def test_a_tenth_less_of_what_decides_alone_gives_a_tenth_of_it():
    base = timed(run_like(GPU_BOUND, steps=12))
    (best, *_) = shortening_gains(base, critical_path(base))
    assert best.kind == "matmul"
    assert best.tenth_ns == pytest.approx(0.1 * 30 * 60_000, rel=0.02)


@pytest.mark.parametrize("kind", ["matmul", "dispatch", "launch", "latency", "turn", "wait", "loader"])
def test_less_of_a_kind_never_makes_a_step_longer(kind):
    for loop in (LAUNCH_BOUND, GPU_BOUND, LOADING):
        base = timed(run_like(loop, steps=12))
        lengths = [sweep(scale_kind(base.graph, kind, left)).host_device_step_ns for left in (0.0, 0.5, 1.0)]
        assert lengths[0] <= lengths[1] + 1 <= lengths[2] + 2
        assert lengths[2] == base.host_device_step_ns


# Real runs.

EXPECTED = {
    "v100_ns_resolution": ({"matmul", "kernels"}, 0.9),
    "v100_resnet50_workers0": ({"loader", "dispatch", "glue", "launch"}, 0.9),
    "v100_resnet50_workers4": ({"dispatch", "glue", "launch"}, 0.85),
    "h100_bert_small_inference": ({"glue", "dispatch", "python", "launch"}, 0.95),
    "b200_eager": ({"glue", "dispatch", "python", "launch", "copy_call"}, 0.95),
    "mi300_compiled_triton": ({"matmul", "kernels"}, 0.9),
    "cpu_only_gloo": ({"communication"}, 0.8),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_path_of_a_real_run_goes_through_what_it_is_known_to_be_bound_by(name, recorded):
    base = timed(gpulab.load(recorded(f"{name}.json.gz")))
    path = critical_path(base)
    check(path)
    kinds, share = EXPECTED[name]
    assert sum(ns for kind, ns in path.by_kind.items() if kind in kinds) > share * path.step_ns
    assert set(path.by_kind) <= {part.key for part in base.graph.ledger.parts} | set(KIND_LABELS)


def test_the_first_resnet_run_waits_for_data_first_and_its_kernels_have_time_to_spare(recorded):
    base = timed(gpulab.load(recorded("v100_resnet50_workers0.json.gz")))
    path = critical_path(base)
    assert next(iter(path.by_kind)) == "loader"
    gains = {lever.kind: lever for lever in shortening_gains(base, path)}
    assert next(iter(gains)) == "loader"
    assert "matmul" not in gains or gains["matmul"].all_ns < 0.01 * base.own_ns
