"""A replay without change is the recording; with a change it is what a machine with that change would have done."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.replay.batched_sweep import steps_ns
from gpulab.replay.graph.calibration import calibrated, with_calling
from gpulab.replay.graph.graph import NONE
from gpulab.replay.prediction import scene
from gpulab.replay.quality import quality
from gpulab.replay.sweep import swept
from tests.support.runs.made_runs import run_of
from tests.support.runs.simulated_machine import Call, graph, loops, run_like, step_ms

LAUNCH_BOUND = [Call(host_us=40.0, kernel_us=5.0)] * 30
GPU_BOUND = [Call(host_us=10.0, kernel_us=60.0)] * 30
LOGGING = [*[Call(host_us=15.0, kernel_us=25.0)] * 20, Call(waits=True), Call(host_us=300.0, kernel_us=5.0)]
LOADING = [Call(loads_us=900.0), *[Call(host_us=10.0, kernel_us=60.0)] * 10, Call(waits=True)]
LOOPS = {"launch": LAUNCH_BOUND, "gpu": GPU_BOUND, "logging": LOGGING, "loading": LOADING}


calls = loops()


@settings(max_examples=60, deadline=None)
@given(calls)
def test_without_a_change_everything_is_where_it_was(loop):
    made = graph(run_like(loop))
    again = swept(made)
    assert np.abs(again.begins_ns - made.host.start_ns).max() < 2
    assert np.abs(again.device_end_ns - made.device.end_ns).max() < 2


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize(("gpu", "host"), [(0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0), (0.5, 2.0)])
def test_a_faster_or_slower_machine_is_what_such_a_machine_does(loop, gpu, host):
    made = graph(run_like(loop, steps=20))
    changed = made.with_device(dur_ns=made.device.dur_ns * gpu)
    changed = changed.with_host(call_ns=changed.host.call_ns * host)
    changed = changed.scaled_before(dict.fromkeys(changed.host.before_ns, host))
    assert swept(changed).step_ns / 1e6 == pytest.approx(step_ms(loop, gpu=gpu, host=host), rel=0.02)


def test_a_synchronisation_left_out_lets_the_host_run_ahead():
    made = graph(run_like(LOGGING, steps=20))
    free = made.with_host(awaited_op=np.full(len(made.host), NONE))
    assert swept(free).step_ns / 1e6 == pytest.approx(step_ms(LOGGING, blocking=False), rel=0.03)
    assert swept(free).step_ns < 0.9 * swept(made).step_ns


@pytest.mark.parametrize("gpu", [0.25, 0.5, 0.75])
def test_a_full_launch_queue_holds_the_host_back_until_the_gpu_is_faster_than_it(gpu):
    loop = [Call(host_us=5.0, kernel_us=40.0)] * 400  # 3200 launches, of which 1024 may be outstanding
    made = graph(run_like(loop, steps=8))
    assert (made.host.queue_op >= 0).any()
    faster = swept(made.with_device(dur_ns=made.device.dur_ns * gpu))
    assert faster.step_ns / 1e6 == pytest.approx(step_ms(loop, steps=20, gpu=gpu), rel=0.02)


def test_without_that_queue_a_busy_gpu_would_seem_to_be_limited_by_the_host():
    loop = [Call(host_us=5.0, kernel_us=40.0)] * 400
    made = graph(run_like(loop, steps=8))
    endless = made.with_host(
        queue_op=np.full(len(made.host), NONE), call_ns=np.diff(made.host.start_ns, append=0).clip(0)
    )
    half = endless.with_device(dur_ns=made.device.dur_ns / 2)
    assert swept(half).host_steps_ns[1:].mean() > 1.5 * step_ms(loop, steps=20, gpu=0.5) * 1e6


@settings(max_examples=30, deadline=None)
@given(calls, st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_what_costs_less_never_makes_a_step_longer(loop, one, other):
    made = graph(run_like(loop))
    low, high = sorted((one, other))
    for change in (
        lambda factor: made.with_device(dur_ns=made.device.dur_ns * factor),
        lambda factor: made.scaled_before({"dispatch": factor, "glue": factor, "python": factor}),
        lambda factor: made.scaled_before({"loader": factor}),
        lambda factor: made.with_host(call_ns=made.host.call_ns * factor),
    ):
        assert swept(change(low)).step_ns <= swept(change(high)).step_ns + 1


@settings(max_examples=30, deadline=None)
@given(calls)
def test_no_step_is_shorter_than_its_host_or_its_gpu_alone(loop):
    made = graph(run_like(loop))
    whole = swept(made).step_ns
    host = swept(made.with_device(dur_ns=made.device.dur_ns * 0)).step_ns
    gpu = swept(
        made.scaled_before(dict.fromkeys(made.host.before_ns, 0.0)).with_host(call_ns=made.host.call_ns * 0)
    ).step_ns
    assert host <= whole + 1
    assert gpu <= whole + 1


def test_calibrated_calls_make_the_step_as_long_as_it_is_without_the_profiler():
    made = graph(run_like(LAUNCH_BOUND, steps=10))
    made = made.__class__(**{**vars_of(made), "steps": plain(made, 0.9)})
    ready = calibrated(made)
    assert swept(ready.graph).step_ns == pytest.approx(made.steps.plain_ns, rel=0.01)
    assert ready.known
    assert ready.calling < 0.95


def test_where_the_gpu_hides_what_calls_cost_their_cost_stays_unknown():
    made = graph(run_like(GPU_BOUND, steps=10))
    made = made.__class__(**{**vars_of(made), "steps": plain(made, 1.0)})
    ready = calibrated(made)
    assert not ready.known
    assert swept(with_calling(ready.graph, 0.6)).step_ns == pytest.approx(swept(ready.graph).step_ns, rel=0.01)


def vars_of(made):
    return {name: getattr(made, name) for name in made.__dataclass_fields__}


def plain(made, factor):
    """The same steps, and twenty more that ran without the profiler in so much of the time."""
    found, length = made.steps, int(swept(made).step_ns * factor)
    start = found.end_ns[-1] + length * np.arange(20)
    no = np.zeros(20, bool)
    return found.__class__(
        np.append(found.start_ns, start),
        np.append(found.end_ns, start + length),
        np.append(found.recorded, no),
        np.append(found.interior, no),
        np.append(np.zeros(len(found), bool), ~no),
        found.found_by,
    )


EXACT = {
    "b200_eager": 0.01,
    "cpu_only_gloo": 0.01,
    "cuda_event_sync": 0.01,
    "cuda_event_sync_multi_stream": 0.01,
    "h100_bert_small_inference": 0.01,
    "h100_timesformer_inference": 0.01,
    "mi210_gpu_only": 0.01,
    "mi300_compiled_triton": 0.01,
    "triton_example": 0.01,
    "v100_ns_resolution": 0.01,
    "v100_resnet50_workers0": 0.01,
    "v100_resnet50_workers4": 0.01,
}
REFUSED = {
    "a100_ddp_8ranks_rank": "streams",
    "mi300_resnet_checkpoint": "streams",
    "mi250_minitoy": "idle",
}


@pytest.mark.parametrize("name", EXACT)
def test_a_real_trace_is_replayed_within_one_percent(name, recorded):
    found = quality(graph(gpulab.load(recorded(f"{name}.json.gz"))))
    assert found.refusal is None
    assert abs(found.replay_error) < EXACT[name]
    assert abs(found.generic_error) < 0.02


@pytest.mark.parametrize("name", REFUSED)
def test_a_real_trace_that_does_not_tell_who_waited_for_whom_is_refused_with_the_reason(name, recorded):
    found = quality(graph(gpulab.load(recorded(f"{name}.json.gz"))))
    assert REFUSED[name] in found.refusal
    assert found.fix


def test_a_gpu_twice_as_fast_halves_the_step_of_a_busy_v100(recorded):
    made = graph(gpulab.load(recorded("v100_ns_resolution.json.gz")))
    half = swept(made.with_device(dur_ns=made.device.dur_ns / 2))
    assert 1.9 < swept(made).step_ns / half.step_ns <= 2.0


def test_recorded_waits_between_streams_are_replayed(recorded):
    made = graph(gpulab.load(recorded("cuda_event_sync_multi_stream.json.gz")))
    assert not made.guessed
    assert (made.device.awaited_op >= 0).sum() == 1


def test_a_run_on_a_cpu_is_a_track_without_device_work():
    found = graph(run_of([*_cpu_steps()]))
    assert len(found.device) == 0
    assert swept(found).step_ns == pytest.approx(10e6)
    halved = found.scaled_before({"loader": 0.5})
    assert swept(halved).step_ns == pytest.approx(8e6)


def _cpu_steps():
    from gpulab.tables import Kind
    from tests.support.runs.made_runs import event, loader_call, stepped

    return stepped(lambda at: [loader_call(at, 4.0), event(Kind.OP, "aten::mm", at + 4.0, 6.0)], step_ms=10.0)


def test_a_scene_of_recorded_steps_only_is_about_those():
    made = run_like(LAUNCH_BOUND, steps=10)
    found = steps(made)
    ready = scene(made, found, ledger(made, found))
    assert ready.base.known
    assert ready.step_ns == found.traced_ns


@settings(max_examples=15, deadline=None)
@given(calls, st.integers(8, 20))
def test_many_graphs_swept_at_once_are_what_each_is_alone(loop, count):
    made = graph(run_like(loop))
    factors = np.linspace(0.1, 2.0, count)
    several = [
        made.with_device(dur_ns=made.device.dur_ns * f).scaled_before({"dispatch": 2 - f}) for f in factors.tolist()
    ]
    assert steps_ns(several) == [swept(each).step_ns for each in several]


def test_graphs_that_wait_for_different_work_are_swept_each_by_itself():
    made = graph(run_like(LOGGING))
    free = made.with_host(awaited_op=np.full(len(made.host), NONE))
    assert steps_ns([made, free] * 5) == [swept(made).step_ns, swept(free).step_ns] * 5


@pytest.mark.parametrize("name", ["tiny_ops", "counting"])
def test_a_run_recorded_here_is_replayed_within_two_percent(name):
    pytest.importorskip("torch")
    from gpulab.workloads import workload

    with gpulab.profile("replayed"):
        workload(name).run()
    run = gpulab.runs["replayed"]
    found = steps(run)
    ready = scene(run, found, ledger(run, found))
    assert abs(ready.quality.replay_error) < 0.02
    assert ready.timed.step_ns == pytest.approx(found.step_ns, rel=0.02)
