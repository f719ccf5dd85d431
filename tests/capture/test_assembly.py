"""Merging several traces of one cell into one run: on the cell's clock, with correct references to events."""

from __future__ import annotations

from dataclasses import replace

from gpulab.capture.merge_traces import merge_traces
from tests.support.runs.made_runs import run_of
from tests.support.runs.written_traces import read, x

BASE_NS = 1_790_000_000_000_000_000


def trace_at(start_us, thread):
    """A trace with this start: an operator with shapes on a thread, the kernel it starts, and its memory."""
    return read(
        x("cpu_op", "aten::mm", start_us, 2, tid=thread, **{"Input Dims": [[thread]], "Input type": ["float"]}),
        x("kernel", "gemm", start_us + 5, 1, device=0, stream=7, correlation=1, grid=[thread, 1, 1], block=[32, 1, 1]),
        {
            **{"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": thread, "ts": start_us + 1},
            "args": {"Bytes": thread, "Device Id": 0, "Device Type": 1},
        },
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": f"thread {thread}"}},
        baseTimeNanoseconds=BASE_NS,
    )


def test_merged_traces_use_the_cells_clock_and_keep_their_event_references():
    cell = replace(run_of(), began_ns=BASE_NS + 10_000)
    run = merge_traces(cell, [trace_at(100, 3), trace_at(200, 4)])
    assert run.event_rows["start_ns"].tolist() == [90_000, 95_000, 190_000, 195_000]
    assert run.threads == ("thread 3", "thread 4")
    assert run.event_rows["thread"].tolist() == [0, -1, 1, -1]
    assert run.grid_rows["event"].tolist() == [1, 3]
    assert run.grid_rows["grid"].tolist() == [3, 4]
    assert run.shape_rows["event"].tolist() == [0, 2]
    assert run.shape_rows.text("shapes").to_list() == ["[[3]]", "[[4]]"]
    assert run.memory_rows["at_ns"].tolist() == [91_000, 191_000]
    assert run.memory_rows["thread"].tolist() == [0, 1]
    assert run.memory_rows["bytes"].tolist() == [3, 4]


def test_a_cell_without_a_trace_is_unchanged():
    cell = run_of()
    assert merge_traces(cell, []) is cell
