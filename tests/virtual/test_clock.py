"""Virtual time keeps the laws of a GPU: order in a stream, launches first, waits where a real host waits."""

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.hardware.lookup import resolve
from gpulab.intervals import no_spans
from gpulab.questions import prepare_scene
from gpulab.replay.graph.dependencies import LAUNCH_QUEUE_CAPACITY, QUEUE_FACT
from gpulab.replay.prediction import predict
from gpulab.replay.removal import removal
from gpulab.rows import Rows
from gpulab.run import Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, MARKS, EventKind, MarkKind
from gpulab.virtual.clock import VirtualClock
from gpulab.virtual.cost_model.operators import kernels_of
from gpulab.virtual.cost_model.uncertainty import step_ns, step_range_ns
from gpulab.virtual.op_log.events import MAIN, THREADS
from gpulab.virtual.op_log.ops import (
    BatchFetch,
    Copy,
    CopyDirection,
    EventRecord,
    HostWait,
    Op,
    Phase,
    Range,
    Spin,
    StepEnd,
    StreamWait,
    TensorInfo,
)

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
    return VirtualClock(gpu, Host(), **more)


def tensor(*sizes, dtype="float32"):
    return TensorInfo(sizes, dtype, int(np.prod(sizes)) * (4 if dtype == "float32" else 2))


def product(size=4096, **more):
    one = tensor(size, size)
    return Op(name="aten::mm", inputs=(one, one), outputs=(one,), flops=2 * size**3, **more)


def tiny(**more):
    return Op(name="aten::add", inputs=(tensor(8), tensor(8)), outputs=(tensor(8),), **more)


def batch(way=CopyDirection.HOST_TO_DEVICE, **more):
    options = {"pinned": True, "non_blocking": True, **more}
    return Copy(name="aten::copy_", direction=way, bytes=64 * 2**20, **options)


def finish_times(records, gpu=H100):
    """The times at which the host and the GPU finish these records."""
    virtual_clock = clock(gpu)
    for record in records:
        virtual_clock.process(record)
    return virtual_clock.now_ns, virtual_clock.device_done_ns


def rows(virtual_clock) -> Rows:
    return virtual_clock.log.tables(0)["event_rows"]


def events_of_kind(events, kind):
    return (
        [
            (name, start, dur)
            for name, start, dur in zip(
                events.text("name").to_list(), events["start_ns"], events["dur_ns"], strict=True
            )
        ]
        if kind is None
        else [
            each
            for each, event_kind in zip(events_of_kind(events, None), events["kind"], strict=True)
            if event_kind == kind
        ]
    )


def loop(body, count=12, gpu=H100):
    """A run of a loop with a mark at the end of each step."""
    virtual_clock, marks = clock(gpu), []
    for _ in range(count):
        for record in (*body, StepEnd()):
            virtual_clock.process(record)
        marks.append(
            (
                MarkKind.USER,
                virtual_clock.now_ns,
                virtual_clock.now_ns,
                -1,
                -1,
                False,
                0,
                virtual_clock.now_ns,
                virtual_clock.now_ns,
                -1,
            )
        )
    span = max(virtual_clock.now_ns, virtual_clock.device_done_ns)
    return Run(
        name="loop",
        source=Source(how="virtual", device=gpu.name),
        machine=Machine(),
        span_ns=span,
        threads=THREADS,
        main_thread=MAIN,
        facts={QUEUE_FACT: str(virtual_clock.queue_length)},
        recording=Recording(windows_ns=((0, span),), activities=("cpu", "cuda")),
        mark_rows=MARKS.of(marks),
        **virtual_clock.log.tables(0),
    )


def test_a_stream_runs_its_work_in_order_and_after_its_launch():
    virtual_clock = clock()
    for record in (product(2048), tiny(), batch(), product(1024), tiny(stream=13), product(512, stream=13)):
        virtual_clock.process(record)
    events = rows(virtual_clock)
    calls = {
        c: s + d
        for c, s, d, k in zip(events["correlation"], events["start_ns"], events["dur_ns"], events["kind"], strict=True)
        if k in (EventKind.LAUNCH, EventKind.COPY_CALL)
    }
    work = events.of_kind(*DEVICE_KINDS)
    assert len(work) >= 6
    for stream in (7, 13):
        stream_work = work.select(work["stream"] == stream)
        ends = stream_work["start_ns"] + stream_work["dur_ns"]
        assert (stream_work["start_ns"][1:] >= ends[:-1]).all()
        assert all(
            start >= calls[call]
            for start, call in zip(stream_work["start_ns"], stream_work["correlation"], strict=True)
        )


def test_the_host_runs_ahead_of_the_gpu_and_waits_when_it_reads_a_value():
    host, device = finish_times([product()] * 10)
    one = sum(kernel.ns for kernel in kernels_of(product(), H100))
    assert host < 10 * 20 * US < 10 * one < device
    value = Copy(
        name="aten::_local_scalar_dense",
        direction=CopyDirection.DEVICE_TO_HOST,
        bytes=4,
        pinned=False,
        non_blocking=False,
    )
    host, device = finish_times([*[product()] * 10, value])
    assert host >= device


@pytest.mark.parametrize(
    "wait", [HostWait(call="cudaDeviceSynchronize"), HostWait(call="cudaStreamSynchronize", stream=7)]
)
def test_a_wait_lasts_until_the_work_is_done_and_an_empty_wait_costs_only_the_call(wait):
    host, device = finish_times([product(), wait])
    assert device <= host <= device + 10 * US
    assert finish_times([wait])[0] == Host().sync_call_ns


def test_a_wait_for_another_stream_does_not_wait_for_this_one():
    host, device = finish_times([product(), tiny(stream=13), HostWait(call="cudaStreamSynchronize", stream=13)])
    assert host < device / 2


def test_a_copy_from_pageable_memory_blocks_the_host_and_one_from_pinned_memory_does_not():
    pinned, paged = finish_times([batch()]), finish_times([batch(pinned=False)])
    assert pinned[0] < 50 * US
    assert paged[0] >= paged[1] > 1 * MS
    blocking = finish_times([batch(non_blocking=False)])
    assert blocking[0] >= blocking[1]


def test_copies_on_a_side_stream_overlap_with_kernels():
    kernel_ns, copy_ns = finish_times([product()])[1], finish_times([batch()])[1]
    overlapped = finish_times([batch(stream=13), product()])[1]
    assert overlapped < max(kernel_ns, copy_ns) + 50 * US
    sequential = finish_times([batch(), product()])[1]
    assert sequential > kernel_ns + copy_ns - 50 * US


def test_a_stream_that_waits_for_an_event_starts_after_the_work_before_the_event():
    records = [product(stream=13), EventRecord(event=1, stream=13), StreamWait(event=1, stream=7), tiny()]
    virtual_clock = clock()
    for record in records:
        virtual_clock.process(record)
    last = rows(virtual_clock).of_kind(EventKind.KERNEL)
    ends = last["start_ns"] + last["dur_ns"]
    assert last["start_ns"][-1] >= ends[:-1].max()
    assert virtual_clock.event_done_ns(1) == pytest.approx(ends[:-1].max(), abs=2)
    assert virtual_clock.event_done_ns(2) is None


def test_the_host_blocks_when_the_launch_queue_is_full():
    ahead = clock()
    one = sum(kernel.ns for kernel in kernels_of(product(), H100))
    for _ in range(LAUNCH_QUEUE_CAPACITY):
        ahead.process(product())
    assert ahead.now_ns < LAUNCH_QUEUE_CAPACITY * 30 * US
    for _ in range(20):  # replace launches that are done by now
        ahead.process(product())
    for _ in range(10):
        before = ahead.now_ns
        ahead.process(product())
        assert ahead.now_ns - before == pytest.approx(one, rel=0.01)


def test_python_time_counts_as_measured():
    assert finish_times([tiny(python_ns=3 * MS)])[0] == finish_times([tiny()])[0] + 3 * MS


def test_without_workers_a_batch_takes_its_build_time():
    fetch = BatchFetch(loader=0, epoch=0, yielded=True, build_ns=20 * MS, build_cpu_ns=5 * MS, bytes=1000)
    virtual_clock = clock()
    virtual_clock.process(fetch)
    assert virtual_clock.now_ns == 20 * MS
    assert virtual_clock.cpu_ns == 5 * MS
    assert events_of_kind(rows(virtual_clock), EventKind.LOADER)[0][1:] == (0, 20 * MS)


def test_backward_operators_run_in_the_autograd_thread_inside_their_node():
    virtual_clock = clock()
    virtual_clock.process(product(phase=Phase.BACKWARD))
    events = rows(virtual_clock)
    names = events.text("name").to_list()
    assert "autograd::engine::evaluate_function: mm" in names
    assert set(events["thread"][events["kind"] == EventKind.OP].tolist()) == {1}


@pytest.mark.parametrize("gpu", [H100, T4], ids=lambda spec: spec.name)
def test_a_spin_takes_its_cycles_at_the_sm_clock_and_does_not_block_the_host(gpu):
    virtual_clock = clock(gpu)
    virtual_clock.process(Spin(cycles=gpu.sm_clock_mhz * 1000 * 25, stream=13))
    assert virtual_clock.now_ns < MS
    events = rows(virtual_clock)
    spins = events.of_kind(EventKind.KERNEL)
    assert (spins["dur_ns"].tolist(), spins["stream"].tolist()) == ([25 * MS], [13])
    assert not len(events.of_kind(EventKind.OP)), "PyTorch wraps it in no operator"


def test_a_spin_of_no_cycles_costs_a_launch():
    virtual_clock = clock()
    for cycles in (0, -5):
        virtual_clock.process(Spin(cycles=cycles))
    assert (rows(virtual_clock).of_kind(EventKind.KERNEL)["dur_ns"] == kernels_of(tiny(), H100)[0].ns // 1).all()


def test_ranges_contain_the_operators_called_in_them():
    virtual_clock = clock()
    for record in (Range(name="Optimizer.step#SGD.step", is_start=True), tiny(), Range(name="", is_start=False)):
        virtual_clock.process(record)
    (name, start, dur), (_, op_start, op_dur) = (
        events_of_kind(rows(virtual_clock), EventKind.ANNOTATION)[0],
        events_of_kind(rows(virtual_clock), EventKind.OP)[0],
    )
    assert name == "Optimizer.step#SGD.step"
    assert start <= op_start
    assert op_start + op_dur <= start + dur


def test_shapes_and_dtypes_have_the_profiler_format():
    virtual_clock = clock()
    virtual_clock.process(product(16))
    table = virtual_clock.log.tables(0)["shape_rows"]
    assert json.loads(table.text("shapes")[0]) == [[16, 16], [16, 16]]
    assert json.loads(table.text("dtypes")[0]) == ["float", "float"]


BODIES = {
    "the GPU limits": [product(), product(2048), *[tiny()] * 20, product()],
    "the host limits": [tiny()] * 60,
    "waits": [
        product(),
        Copy(name="aten::copy_", direction=CopyDirection.DEVICE_TO_HOST, bytes=4, pinned=False, non_blocking=False),
        tiny(),
    ],
    "pageable": [batch(pinned=False), product(), product(phase=Phase.BACKWARD)],
    "python": [product(), tiny(python_ns=8 * MS), HostWait(call="cudaDeviceSynchronize")],
    "two streams": [
        *(batch(stream=13), EventRecord(event=1, stream=13), product(), StreamWait(event=1, stream=7), product()),
        *(EventRecord(event=2, stream=7), StreamWait(event=2, stream=13)),
    ],
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_replaying_a_virtual_run_without_changes_gives_the_run(body):
    """The replay is independent of the clock, so both must give the same time."""
    quality = prepare_scene(loop(body)).quality
    assert abs(quality.replay_error) < 0.002
    assert quality.unexplained_frac < 0.01


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_the_predicted_step_is_that_of_a_long_loop(body):
    timing = lambda host, scale: VirtualClock(H100, host, scale=scale)  # noqa: E731
    predicted_ns = step_ns([body, body], timing, Host(), {})
    run = loop(body, count=400)
    assert predicted_ns == pytest.approx(float(np.median(find_steps(run).dur_ns[200:])), rel=0.02)
    low, high = step_range_ns([body, body], timing, Host())
    assert low < predicted_ns < high


def test_a_rewrite_of_the_recorded_steps_also_applies_to_earlier_steps():
    """A host that is two steps ahead of its GPU waits for the kernels of earlier steps."""
    run = loop([product(), *[tiny()] * 5, product()], count=10)
    step_table = find_steps(run)
    run = replace(run, recording=Recording(windows_ns=((int(step_table.start_ns[5]), run.span_ns),)))
    step_table = find_steps(run)
    work = run.event_rows.of_kind(EventKind.KERNEL)
    start, end = step_table.start_ns[step_table.interior].min(), step_table.end_ns[step_table.interior].max()
    spans = work.select((work["start_ns"] >= start) & (work["start_ns"] < end)).spans()
    half = removal("half", spans, (0.5, 0.5, 0.5), host_spans=no_spans())
    prediction = predict(prepare_scene(run), (half,))
    assert prediction.likely_ns == pytest.approx(prediction.step_ns / 2, rel=0.05)


def test_a_faster_gpu_is_never_slower():
    for body in BODIES.values():
        assert finish_times(body * 5, H100)[1] <= finish_times(body * 5, T4)[1]
