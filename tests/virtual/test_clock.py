"""Virtual time keeps the laws of a GPU: order in a stream, launches first, waits where a real host waits."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpulab.analysis.steps.detection import steps
from gpulab.hardware.lookup import resolve
from gpulab.questions import ready
from gpulab.replay.graph.dependencies import QUEUE, QUEUE_FACT
from gpulab.replay.prediction import predict
from gpulab.replay.removal import without
from gpulab.rows import Rows
from gpulab.run import Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, MARKS, Kind, MarkKind
from gpulab.virtual.clock import Clock
from gpulab.virtual.cost_model.operators import kernels
from gpulab.virtual.cost_model.uncertainty import step_ns, step_range_ns
from gpulab.virtual.op_log.events import MAIN, THREADS
from gpulab.virtual.op_log.ops import Copy, Fetch, Hold, Op, Phase, Range, Signal, Spin, Stepped, Tensor, Wait, Way

H100, T4 = resolve("h100"), resolve("t4")
US, MS = 1_000, 1_000_000


@dataclass(frozen=True)
class Host:
    """A host of round figures."""

    factor: float = 1.0
    launch_ns: float = 5 * US
    copy_call_ns: float = 8 * US
    copy_dispatch_ns: float = 6 * US
    sync_call_ns: float = 3 * US
    event_ns: float = 1 * US
    alloc_ns: float = 100 * US

    def dispatch_ns(self, op):
        return 10 * US * self.factor

    def scaled(self, factor):
        return replace(self, factor=self.factor * factor)


def clock(gpu=H100, **more):
    return Clock(gpu, Host(), **more)


def tensor(*sizes, dtype="float32"):
    return Tensor(sizes, dtype, int(np.prod(sizes)) * (4 if dtype == "float32" else 2))


def product(size=4096, **more):
    one = tensor(size, size)
    return Op(name="aten::mm", inputs=(one, one), outputs=(one,), flops=2 * size**3, **more)


def tiny(**more):
    return Op(name="aten::add", inputs=(tensor(8), tensor(8)), outputs=(tensor(8),), **more)


def batch(way=Way.TO_DEVICE, **more):
    asked = {"pinned": True, "non_blocking": True, **more}
    return Copy(name="aten::copy_", way=way, bytes=64 * 2**20, **asked)


def took(records, gpu=H100):
    """How long the host took for these, and the GPU."""
    told = clock(gpu)
    for record in records:
        told.take(record)
    return told.now_ns, told.device_done_ns


def rows(told) -> Rows:
    return told.log.tables(0)["event_rows"]


def named(events, kind):
    return (
        [
            (name, start, dur)
            for name, start, dur in zip(
                events.words("name").to_list(), events["start_ns"], events["dur_ns"], strict=True
            )
        ]
        if kind is None
        else [each for each, one in zip(named(events, None), events["kind"], strict=True) if one == kind]
    )


def loop(body, count=12, gpu=H100):
    """A run of a loop whose steps are told of."""
    told, marks = clock(gpu), []
    for _ in range(count):
        for record in (*body, Stepped()):
            told.take(record)
        marks.append((MarkKind.USER, told.now_ns, told.now_ns, -1, -1, False, 0, told.now_ns, told.now_ns))
    span = max(told.now_ns, told.device_done_ns)
    return Run(
        name="loop",
        source=Source(how="virtual", device=gpu.name),
        machine=Machine(),
        span_ns=span,
        threads=THREADS,
        main_thread=MAIN,
        facts={QUEUE_FACT: str(told.queue)},
        recording=Recording(windows_ns=((0, span),), activities=("cpu", "cuda")),
        mark_rows=MARKS.of(marks),
        **told.log.tables(0),
    )


def test_work_of_a_stream_is_done_in_order_and_never_before_it_is_launched():
    told = clock()
    for record in (product(2048), tiny(), batch(), product(1024), tiny(stream=13), product(512, stream=13)):
        told.take(record)
    events = rows(told)
    calls = {
        c: s + d
        for c, s, d, k in zip(events["correlation"], events["start_ns"], events["dur_ns"], events["kind"], strict=True)
        if k in (Kind.LAUNCH, Kind.COPY_CALL)
    }
    work = events.of_kind(*DEVICE_KINDS)
    assert len(work) >= 6
    for stream in (7, 13):
        mine = work.where(work["stream"] == stream)
        ends = mine["start_ns"] + mine["dur_ns"]
        assert (mine["start_ns"][1:] >= ends[:-1]).all()
        assert all(start >= calls[call] for start, call in zip(mine["start_ns"], mine["correlation"], strict=True))


def test_the_host_goes_on_while_the_gpu_computes_and_waits_where_it_reads_a_value():
    host, device = took([product()] * 10)
    one = sum(kernel.ns for kernel in kernels(product(), H100))
    assert host < 10 * 20 * US < 10 * one < device
    value = Copy(name="aten::_local_scalar_dense", way=Way.TO_HOST, bytes=4, pinned=False, non_blocking=False)
    host, device = took([*[product()] * 10, value])
    assert host >= device


@pytest.mark.parametrize("wait", [Wait(call="cudaDeviceSynchronize"), Wait(call="cudaStreamSynchronize", stream=7)])
def test_a_wait_lasts_until_the_work_is_done_and_one_for_nothing_costs_its_call(wait):
    host, device = took([product(), wait])
    assert device <= host <= device + 10 * US
    assert took([wait])[0] == Host().sync_call_ns


def test_a_wait_for_another_stream_does_not_wait_for_this_one():
    host, device = took([product(), tiny(stream=13), Wait(call="cudaStreamSynchronize", stream=13)])
    assert host < device / 2


def test_a_copy_from_pageable_memory_holds_the_host_up_and_one_from_pinned_memory_does_not():
    pinned, paged = took([batch()]), took([batch(pinned=False)])
    assert pinned[0] < 50 * US
    assert paged[0] >= paged[1] > 1 * MS
    blocking = took([batch(non_blocking=False)])
    assert blocking[0] >= blocking[1]


def test_copies_on_a_stream_of_their_own_run_beside_the_kernels():
    kernel_ns, copy_ns = took([product()])[1], took([batch()])[1]
    beside = took([batch(stream=13), product()])[1]
    assert beside < max(kernel_ns, copy_ns) + 50 * US
    in_turn = took([batch(), product()])[1]
    assert in_turn > kernel_ns + copy_ns - 50 * US


def test_a_stream_that_holds_for_an_event_waits_for_the_work_before_it():
    records = [product(stream=13), Signal(event=1, stream=13), Hold(event=1, stream=7), tiny()]
    told = clock()
    for record in records:
        told.take(record)
    last = rows(told).of_kind(Kind.KERNEL)
    ends = last["start_ns"] + last["dur_ns"]
    assert last["start_ns"][-1] >= ends[:-1].max()
    assert told.done_ns(1) == pytest.approx(ends[:-1].max(), abs=2)
    assert told.done_ns(2) is None


def test_a_host_that_runs_ahead_stops_when_the_queue_of_launches_is_full():
    ahead = clock()
    one = sum(kernel.ns for kernel in kernels(product(), H100))
    for _ in range(QUEUE):
        ahead.take(product())
    assert ahead.now_ns < QUEUE * 30 * US
    for _ in range(20):  # in place of those that are done by now
        ahead.take(product())
    for _ in range(10):
        before = ahead.now_ns
        ahead.take(product())
        assert ahead.now_ns - before == pytest.approx(one, rel=0.01)


def test_what_the_program_does_in_python_takes_the_time_it_took():
    assert took([tiny(python_ns=3 * MS)])[0] == took([tiny()])[0] + 3 * MS


def test_a_batch_takes_what_building_it_took_where_no_worker_builds_it():
    fetch = Fetch(loader=0, epoch=0, yielded=True, built_ns=20 * MS, built_cpu_ns=5 * MS, bytes=1000)
    told = clock()
    told.take(fetch)
    assert told.now_ns == 20 * MS
    assert told.cpu_ns == 5 * MS
    assert named(rows(told), Kind.LOADER)[0][1:] == (0, 20 * MS)


def test_operators_of_the_backward_pass_run_in_autograds_thread_inside_their_node():
    told = clock()
    told.take(product(phase=Phase.BACKWARD))
    events = rows(told)
    names = events.words("name").to_list()
    assert "autograd::engine::evaluate_function: mm" in names
    assert set(events["thread"][events["kind"] == Kind.OP].tolist()) == {1}


@pytest.mark.parametrize("gpu", [H100, T4], ids=lambda each: each.name)
def test_a_spin_takes_its_cycles_at_the_clock_of_the_gpu_and_the_host_goes_on(gpu):
    ours = clock(gpu)
    ours.take(Spin(cycles=gpu.sm_clock_mhz * 1000 * 25, stream=13))
    assert ours.now_ns < MS
    told = rows(ours)
    spun = told.of_kind(Kind.KERNEL)
    assert (spun["dur_ns"].tolist(), spun["stream"].tolist()) == ([25 * MS], [13])
    assert not len(told.of_kind(Kind.OP)), "PyTorch wraps it in no operator"


def test_a_spin_of_no_cycles_costs_a_launch():
    ours = clock()
    for cycles in (0, -5):
        ours.take(Spin(cycles=cycles))
    assert (rows(ours).of_kind(Kind.KERNEL)["dur_ns"] == kernels(tiny(), H100)[0].ns // 1).all()


def test_ranges_hold_what_was_called_in_them():
    told = clock()
    for record in (Range(name="Optimizer.step#SGD.step", open=True), tiny(), Range(name="", open=False)):
        told.take(record)
    (name, start, dur), (_, op_start, op_dur) = named(rows(told), Kind.ANNOTATION)[0], named(rows(told), Kind.OP)[0]
    assert name == "Optimizer.step#SGD.step"
    assert start <= op_start
    assert op_start + op_dur <= start + dur


def test_shapes_are_told_as_the_profiler_tells_them():
    told = clock()
    told.take(product(16))
    table = told.log.tables(0)["shape_rows"]
    assert json.loads(table.words("shapes")[0]) == [[16, 16], [16, 16]]
    assert json.loads(table.words("dtypes")[0]) == ["float", "float"]


BODIES = {
    "the GPU limits": [product(), product(2048), *[tiny()] * 20, product()],
    "the host limits": [tiny()] * 60,
    "waits": [product(), Copy(name="aten::copy_", way=Way.TO_HOST, bytes=4, pinned=False, non_blocking=False), tiny()],
    "pageable": [batch(pinned=False), product(), product(phase=Phase.BACKWARD)],
    "python": [product(), tiny(python_ns=8 * MS), Wait(call="cudaDeviceSynchronize")],
    "two streams": [
        *(batch(stream=13), Signal(event=1, stream=13), product(), Hold(event=1, stream=7), product()),
        *(Signal(event=2, stream=7), Hold(event=2, stream=13)),
    ],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_replay_of_a_virtual_run_without_any_change_is_the_run(body):
    """The replay knows nothing of this clock: two engines, one time."""
    found = ready(loop(body)).quality
    assert abs(found.replay_error) < 0.002
    assert found.unexplained_frac < 0.01


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_step_is_the_one_that_long_loops_settle_at(body):
    timing = lambda host, scale: Clock(H100, host, scale=scale)  # noqa: E731
    told = step_ns([body, body], timing, Host(), {})
    run = loop(body, count=400)
    assert told == pytest.approx(float(np.median(steps(run).dur_ns[200:])), rel=0.02)
    low, high = step_range_ns([body, body], timing, Host())
    assert low < told < high


def test_what_is_taken_away_in_the_steps_that_count_is_taken_from_those_before_as_well():
    """A host that is two steps ahead of its GPU waits for the kernels of earlier steps."""
    run = loop([product(), *[tiny()] * 5, product()], count=10)
    found = steps(run)
    run = replace(run, recording=Recording(windows_ns=((int(found.start_ns[5]), run.span_ns),)))
    found = steps(run)
    work = run.event_rows.of_kind(Kind.KERNEL)
    start, end = found.start_ns[found.interior].min(), found.end_ns[found.interior].max()
    spans = work.where((work["start_ns"] >= start) & (work["start_ns"] < end)).spans()
    half = without("half", spans, (0.5, 0.5, 0.5), device_only=True)
    told = predict(ready(run), (half,))
    assert told.likely_ns == pytest.approx(told.step_ns / 2, rel=0.05)


def test_a_faster_gpu_is_never_slower():
    for body in BODIES.values():
        assert took(body * 5, H100)[1] <= took(body * 5, T4)[1]
