"""A replay without change is the recording; with a change it is what a machine with that change would have done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.batched_sweep import batch_step_times
from gpulab.replay.graph.calibration import calibrate, scale_calls
from gpulab.replay.graph.graph import NONE
from gpulab.replay.prediction import build_replay_model
from gpulab.replay.quality import Quality
from gpulab.replay.sweep import sweep
from gpulab.tables import EventKind
from tests.support.runs.made_loading_runs import MAIN_PROCESS_LOADER
from tests.support.runs.made_runs import MS, event, loader_call, mark, run_of
from tests.support.runs.simulated_machine import Call, graph, loops, run_like, step_ms
from tests.support.tiers import examples

LAUNCH_BOUND = [Call(host_us=40.0, kernel_us=5.0)] * 30
GPU_BOUND = [Call(host_us=10.0, kernel_us=60.0)] * 30
LOGGING = [*[Call(host_us=15.0, kernel_us=25.0)] * 20, Call(waits=True), Call(host_us=300.0, kernel_us=5.0)]
LOADING = [Call(loads_us=900.0), *[Call(host_us=10.0, kernel_us=60.0)] * 10, Call(waits=True)]
LOOPS = {"launch": LAUNCH_BOUND, "gpu": GPU_BOUND, "logging": LOGGING, "loading": LOADING}


calls = loops()


@examples(60)
@given(calls)
def test_without_a_change_everything_is_where_it_was(loop):
    base = graph(run_like(loop))
    again = sweep(base)
    assert np.abs(again.node_start_ns - base.host.start_ns).max() < 2
    assert np.abs(again.device_end_ns - base.device.end_ns).max() < 2


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize(("gpu", "host"), [(0.5, 1.0), (2.0, 1.0), (1.0, 0.5), (1.0, 2.0), (0.5, 2.0)])
def test_a_faster_or_slower_machine_is_what_such_a_machine_does(loop, gpu, host):
    base = graph(run_like(loop, steps=20))
    changed = base.with_device(dur_ns=base.device.dur_ns * gpu)
    changed = changed.with_host(call_ns=changed.host.call_ns * host)
    changed = changed.scaled_before(dict.fromkeys(changed.host.before_ns, host))
    assert sweep(changed).step_ns / 1e6 == pytest.approx(step_ms(loop, gpu=gpu, host=host), rel=0.02)


def test_a_synchronisation_left_out_lets_the_host_run_ahead():
    base = graph(run_like(LOGGING, steps=20))
    free = base.with_host(awaited_op=np.full(len(base.host), NONE))
    assert sweep(free).step_ns / 1e6 == pytest.approx(step_ms(LOGGING, blocking=False), rel=0.03)
    assert sweep(free).step_ns < 0.9 * sweep(base).step_ns


@pytest.mark.parametrize("gpu", [0.25, 0.5, 0.75])
def test_a_full_launch_queue_holds_the_host_back_until_the_gpu_is_faster_than_it(gpu):
    loop = [Call(host_us=5.0, kernel_us=40.0)] * 400  # 3200 launches, of which 1024 may be outstanding
    base = graph(run_like(loop, steps=8))
    assert (base.host.queue_op >= 0).any()
    faster = sweep(base.with_device(dur_ns=base.device.dur_ns * gpu))
    assert faster.step_ns / 1e6 == pytest.approx(step_ms(loop, steps=20, gpu=gpu), rel=0.02)


def test_without_that_queue_a_busy_gpu_would_seem_to_be_limited_by_the_host():
    loop = [Call(host_us=5.0, kernel_us=40.0)] * 400
    base = graph(run_like(loop, steps=8))
    endless = base.with_host(
        queue_op=np.full(len(base.host), NONE), call_ns=np.diff(base.host.start_ns, append=0).clip(0)
    )
    half = endless.with_device(dur_ns=base.device.dur_ns / 2)
    assert sweep(half).host_steps_ns[1:].mean() > 1.5 * step_ms(loop, steps=20, gpu=0.5) * 1e6


@examples(30)
@given(calls, st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_what_costs_less_never_makes_a_step_longer(loop, one, other):
    base = graph(run_like(loop))
    low, high = sorted((one, other))
    for change in (
        lambda factor: base.with_device(dur_ns=base.device.dur_ns * factor),
        lambda factor: base.scaled_before({"dispatch": factor, "glue": factor, "python": factor}),
        lambda factor: base.scaled_before({"loader": factor}),
        lambda factor: base.with_host(call_ns=base.host.call_ns * factor),
    ):
        assert sweep(change(low)).step_ns <= sweep(change(high)).step_ns + 1


@examples(30)
@given(calls)
def test_no_step_is_shorter_than_its_host_or_its_gpu_alone(loop):
    base = graph(run_like(loop))
    step_ns = sweep(base).step_ns
    host = sweep(base.with_device(dur_ns=base.device.dur_ns * 0)).step_ns
    gpu = sweep(
        base.scaled_before(dict.fromkeys(base.host.before_ns, 0.0)).with_host(call_ns=base.host.call_ns * 0)
    ).step_ns
    assert host <= step_ns + 1
    assert gpu <= step_ns + 1


def test_calibrated_calls_make_the_step_as_long_as_it_is_without_the_profiler():
    base = graph(run_like(LAUNCH_BOUND, steps=10))
    base = base.__class__(**{**vars_of(base), "steps": with_plain_steps(base, 0.9)})
    ready = calibrate(base)
    assert sweep(ready.graph).step_ns == pytest.approx(base.steps.unprofiled_ns, rel=0.01)
    assert ready.share_range is None
    assert ready.call_cost_frac < 0.95


def test_where_the_gpu_hides_what_calls_cost_their_cost_stays_unknown():
    base = graph(run_like(GPU_BOUND, steps=10))
    base = base.__class__(**{**vars_of(base), "steps": with_plain_steps(base, 1.0)})
    ready = calibrate(base)
    assert ready.share_range is not None
    assert sweep(scale_calls(ready.graph, 0.6)).step_ns == pytest.approx(sweep(ready.graph).step_ns, rel=0.01)


def vars_of(base):
    return {name: getattr(base, name) for name in base.__dataclass_fields__}


def with_plain_steps(base, factor):
    """The same steps, and twenty more that ran without the profiler in so much of the time."""
    run_steps, length = base.steps, int(sweep(base).step_ns * factor)
    start = run_steps.end_ns[-1] + length * np.arange(20)
    no = np.zeros(20, bool)
    return run_steps.__class__(
        np.append(run_steps.start_ns, start),
        np.append(run_steps.end_ns, start + length),
        np.append(run_steps.recorded, no),
        np.append(run_steps.interior, no),
        np.append(np.zeros(len(run_steps), bool), ~no),
        run_steps.detected_by,
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
    replay_quality = Quality.of(graph(gpulab.load(recorded(f"{name}.json.gz"))))
    assert replay_quality.refusal_reason is None
    assert abs(replay_quality.replay_error) < EXACT[name]
    assert abs(replay_quality.generic_error) < 0.02


@pytest.mark.parametrize("name", REFUSED)
def test_a_real_trace_that_does_not_tell_who_waited_for_whom_is_refused_with_the_reason(name, recorded):
    replay_quality = Quality.of(graph(gpulab.load(recorded(f"{name}.json.gz"))))
    assert REFUSED[name] in replay_quality.refusal_reason
    assert replay_quality.fix


def test_a_gpu_twice_as_fast_halves_the_step_of_a_busy_v100(recorded):
    base = graph(gpulab.load(recorded("v100_ns_resolution.json.gz")))
    half = sweep(base.with_device(dur_ns=base.device.dur_ns / 2))
    assert 1.9 < sweep(base).step_ns / half.step_ns <= 2.0


def test_recorded_waits_between_streams_are_replayed(recorded):
    base = graph(gpulab.load(recorded("cuda_event_sync_multi_stream.json.gz")))
    assert not base.waits_inferred
    assert (base.device.awaited_op >= 0).sum() == 1


def test_a_run_on_a_cpu_is_a_track_without_device_work():
    cpu_graph = graph(run_of([*_cpu_steps()]))
    assert len(cpu_graph.device) == 0
    assert sweep(cpu_graph).step_ns == pytest.approx(10e6)
    halved = cpu_graph.scaled_before({"loader": 0.5})
    assert sweep(halved).step_ns == pytest.approx(8e6)


def _cpu_steps():
    from gpulab.tables import EventKind
    from tests.support.runs.made_runs import event, loader_call, stepped

    return stepped(lambda at: [loader_call(at, 4.0), event(EventKind.OP, "aten::mm", at + 4.0, 6.0)], step_ms=10.0)


def test_a_scene_of_recorded_steps_only_is_about_those():
    run = run_like(LAUNCH_BOUND, steps=10)
    run_steps = find_steps(run)
    ready = build_replay_model(run, run_steps, build_ledger(run, run_steps))
    assert ready.calibration.share_range is None
    assert ready.step_ns == run_steps.traced_ns


@examples(15)
@given(calls, st.integers(8, 20))
def test_many_graphs_swept_at_once_are_what_each_is_alone(loop, count):
    base = graph(run_like(loop))
    factors = np.linspace(0.1, 2.0, count)
    several = [
        base.with_device(dur_ns=base.device.dur_ns * f).scaled_before({"dispatch": 2 - f}) for f in factors.tolist()
    ]
    assert batch_step_times(several) == [sweep(each).step_ns for each in several]


def test_graphs_that_wait_for_different_work_are_swept_each_by_itself():
    base = graph(run_like(LOGGING))
    free = base.with_host(awaited_op=np.full(len(base.host), NONE))
    assert batch_step_times([base, free] * 5) == [sweep(base).step_ns, sweep(free).step_ns] * 5


@pytest.mark.alone("compares a replay with steps that were timed on this machine")
@pytest.mark.parametrize("name", ["tiny_ops", "counting"])
def test_a_run_recorded_here_is_replayed_within_two_percent(name):
    pytest.importorskip("torch")
    from gpulab.workloads import workload

    with gpulab.profile("replayed"):
        workload(name).run()
    run = gpulab.runs["replayed"]
    run_steps = find_steps(run)
    ready = build_replay_model(run, run_steps, build_ledger(run, run_steps))
    assert abs(ready.quality.replay_error) < 0.02
    assert ready.schedule.step_ns == pytest.approx(run_steps.step_ns, rel=0.02)


def test_loading_and_the_rest_of_a_step_take_as_long_as_without_the_profiler():
    # Traced: 60 of 100 ms are loading. Without the profiler: 65 of 120 ms.
    traced, plain = 8, 20
    starts_ms = [100 * step for step in range(traced)] + [100 * traced + 120 * step for step in range(plain)]
    marks = [
        mark(at, 60 if step < traced else 65, cpu_ms=60, process_ms=at, within_ms=60)
        for step, at in enumerate(starts_ms)
    ]
    events = [
        each for at in starts_ms[:traced] for each in (loader_call(at, 60), event(EventKind.OP, "mm", at + 60, 40))
    ]
    run = run_of(events, marks=marks, loaders=[MAIN_PROCESS_LOADER], windows=[(0, 100 * traced)])
    run_steps = find_steps(run)
    scene = build_replay_model(run, run_steps, build_ledger(run, run_steps))
    now_ms = {part: ns / MS for part, ns in scene.part_ns.items() if ns}
    assert now_ms == {"loader": pytest.approx(65, rel=0.01), "compute": pytest.approx(55, rel=0.01)}
