"""The basic figures: equal to the oracle on every real trace, and by hand on small runs."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import analysis, trace
from gpulab.analysis import (
    busy_table,
    busy_time,
    copy_table,
    devices,
    gap_table,
    kernel_table,
    launch_delays,
    step_table,
)
from gpulab.analysis.copies.copy_table import COPIES, copy_direction, host_memory
from gpulab.analysis.events.busy import BUSY
from gpulab.analysis.events.group_statistics import group_by_code
from gpulab.analysis.host.launch_delays import LAUNCHES
from gpulab.analysis.kernels.kernel_table import KERNELS
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.gaps import GAPS
from gpulab.intervals import union
from gpulab.run import Run
from gpulab.tables import EVENTS, GRIDS, EventKind, MarkKind
from tests.support.oracle import KERNEL, MEMCPY, MEMSET, SHARED, Oracle, kind_of_work, median
from tests.support.runs.made_runs import MS, event, loader_call, mark, rows, run_of, stepped
from tests.support.runs.written_traces import x
from tests.support.tiers import every_nth

# Real traces.


@pytest.fixture(scope="module", params=every_nth(SHARED, 3, pytest.mark.night))
def both(request, recorded):
    """The run of a recorded trace, and what the oracle says of the same file."""
    path = recorded(f"{request.param}.json.gz")
    return trace.read(path), Oracle(path)


def sides(run):
    """Each device that worked, and all together."""
    return (*devices(run), None)


@pytest.mark.full
def test_the_devices_that_worked_are_those_of_the_oracle(both):
    run, oracle = both
    assert list(devices(run)) == oracle.devices()


@pytest.mark.full
def test_busy_time_by_kind_equals_the_oracle_in_any_window(both):
    run, oracle = both
    if not oracle.work():
        assert busy_time(run) is None
        assert busy_table(run) is busy_table(run, "steps") is gap_table(run) is launch_delays(run) is None
        return
    for device in sides(run):
        device_busy = busy_time(run, device)
        assert device_busy.window_ns == oracle.window(device)
        # The windows of the steps and of the recording, the whole, and some that cut through the work.
        edges = np.linspace(*device_busy.window_ns, 8).astype(int).tolist()
        run_steps = find_steps(run)
        windows = [device_busy.window_ns, *run.recording.windows_ns, *pairwise(edges)]
        windows += zip(run_steps.start_ns.tolist(), run_steps.end_ns.tolist(), strict=True)
        table = device_busy.in_windows(*zip(*windows, strict=True))
        assert list(zip(table["start_ns"], table["end_ns"], strict=True)) == windows
        for row, window in enumerate(windows):
            expected = oracle.by_sort(window, device)
            actual = {name.removesuffix("_ns"): int(table[name][row]) for name in PARTS}
            assert actual == {name: expected.get(name, 0) for name in actual}, window
            assert table["idle_ns"][row] == window[1] - window[0] - expected.get("busy", 0)
        assert device_busy.busy_ns == oracle.by_sort(device_busy.window_ns, device)["busy"]
    assert {device: busy_time(run, device).busy_ns for device in devices(run)} == oracle.busy_ns()


PARTS = [f"{part}_ns" for part in ("busy", "kernels", "communication", "copies", "fills")]
PARTS += ["exposed_communication_ns", "exposed_copies_ns"]


@pytest.mark.full
def test_busy_tables_cover_the_windows_they_are_named_for(both):
    run, oracle = both
    if not oracle.work():
        return
    first, last = oracle.window()
    total_rows = busy_table(run)
    assert (total_rows["start_ns"].tolist(), total_rows["end_ns"].tolist()) == ([first], [last])
    assert busy_table(run, "recorded")["end_ns"].tolist() == [run.span_ns]
    run_steps = find_steps(run)
    for step_rows in (busy_table(run, "steps"), busy_table(run, run_steps)):
        assert step_rows["start_ns"].tolist() == run_steps.start_ns.tolist()
        assert step_rows["busy_ns"].tolist() == [
            oracle.by_sort(window).get("busy", 0) for window in zip(run_steps.start_ns, run_steps.end_ns, strict=True)
        ]


def test_gaps_equal_the_oracle(both):
    run, oracle = both
    for device in sides(run) if oracle.work() else ():
        expected = oracle.gaps(device)
        gap_rows = gap_table(run, device)
        assert list(zip(gap_rows["start_ns"], gap_rows["end_ns"], strict=True)) == expected
        assert gap_rows["dur_ns"].sum() == busy_time(run, device).idle_ns == sum(b - a for a, b in expected)
        long = gap_table(run, device, longer_than_ns=100_000)
        assert len(long) == sum(b - a > 100_000 for a, b in expected)
        spans = list(zip(find_steps(run).start_ns, find_steps(run).end_ns, strict=True))
        inside = [next((n for n, (a, b) in enumerate(spans) if a <= at < b), -1) for at, _ in expected]
        assert gap_rows["step"].tolist() == inside


def test_the_kernel_table_equals_the_oracle(both):
    run, oracle = both
    for device in sides(run):
        events_by_name = oracle.by_name(KERNEL, device)
        total = sum(event["length"] for events in events_by_name.values() for event in events)
        table = kernel_table(run, device)
        assert table["total_ns"].tolist() == sorted(table["total_ns"].tolist(), reverse=True)
        assert sorted(table.text("name").to_list()) == sorted(events_by_name)
        for row, name in enumerate(table.text("name").to_list()):
            events = events_by_name[name]
            lengths = [event["length"] for event in events]
            actual = {column: table[column][row] for column in ("count", "total_ns", "min_ns", "median_ns", "max_ns")}
            assert list(actual.values()) == [
                len(lengths),
                sum(lengths),
                min(lengths),
                median(lengths),
                max(lengths),
            ], name
            assert table["mean_ns"][row] == sum(lengths) // len(lengths)
            assert table["share_frac"][row] == pytest.approx(sum(lengths) / total)
            assert (table["kind"][row] == EventKind.COLLECTIVE) == (kind_of_work(events[0]) == "communication")
            streams = sorted({event["args"]["stream"] for event in events})
            assert table.text("streams")[row] == ", ".join(map(str, streams))
            first = events[0]["args"]
            assert table["grid"][row] == (np.prod(first["grid"]) if "grid" in first else -1)
            assert table["block"][row] == (np.prod(first["block"]) if "block" in first else -1)


def test_the_copy_table_equals_the_oracle(both):
    run, oracle = both
    for device in sides(run):
        events_by_name = oracle.by_name(MEMCPY | MEMSET, device)
        table = copy_table(run, device)
        assert sorted(table.text("name").to_list()) == sorted(events_by_name)
        for row, name in enumerate(table.text("name").to_list()):
            events = events_by_name[name]
            sized = [event for event in events if "bytes" in event["args"]]
            timed = [event for event in sized if event["length"]]
            size = sum(int(event["args"]["bytes"]) for event in sized) if sized else -1
            lengths = [event["length"] for event in events]
            actual = [table[column][row] for column in ("count", "sized", "bytes", "total_ns", "median_ns")]
            assert actual == [len(lengths), len(sized), size, sum(lengths), median(lengths)], name
            timed_bytes = sum(int(event["args"]["bytes"]) for event in timed)
            rate = timed_bytes / sum(event["length"] for event in timed) * 1e9 if timed_bytes else np.nan
            assert table["rate_bytes_per_s"][row] == pytest.approx(rate, nan_ok=True)
            direction = name.split()[1] if kind_of_work(events[0]) == "copies" else "fill"
            assert table.text("direction")[row] == direction
            kind = next((word for word in ("pageable", "pinned") if word in name.lower()), None)
            assert table.text("host_memory")[row] == kind


@pytest.mark.full
def test_every_launch_delay_equals_the_oracle(both):
    run, oracle = both
    if not oracle.work():
        return
    delays = launch_delays(run)
    pairs = oracle.launches()
    work, call = run.event_rows.select(delays.rows["event"]), run.event_rows.select(delays.rows["call"])
    actual = zip(
        work.text("name").to_list(),
        work["start_ns"].tolist(),
        call.text("name").to_list(),
        delays.rows["delay_ns"].tolist(),
        delays.rows["after_call_ns"].tolist(),
        strict=True,
    )
    assert sorted(actual) == sorted(
        (
            e["name"],
            e["begin"] - oracle.zero,
            c["name"],
            e["begin"] - c["begin"],
            e["begin"] - c["begin"] - c["length"],
        )
        for e, c in pairs
    )
    unlinked = len(oracle.work()) - len(pairs)
    assert delays.unlinked == unlinked
    linked_kernels = sum(event["cat"] in KERNEL for event, _ in pairs)
    assert delays.unlinked_kernels == len(oracle.of(KERNEL)) - linked_kernels
    assert delays.median_ns == median([e["begin"] - c["begin"] for e, c in pairs])
    waits = zip(work["start_ns"].tolist(), work["correlation"].tolist(), delays.rows["queued"].tolist(), strict=True)
    expected = [(e["begin"] - oracle.zero, e["args"]["correlation"], many) for e, many in oracle.queued()]
    assert sorted(waits) == sorted(expected)
    assert delays.rows["queued"].max() == max(many for *_, many in expected)


# Reference values: computed from the same files by another program, before this one was written.
REFERENCE = {
    "v100_resnet50_workers0": (603.558, 39.43, 43.97),
    "v100_ns_resolution": (472.454, 1.578, 2.558),
    "a100_ddp_8ranks_rank": (388.587, 16.36, 16.46),
    "b200_eager": (11.596, 86.27, None),
    "mi300_resnet_checkpoint": (84.002, 2.96, 4.91),
}


@pytest.mark.parametrize("name", REFERENCE)
def test_busy_and_idle_time_equal_the_reference_values(recorded, name):
    run = trace.read(recorded(f"{name}.json.gz"))
    busy_ms, idle_percent, idle_in_steps_percent = REFERENCE[name]
    device_busy = busy_time(run)
    first, last = device_busy.window_ns
    assert device_busy.busy_ns / MS == pytest.approx(busy_ms, abs=0.0006)
    assert 100 * device_busy.idle_ns / (last - first) == pytest.approx(idle_percent, abs=0.006)
    marks = run.event_rows.of_kind(EventKind.STEP)
    if idle_in_steps_percent is not None:
        row = device_busy.in_windows(marks["start_ns"].min(), (marks["start_ns"] + marks["dur_ns"]).max())
        assert 100 * (1 - row["busy_frac"][0]) == pytest.approx(idle_in_steps_percent, abs=0.006)
    else:
        assert not len(marks)


def test_kernels_without_a_launch_in_a_real_trace_are_counted_and_kept(recorded):
    run = trace.read(recorded("mi300_resnet_checkpoint.json.gz"))
    delays = launch_delays(run)
    assert (delays.unlinked_kernels, delays.unlinked) == (757, 968)
    assert kernel_table(run)["count"].sum() == 2995
    linked = run.event_rows.select(delays.rows["event"])
    alone = union(linked["start_ns"], linked["start_ns"] + linked["dur_ns"]).total_ns
    assert alone < 0.7 * busy_time(run).busy_ns  # what is told where the others are dropped


# Traps.


def step_of(start_ms, *, linked):
    """A launch and its kernel, 10 ms into a step; without its launch the kernel is all there is."""
    call = [event(EventKind.LAUNCH, "cudaLaunchKernel", start_ms + 5, 1, correlation=round(start_ms) + 1)]
    kernel = event(EventKind.KERNEL, "sgemm", start_ms + 10, 30, correlation=round(start_ms) + 1)
    return [*(call if linked else ()), kernel]


def test_a_kernel_without_a_launch_in_the_trace_counts_as_any_other():
    linked, unlinked = (
        run_of(stepped(lambda at, linked=linked: step_of(at, linked=linked), count=4)) for linked in (True, False)
    )
    assert busy_time(linked).busy_ns == busy_time(unlinked).busy_ns == 4 * 30 * MS
    assert busy_table(unlinked, "steps")["kernels_ns"].tolist() == [30 * MS] * 4
    assert kernel_table(unlinked)["count"].tolist() == [4]
    assert len(gap_table(unlinked)) == 3
    assert (launch_delays(linked).unlinked_kernels, launch_delays(unlinked).unlinked_kernels) == (0, 4)
    assert launch_delays(unlinked).median_ns is None


def test_steps_are_those_of_the_host_and_not_their_copies_on_the_device():
    """Kineto copies each step to the device's lanes, shorter and later; to count it is to have every step twice."""
    events = []
    for number in range(4):
        at = 1000 * number
        events += [
            x("user_annotation", f"ProfilerStep#{number}", at, 1000),
            x("gpu_user_annotation", f"ProfilerStep#{number}", at + 300, 600, tid=7),
            x("kernel", "sgemm", at + 300, 500, tid=7, device=0, stream=7, correlation=number + 1),
        ]
    run = trace.read(json.dumps({"traceEvents": events}).encode())
    assert step_table(run)["start_ns"].tolist() == [0, 1_000_000, 2_000_000, 3_000_000]
    assert step_table(run)["end_ns"].tolist() == [1_000_000, 2_000_000, 3_000_000, 4_000_000]
    assert busy_table(run, "steps")["busy_frac"].tolist() == [0.5] * 4
    assert busy_time(run).busy_ns == 2_000_000


LABELS = {
    "2021": ("Kernel", "Memcpy", "Memset", "Runtime", "Operator", "cudaLaunchKernel", "cudaMemcpyAsync", 0),
    "2022": ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "cudaLaunchKernel", "cudaMemcpyAsync", 0),
    "driver": ("kernel", "gpu_memcpy", "gpu_memset", "cuda_driver", "cpu_op", "cuLaunchKernelEx", "cuMemcpyAsync", 0),
    "AMD": ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "hipLaunchKernel", "hipMemcpyAsync", 2),
}


@pytest.mark.parametrize("year", LABELS)
def test_figures_do_not_depend_on_the_labels_of_trace_versions_and_vendors(year):
    kernel, memcpy, memset, call, op, launch, copy, device = LABELS[year]
    device_args = {"device": device, "stream": 7}
    events = [
        x(op, "aten::mm", 0, 20),
        x(call, launch, 5, 5, correlation=1),
        x(call, copy, 12, 5, correlation=2),
        x(kernel, "sgemm", 20, 30, tid=7, correlation=1, **device_args),
        x(memcpy, "Memcpy DtoH (Device -> Pinned)", 40, 20, tid=7, correlation=2, bytes="2000", **device_args),
        x(memset, "Memset (Device)", 80, 10, tid=7, correlation=3, **device_args),
        {"ph": "s", "id": 1, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 5},
        {"ph": "f", "id": 1, "cat": "async", "name": "async", "pid": 1, "tid": 7, "ts": 20, "bp": "e"},
    ]
    run = trace.read(json.dumps({"traceEvents": events}).encode())
    assert devices(run) == (device,)
    table = busy_table(run)
    actual = {name.removesuffix("_ns"): table[name].tolist()[0] for name in (*PARTS, "idle_ns")}
    assert actual == {
        "busy": 50_000,
        "idle": 20_000,
        "kernels": 30_000,
        "communication": 0,
        "copies": 20_000,
        "fills": 10_000,
        "exposed_communication": 0,
        "exposed_copies": 20_000,
    }
    assert kernel_table(run)["total_ns"].tolist() == [30_000]
    assert np.isnan(copy_table(run)["rate_bytes_per_s"][1])
    assert copy_table(run)["rate_bytes_per_s"][0] == 1e8
    delays = launch_delays(run)
    assert delays.rows["delay_ns"].tolist() == [15_000, 28_000]
    assert (delays.unlinked, delays.unlinked_kernels) == (1, 0)


# Absent is not zero.


def test_without_device_work_there_are_no_device_figures():
    run = run_of([event(EventKind.OP, "aten::mm", 0, 10)])
    for figure in (busy_time, busy_table, gap_table, launch_delays):
        assert figure(run) is None
    assert len(kernel_table(run)) == len(copy_table(run)) == 0
    assert devices(run) == ()
    worked = run_of([event(EventKind.KERNEL, "k", 0, 10, device=1)])
    assert busy_time(worked, 1).busy_ns == 10 * MS
    assert (
        busy_time(worked, 0) is busy_table(worked, device=0) is gap_table(worked, 0) is launch_delays(worked, 0) is None
    )


def test_busy_time_of_an_unrecorded_step_is_absent():
    kernels = [event(EventKind.KERNEL, "k", at + 10, 50) for at in (100, 200)]
    marks = [mark(at, 1, kind=MarkKind.NEXT) for at in (0, 100, 200, 300)]
    run = run_of(kernels, marks=marks, windows=[(100, 300)])
    table = busy_table(run, "steps")
    assert step_table(run)["recorded"].tolist() == [False, True, True]
    assert table["start_ns"].tolist() == [0, 100 * MS, 200 * MS]
    for part in (*PARTS, "idle_ns"):
        assert table[part][0] == -1
    assert table["busy_ns"].tolist() == [-1, 50 * MS, 50 * MS]
    assert np.isnan(table["busy_frac"][0])


def test_a_kernel_of_zero_length_is_counted_and_covers_no_time():
    run = run_of([event(EventKind.KERNEL, "k", 0, 0), event(EventKind.KERNEL, "k", 5, 0)])
    assert busy_time(run).busy_ns == 0
    assert busy_time(run).idle_ns == 5 * MS
    assert kernel_table(run)["count"].tolist() == [2]
    single = run_of([event(EventKind.KERNEL, "k", 5, 0)])
    assert np.isnan(busy_table(single)["busy_frac"][0])
    assert len(gap_table(single)) == 0
    assert kernel_table(single)["share_frac"].tolist() == [0.0]


def test_unknown_attributes_of_a_copy_are_absent():
    copies = [
        event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", 0, 3, size=6_000_000),
        event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", 5, 1),
        event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", 7, 0, size=4_000),  # too short for the clock
        event(EventKind.MEMCPY, "__amd_rocclr_copyBuffer", 10, 2),
    ]
    table = copy_table(run_of(copies))
    assert table["count"].tolist() == [3, 1]
    assert table["sized"].tolist() == [2, 0]
    assert table["bytes"].tolist() == [6_004_000, -1]
    assert table["total_ns"].tolist() == [4 * MS, 2 * MS]
    assert table["rate_bytes_per_s"][0] == 2e9
    assert np.isnan(table["rate_bytes_per_s"][1])
    assert table.text("direction").to_list() == ["HtoD", None]
    assert table.text("host_memory").to_list() == ["pageable", None]


@pytest.mark.parametrize(
    ("name", "way", "memory"),
    [
        ("Memcpy HtoD (Pageable -> Device)", "HtoD", "pageable"),
        ("Memcpy DtoH (Device -> Pinned)", "DtoH", "pinned"),
        ("Memcpy DtoD (Device -> Device)", "DtoD", None),
        ("Memcpy PtoP (Device -> Device)", "PtoP", None),
        ("Memcpy HtoH (Pageable -> Pageable)", "HtoH", "pageable"),
        ("Memcpy HtoD (Managed -> Device)", "HtoD", "managed"),
        ("Memcpy HtoD (Host -> Device)", "HtoD", None),
        ("CopyHostToDevice", "HtoD", None),
        ("CopyDeviceToDevice", "DtoD", None),
        ("MEMORY_COPY_DEVICE_TO_HOST", "DtoH", None),
        ("__amd_rocclr_copyBuffer", None, None),
        (None, None, None),
    ],
)
def test_direction_and_memory_follow_from_the_name_of_a_copy(name, way, memory):
    assert (copy_direction(name), host_memory(name)) == (way, memory)


# Several devices.


def two_devices():
    return run_of(
        [
            event(EventKind.LAUNCH, "cudaLaunchKernel", 0, 1, correlation=1),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 1, 1, correlation=2),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 2, 1, correlation=3),
            event(EventKind.KERNEL, "k", 10, 10, device=0, correlation=1),
            event(EventKind.KERNEL, "k", 15, 10, device=1, stream=20, correlation=2),
            event(EventKind.KERNEL, "j", 40, 5, device=1, correlation=3),
        ]
    )


def test_busy_time_is_per_device_or_of_all_devices_together():
    run = two_devices()
    assert devices(run) == (0, 1)
    assert [busy_time(run, device).busy_ns for device in (0, 1, None)] == [10 * MS, 15 * MS, 20 * MS]
    assert [len(gap_table(run, device)) for device in (0, 1, None)] == [0, 1, 1]
    assert kernel_table(run).text("name").to_list() == ["k", "j"]
    assert kernel_table(run).text("streams").to_list() == ["7, 20", "7"]
    assert kernel_table(run, 1).text("streams").to_list() == ["20", "7"]
    assert kernel_table(run, 0)["count"].tolist() == [1]


def test_each_device_has_its_launch_queue():
    run = two_devices()
    assert launch_delays(run).rows["queued"].tolist() == [1, 1, 2]
    assert launch_delays(run, 1).rows["queued"].tolist() == [1, 2]
    assert launch_delays(run).rows["queued"].max() == 2


# Gaps.


def test_gaps_have_the_step_in_which_they_start():
    run = run_of(stepped(lambda at: [event(EventKind.KERNEL, "k", at + 20, 30)], count=3))
    late = run_of(
        [
            *(event(EventKind.STEP, f"ProfilerStep#{n}", 10 + 10 * n, 10) for n in (0, 1)),
            *(
                event(EventKind.KERNEL, "k", at, dur)
                for at, dur in ((0, 5), (8, 2), (15, 1), (18, 2), (25, 5), (40, 1))
            ),
        ]
    )
    table = gap_table(run)
    assert table["start_ns"].tolist() == [50 * MS, 150 * MS]
    assert table["dur_ns"].tolist() == [70 * MS, 70 * MS]
    assert table["step"].tolist() == [0, 1]
    assert [at // MS for at in gap_table(late)["start_ns"].tolist()] == [5, 10, 16, 20, 30]
    assert gap_table(late)["step"].tolist() == [-1, 0, 0, 1, -1]
    assert len(gap_table(run, longer_than_ns=70 * MS - 1)) == 2
    assert len(gap_table(run, longer_than_ns=70 * MS)) == 0
    assert gap_table(run, steps=find_steps(run))["step"].tolist() == [0, 1]


def test_gaps_of_a_window_include_its_edges():
    device_busy = busy_time(run_of([event(EventKind.KERNEL, "k", 10, 10), event(EventKind.KERNEL, "k", 30, 10)]))
    assert device_busy.gaps().start_ns.tolist() == [20 * MS]
    assert device_busy.gaps(0, 50 * MS).start_ns.tolist() == [0, 20 * MS, 40 * MS]


# Launches.


def test_a_delay_starts_with_the_launch_call():
    run = run_of(
        [
            event(EventKind.LAUNCH, "cudaLaunchKernel", 0, 4, correlation=1),
            event(EventKind.KERNEL, "overlaps its call", 3, 10, correlation=1),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 5, 2, correlation=2),
            event(EventKind.KERNEL, "waits its turn", 13, 1, correlation=2),
        ]
    )
    delays = launch_delays(run)
    assert delays.rows["delay_ns"].tolist() == [3 * MS, 8 * MS]
    assert delays.rows["after_call_ns"].tolist() == [-1 * MS, 6 * MS]
    assert delays.median_ns == 5.5 * MS


def test_a_graph_is_one_call_with_many_kernels():
    kernels = [event(EventKind.KERNEL, f"k{n}", 10 + n, 1, correlation=7) for n in range(5)]
    run = run_of([event(EventKind.LAUNCH, "cudaGraphLaunch", 0, 2, correlation=7), *kernels])
    delays = launch_delays(run)
    assert delays.rows["call"].tolist() == [0] * 5
    assert delays.rows["delay_ns"].tolist() == [(10 + n) * MS for n in range(5)]
    assert delays.rows["queued"].tolist() == [5] * 5
    assert delays.unlinked == 0


def test_with_equal_correlation_ids_work_belongs_to_the_last_call_that_started_before():
    run = run_of(
        [
            event(EventKind.LAUNCH, "cudaLaunchKernel", 0, 4, correlation=7),
            event(EventKind.LAUNCH, "cuLaunchKernel", 1, 2, correlation=7),  # the first call makes this one
            event(EventKind.KERNEL, "first", 10, 1, correlation=7),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 20, 4, correlation=7, thread=1),  # of another process
            event(EventKind.KERNEL, "second", 20, 1, correlation=7),
            event(EventKind.KERNEL, "other", 21, 1, correlation=8),  # none has begun: the clocks disagree
            event(EventKind.LAUNCH, "cudaLaunchKernel", 22, 1, correlation=8),
            event(EventKind.LAUNCH, "cudaLaunchKernel", 30, 1, correlation=8),
            event(EventKind.KERNEL, "unknown", 40, 1),  # no correlation joins nothing
            event(EventKind.RUNTIME, "cudaGetDevice", 41, 1),
        ]
    )
    delays = launch_delays(run)
    assert delays.rows["call"].tolist() == [1, 3, 6]
    assert delays.rows["delay_ns"].tolist() == [9 * MS, 0, -1 * MS]
    assert delays.rows["queued"].tolist() == [1, 1, 1]
    assert delays.unlinked == delays.unlinked_kernels == 1


@st.composite
def worked(draw):
    """A run of random calls and device work, and the same as plain tuples."""
    pieces = draw(
        st.lists(
            st.tuples(
                st.sampled_from((EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.MEMCPY, EventKind.MEMSET)),
                st.sampled_from(("a", "b", "c")),
                st.integers(0, 30),  # when it begins
                st.integers(0, 9),  # how long it takes
                st.integers(0, 1),  # on which device
                st.none() | st.integers(-3, 25),  # how long before it was called for
            ),
            min_size=1,
            max_size=25,
        )
    )
    events = []
    for number, (kind, name, start, dur, device, before) in enumerate(pieces):
        base = event(kind, f"{name} {kind.name}", 0, 0, device=device, correlation=number)
        events.append({**base, "start_ns": start + 100, "dur_ns": dur})
        if before is not None:
            call = event(EventKind.LAUNCH, "cudaLaunchKernel", 0, 0, correlation=number)
            events.append({**call, "start_ns": start + 100 - before, "dur_ns": 2})
    return pieces, events


def instants(pieces, *kinds, device=None):
    return {
        at
        for kind, _, start, dur, work_device, _ in pieces
        if kind in kinds and device in (None, work_device)
        for at in range(start + 100, start + dur + 100)
    }


@given(worked(), st.integers(90, 150), st.integers(-5, 60), st.sampled_from((None, 0, 1)))
def test_busy_time_is_a_partition_of_any_window(trace_events, start, length, device):
    pieces, events = trace_events
    device_busy = busy_time(run_of(events), device)
    kernels, communication, copies, fills = (
        instants(pieces, kind, device=device)
        for kind in (EventKind.KERNEL, EventKind.COLLECTIVE, EventKind.MEMCPY, EventKind.MEMSET)
    )
    if device_busy is None:
        assert device not in {piece[4] for piece in pieces}
        return
    work_of_device = [
        (begin + 100, begin + dur + 100) for _, _, begin, dur, work_device, _ in pieces if device in (None, work_device)
    ]
    assert device_busy.window_ns == (min(begin for begin, _ in work_of_device), max(end for _, end in work_of_device))
    window = set(range(start, start + length))
    row = device_busy.in_windows(start, start + length)
    actual = {name.removesuffix("_ns"): int(row[name][0]) for name in (*PARTS, "idle_ns")}
    expected = {
        "busy": kernels | communication | copies | fills,
        "idle": window - kernels - communication - copies - fills,
        "kernels": kernels,
        "communication": communication,
        "copies": copies,
        "fills": fills,
        "exposed_communication": communication - kernels,
        "exposed_copies": (copies | fills) - kernels - communication,
    }
    assert actual == {name: len(covered & window) for name, covered in expected.items()}
    assert actual["busy"] == actual["kernels"] + actual["exposed_communication"] + actual["exposed_copies"]
    assert actual["busy"] + actual["idle"] == max(0, length)


@given(worked(), st.randoms())
def test_the_order_of_the_events_does_not_matter(trace_events, shuffle):
    _, events = trace_events
    mixed = list(events)
    shuffle.shuffle(mixed)
    one, other = run_of(events), run_of(mixed)
    assert (
        busy_time(one).in_windows([0, 110], [200, 120])["idle_ns"].tolist()
        == busy_time(other).in_windows([0, 110], [200, 120])["idle_ns"].tolist()
    )
    for table in (kernel_table, copy_table, gap_table):
        first, second = table(one), table(other)
        for column in first.table.columns:
            if column.dtype == "words":
                assert first.text(column.name).to_list() == second.text(column.name).to_list()
            else:
                np.testing.assert_array_equal(first[column.name], second[column.name])
    assert told_of(one) == told_of(other)


def told_of(run: Run):
    delays = launch_delays(run)
    launches = zip(
        run.event_rows["correlation"][delays.rows["event"]].tolist(),
        *(delays.rows[column].tolist() for column in ("kind", "delay_ns", "after_call_ns", "queued")),
        strict=True,
    )
    return sorted(launches), delays.unlinked, delays.unlinked_kernels


@given(worked())
def test_queue_depth_counts_launched_work_that_has_not_started(trace_events):
    pieces, events = trace_events
    run = run_of(events)
    delays = launch_delays(run)
    launched = {
        number: (start - before, max(start, start - before), device)
        for number, (_, _, start, _, device, before) in enumerate(pieces)
        if before is not None
    }
    work = run.event_rows["correlation"][delays.rows["event"]].tolist()
    assert sorted(work) == sorted(launched)
    for number, queued in zip(work, delays.rows["queued"].tolist(), strict=True):
        at, _, device_of_work = launched[number]
        assert queued == sum(
            call <= at <= start and device == device_of_work for call, start, device in launched.values()
        )
    assert delays.unlinked == len(pieces) - len(launched)


@given(worked())
def test_the_kernel_table_contains_all_kernels(trace_events):
    pieces, events = trace_events
    table = kernel_table(run_of(events))
    lengths = {}
    for kind, name, _, dur, *_ in pieces:
        if kind in (EventKind.KERNEL, EventKind.COLLECTIVE):
            lengths.setdefault(f"{name} {kind.name}", []).append(dur)
    actual = zip(
        table.text("name").to_list(),
        *(table[column].tolist() for column in ("count", "total_ns", "min_ns", "median_ns", "max_ns")),
        strict=True,
    )
    assert sorted(actual) == sorted(
        (name, len(all_), sum(all_), min(all_), median(all_), max(all_)) for name, all_ in lengths.items()
    )
    assert table["share_frac"].sum() == pytest.approx(1.0 if table["total_ns"].any() else 0.0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(-(2**60), 2**60)), max_size=60))
def test_groups_are_exact_for_large_numbers_too(pairs):
    codes, values = [code for code, _ in pairs], [value // 64 for _, value in pairs]
    groups = group_by_code(np.array(codes, np.int64), np.array(values, np.int64))
    assert groups.code.tolist() == sorted(set(codes))
    for n, code in enumerate(groups.code.tolist()):
        group_values = [value for c, value in zip(codes, values, strict=True) if c == code]
        actual = [int(each[n]) for each in (groups.count, groups.total, groups.minimum, groups.median, groups.maximum)]
        assert actual == [
            len(group_values),
            sum(group_values),
            min(group_values),
            median(group_values),
            max(group_values),
        ]
        assert int(groups.first[n]) == codes.index(code)
    assert groups.sums(values).tolist() == groups.total.tolist()


def test_more_names_than_a_16_bit_integer_are_distinguished():
    many = 40_000
    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(many), 2))
    groups = group_by_code(codes, codes * 3)
    assert groups.code.tolist() == list(range(many))
    assert (groups.total == 6 * groups.code).all()
    assert (groups.median == 3 * groups.code).all()


# Tables for reading.


def test_the_grid_is_that_of_the_first_launch():
    kernels = [event(EventKind.KERNEL, name, at, 1) for at, name in ((5, "k"), (1, "k"), (2, "j"))]
    grids = [
        {"event": e, "grid": grid, "block": block, "registers": -1, "shared_bytes": -1, "occupancy_frac": np.nan}
        for e, grid, block in ((0, 5, 50), (1, 7, 70))
    ]
    table = kernel_table(run_of(kernels, grid_rows=rows(GRIDS, grids)))
    assert table.text("name").to_list() == ["k", "j"]
    assert table["grid"].tolist() == [7, -1]
    assert table["block"].tolist() == [70, -1]


def test_tables_convert_to_dataframes_and_describe_their_columns():
    run = run_of(
        stepped(
            lambda at: [
                *step_of(at, linked=True),
                loader_call(at, 2),
                event(EventKind.MEMSET, "Memset (Device)", at, 1),
            ]
        )
    )
    tables = [busy_table(run), gap_table(run), kernel_table(run), copy_table(run), launch_delays(run).rows]
    for table in (*tables, step_table(run)):
        frame = table.frame()
        assert list(frame.columns) == [column.name for column in table.table.columns]
        assert len(frame) == len(table) > 0
        assert all(f"  {column.name} " in analysis.describe() for column in table.table.columns)
    assert kernel_table(run).frame().loc[0, ["name", "kind", "matrix", "count"]].tolist() == [
        "sgemm",
        "kernel",
        True,
        6,
    ]


UNITS = ("_ns", "_bytes", "_frac", "_bytes_per_s")
COUNTS_AND_NAMES = {  # what has no unit: kinds, text, numbers of things, and what joins rows
    *("name", "kind", "matrix", "count", "sized", "bytes", "streams", "grid", "block", "step"),
    *("direction", "host_memory", "event", "call", "queued"),
}


def test_every_column_has_a_meaning_and_a_unit():
    for table in (BUSY, GAPS, KERNELS, COPIES, LAUNCHES):
        for column in table.columns:
            assert len(column.meaning) > 5
            assert column.name.endswith(UNITS) != (column.name in COUNTS_AND_NAMES), column.name


def test_an_unknown_stream_is_not_listed():
    known_stream, unknown_stream = (
        event(EventKind.KERNEL, name, 0, 1, stream=stream) for name, stream in (("j", 7), ("k", -1))
    )
    both = event(EventKind.KERNEL, "k", 0, 1, stream=20)
    assert kernel_table(run_of([known_stream, unknown_stream])).text("streams").to_list() == ["7", None]
    assert kernel_table(run_of([known_stream, unknown_stream, both])).text("streams").to_list() == ["20", "7"]


def test_figures_do_not_need_the_events_in_order_of_time():
    events = [event(EventKind.KERNEL, f"k{at % 3}", at, 1) for at in range(0, 60, 2)]
    random.Random(1).shuffle(events)
    run = run_of(events)
    assert run.event_rows.table is EVENTS
    assert busy_time(run).busy_ns == 30 * MS
    assert busy_time(run).window_ns == (0, 59 * MS)
