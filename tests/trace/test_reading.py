"""Traces of every dialect read exactly: against an independent oracle on real files, and by hand on small ones."""

from __future__ import annotations

import gzip
import json
import signal
from collections import Counter
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import trace
from gpulab.intervals import covered_ns, union
from gpulab.tables import DEVICE_KINDS, EventKind
from gpulab.trace import kineto
from gpulab.trace.columns import times
from gpulab.trace.reading import chunks as cut
from gpulab.trace.reading import decoder, text_blocks
from gpulab.trace.reading.chunk_events import READ_EVERYTHING
from tests.support.oracle import DEVICE, KERNEL, MEMCPY, MEMSET, SHARED, covered, nanoseconds
from tests.support.runs.written_traces import read, x

# Real traces.


def test_a_real_trace_equals_the_oracle_to_the_nanosecond(both):
    run, oracle = both
    rows = run.event_rows
    events = zip(rows.text("name").to_list(), rows["start_ns"].tolist(), rows["dur_ns"].tolist(), strict=True)
    assert sorted(events) == oracle.everything()
    assert not run.recording.lost

    for kind, categories in ((EventKind.MEMCPY, MEMCPY), (EventKind.MEMSET, MEMSET)):
        events = oracle.of(categories)
        assert len(rows.of_kind(kind)) == len(events)
        assert rows.of_kind(kind)["dur_ns"].sum() == sum(event["length"] for event in events)
        sizes = [int(event["args"].get("bytes", -1)) for event in events]
        assert Counter(rows.of_kind(kind)["bytes"].tolist()) == Counter(sizes)
    kernels = rows.of_kind(EventKind.KERNEL, EventKind.COLLECTIVE)
    assert len(kernels) == len(oracle.of(KERNEL))
    assert kernels["dur_ns"].sum() == sum(event["length"] for event in oracle.of(KERNEL))

    device = rows.of_kind(*DEVICE_KINDS)
    ends = device["start_ns"] + device["dur_ns"]
    for index, busy_ns in oracle.busy_ns().items():
        on_device = device["device"] == index
        assert union(device["start_ns"][on_device], ends[on_device]).total_ns == busy_ns
    assert (device["thread"] == -1).all()
    joins = Counter(event["args"]["correlation"] for event in oracle.of(DEVICE))
    assert Counter(device["correlation"].tolist()) == joins


def test_steps_and_loader_time_of_a_real_trace_equal_the_oracle(both):
    run, oracle = both
    rows = run.event_rows
    steps = rows.of_kind(EventKind.STEP)
    ends = steps["start_ns"] + steps["dur_ns"]
    starts = dict(
        zip(steps.text("name").to_list(), zip(steps["start_ns"].tolist(), ends.tolist(), strict=True), strict=True)
    )
    assert starts == oracle.steps()
    loader = rows.of_kind(EventKind.LOADER)
    waits = union(loader["start_ns"], loader["start_ns"] + loader["dur_ns"])
    per_step = covered_ns(waits, steps["start_ns"], ends).tolist()
    assert dict(zip(steps.text("name").to_list(), per_step, strict=True)) == oracle.loader_ns()


def test_nanoseconds_without_leading_zeros_are_recognised_by_their_fractions():
    # Two weeks of nightly builds in March 2024 wrote 7 us and 5 ns as 7.5.
    start_ns = [1_710_892_800_000_000_000 + 1_000_000 * number + 37 * number % 1000 for number in range(1000)]
    unpadded = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"{ns}","pid":1,"tid":1,"ts":{ns // 1000}.{ns % 1000},"dur":2.50}}'
        for ns in start_ns
    )
    run = trace.read(f'{{"traceEvents":[{unpadded}]}}'.encode())
    starts = dict(zip(run.event_rows.text("name").to_list(), run.event_rows["start_ns"].tolist(), strict=True))
    assert starts == {str(ns): ns - start_ns[0] for ns in start_ns}
    assert (run.event_rows["dur_ns"] == 2050).all()
    assert run.facts["repairs"] == "nanoseconds without leading zeros"


def test_ordinary_fractions_are_not_misread_as_unpadded():
    start_ns = [1_710_892_800_000_000_000 + 1_000_000 * number + 37 * number % 1000 for number in range(1000)]
    padded = [f"{ns // 1000}.{ns % 1000:03}" for ns in start_ns]
    for texts in (padded, [text.rstrip("0").rstrip(".") for text in padded]):  # as many decimals as there need be
        events = ",".join(
            f'{{"ph":"X","cat":"cpu_op","name":"{ns}","pid":1,"tid":1,"ts":{text},"dur":2.5}}'
            for ns, text in zip(start_ns, texts, strict=True)
        )
        run = trace.read(f'{{"traceEvents":[{events}]}}'.encode())
        assert run.event_rows["start_ns"].tolist() == [ns - start_ns[0] for ns in start_ns]
        assert "repairs" not in run.facts


@pytest.mark.parametrize("time", ["1e999999999", "1e-999999999", "0e-999999999", "0e999999999"])
def test_a_huge_exponent_is_not_written_out(time):
    # Its digits would take a gigabyte for each event.
    event = '{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{},"dur":1}}'
    run = trace.read(f'{{"traceEvents":[{",".join([event.format(1), *[event.format(time)] * 200])}]}}'.encode())
    assert len(run.events) == (1 if time == "1e999999999" else 201)


def test_every_shared_trace_is_in_the_list(shared):
    assert sorted(path.name.removesuffix(".json.gz") for path in (shared / "traces").glob("*.json.gz")) == SHARED


@pytest.mark.parametrize(
    ("name", "device", "date", "rank", "workers"),
    [
        ("v100_resnet50_workers0", "Tesla V100-DGXS-32GB", "2021-06-08", None, [0]),
        ("v100_resnet50_workers4", "Tesla V100-DGXS-32GB", "2021-06-09", None, [None]),
        ("a100_ddp_8ranks_rank", "NVIDIA A100-PG509-200", "2022-08-22", 3, [None]),
        ("h100_bert_small_inference", "NVIDIA H100 80GB HBM3", "2025-07-18", None, []),
        ("mi300_compiled_triton", "AMD Instinct MI300X", "2026-05-13", None, []),
        ("cpu_only_gloo", "CPU", "2024-07-15", 34, []),
    ],
)
def test_a_real_trace_says_where_and_when_it_was_recorded(recorded, name, device, date, rank, workers):
    run = trace.read(recorded(f"{name}.json.gz"))
    assert (run.name, run.source.how, run.source.device, run.source.date) == (name, "recorded", device, date)
    assert run.rank == rank
    assert [loader.workers for loader in run.loaders] == workers


def test_the_main_thread_runs_the_loop_even_where_autograd_launches_more(recorded):
    run = trace.read(recorded("v100_ns_resolution.json.gz"))
    launches = run.event_rows.of_kind(EventKind.LAUNCH)["thread"]
    assert np.bincount(launches).argmax() != run.main_thread
    assert run.threads[run.main_thread] == "thread 1102 (pt_main_thread)"


def test_without_batches_the_main_thread_is_the_one_where_the_optimizer_steps():
    forward = (x("cpu_op", "aten::mm", 0, 1), x("cuda_runtime", "cudaLaunchKernel", 0.1, 0.1))
    launches = [x("cuda_runtime", "cudaLaunchKernel", 2 + 0.2 * number, 0.1, tid=2) for number in range(2)]
    update = x("user_annotation", "Optimizer.step#SGD.step", 4, 1)
    run = read(*forward, x("cpu_op", "aten::mm", 2, 1, tid=2), *launches, update)
    assert run.event_rows["thread"][run.event_rows.is_kind(EventKind.ANNOTATION)].tolist() == [run.main_thread]


# Times.


@pytest.mark.parametrize(
    ("ts", "dur"),
    [
        ("1712195495519689.047", "63.813"),  # early 2024: from 1970, with decimals; float64 keeps a quarter of a µs
        ("4392144581842.131", "0.001"),
        ("1623142623460111", "25"),
        ("8796093022208.001", "1.5"),  # just beyond what float64 holds
        ("0.0005", "0.0015"),  # half a ns rounds to even
    ],
)
def test_times_are_exact_to_the_nanosecond(ts, dur):
    text = '{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "first", "pid": 1, "tid": 1, "ts": 0, "dur": 0},'
    text = text.replace('"ts": 0', f'"ts": {int(Decimal(ts))}')
    text += f'{{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": {ts}, "dur": {dur}}}]}}'
    rows = trace.read(text.encode()).event_rows
    row = rows.text("name").to_list().index("a")
    assert rows["start_ns"][row] == nanoseconds(Decimal(ts)) - int(Decimal(ts)) * 1000
    assert rows["dur_ns"][row] == nanoseconds(Decimal(dur))


@given(st.lists(st.decimals(0, 2**42, places=3) | st.integers(0, 2**42), min_size=1))
def test_fast_nanosecond_conversion_agrees_with_exact_arithmetic(values):
    exact = [nanoseconds(value) for value in values]
    assert times.nanoseconds_from_numbers(list(map(float, values))).tolist() == exact
    mixed = [value if isinstance(value, int) else float(value) for value in values]
    assert times.nanoseconds_from_numbers(mixed).tolist() == exact


@given(st.lists(st.integers(-(2**51), 2**51)))
def test_whole_microseconds_are_a_thousand_nanoseconds_each(values):
    assert times.nanoseconds_from_numbers(values).tolist() == [1000 * value for value in values]


@given(st.lists(st.integers(-(2**42), 2**42)))
def test_a_missing_time_among_whole_microseconds_stays_missing(values):
    with_gaps = [part for value in values for part in (value, float("nan"))]
    expected = [part for value in values for part in (1000 * value, int(times.MISSING))]
    assert times.nanoseconds_from_numbers(with_gaps).tolist() == expected


@given(st.lists(st.decimals(-(2**51), 2**51, places=3) | st.integers(-(2**50), 2**50)))
def test_exact_nanosecond_conversion_is_exact(values):
    assert times.nanoseconds_from_text(values).tolist() == [nanoseconds(value) for value in values]


def test_fast_conversion_rejects_values_beyond_float64():
    for values in ([1712195495519689.047], [2.0**43], [1, 2**43 + 0.5], [float("inf")], [2**60], [2**70], [2**2000]):
        assert times.nanoseconds_from_numbers(values) is None


def test_time_zero_is_the_earliest_event_and_the_date_is_kept():
    run = read(
        x("cpu_op", "late", 1000.5, 1), x("cpu_op", "early", 1000.25, 1), baseTimeNanoseconds=1_700_000_000 * 10**9
    )
    assert run.event_rows["start_ns"].tolist() == [0, 250]
    assert run.began_ns == 1_700_000_000 * 10**9 + 1_000_250
    assert run.source.date == "2023-11-14"
    assert run.span_ns == 1250
    assert run.recording.windows_ns == ((0, 1250),)


def test_the_start_is_known_for_traces_that_count_from_1970_only():
    assert read(x("cpu_op", "a", 1661203462598738, 1)).began_ns == 1661203462598738000
    run = read(x("cpu_op", "a", 5.0, 1))
    assert run.began_ns is None
    assert run.source.date is None


def test_the_base_time_may_follow_the_events():
    text = (
        b'{"traceEvents": [%s], "baseTimeNanoseconds": 1700000000000000000}'
        % json.dumps(x("cpu_op", "a", 1, 1)).encode()
    )
    assert trace.read(text).began_ns == 1700000000000001000


def test_rows_are_in_order_of_time_and_parents_before_their_children():
    run = read(
        x("cpu_op", "child", 5, 1), x("cpu_op", "last", 6, 1), x("cpu_op", "parent", 5, 9), x("cpu_op", "first", 1, 1)
    )
    assert run.event_rows.text("name").to_list() == ["first", "parent", "child", "last"]


# Streaming.


def many(count):
    """A trace of `count` events with everything that could mislead a cut between them."""
    events = [
        x("cpu_op", 'a},{"ph":"X" \\ ' + str(i), i, 1, nested=[{"ph": "X"}, {"ph": 1}], text='},\n  {"ph": "')
        for i in range(count)
    ]
    return {"schemaVersion": 1, "traceEvents": events, "traceName": "x.json", "baseTimeNanoseconds": 7}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [64, 1000, 100_000])
def test_a_trace_is_the_same_wherever_it_is_cut(monkeypatch, size, indent):
    text = json.dumps(many(500), indent=indent).encode()
    intact = trace.read(text)
    monkeypatch.setattr(text_blocks, "BLOCK", size)
    monkeypatch.setattr(cut, "BLOCK", size)
    for pieces in (trace.read(text), trace.read(gzip.compress(text))):
        assert pieces.event_rows.text("name").to_list() == intact.event_rows.text("name").to_list()
        assert not pieces.recording.lost
        assert pieces.began_ns == intact.began_ns == 7


@pytest.mark.parametrize("keys", ["name first", "turn about"])
def test_events_need_not_begin_with_their_phase(monkeypatch, keys):
    monkeypatch.setattr(cut, "BLOCK", 1000)
    monkeypatch.setattr(cut, "_UNKEYED_AFTER", 4000)
    monkeypatch.setattr(text_blocks, "BLOCK", 1000)
    document = many(300)
    for number, event in enumerate(document["traceEvents"]):
        order = sorted(event, reverse=bool(number % 2) and keys == "turn about")
        document["traceEvents"][number] = {key: event[key] for key in order}
    run = trace.read(json.dumps(document).encode())
    assert len(run.event_rows) == 300
    assert not run.recording.lost


def test_gzip_members_are_read_one_after_the_other():
    text = json.dumps(many(50)).encode()
    run = trace.read(gzip.compress(text[:3000]) + gzip.compress(text[3000:]) + b"\0" * 100)
    assert len(run.event_rows) == 50
    assert not run.recording.lost


def test_without_isal_the_standard_library_gives_the_same(monkeypatch):
    import zlib

    text = gzip.compress(json.dumps(many(200)).encode())
    fast = trace.read(text)
    monkeypatch.setattr(text_blocks, "fast_zlib", zlib)
    assert trace.read(text).event_rows["start_ns"].tolist() == fast.event_rows["start_ns"].tolist()


def test_a_trace_is_recognised_by_its_content(tmp_path):
    text = json.dumps(many(1)).encode()
    for name, content in (("a.txt", text), ("b.gpulab", gzip.compress(text)), ("c", b"\xef\xbb\xbf\n [")):
        (tmp_path / name).write_bytes(content)
        assert trace.is_trace(tmp_path / name)
    for content in (b"", b"PK\x03\x04", b"hello", gzip.compress(b"hello"), b"\x1f\x8b"):
        (tmp_path / "d.json").write_bytes(content)
        assert not trace.is_trace(tmp_path / "d.json")
    assert not trace.is_trace(tmp_path)
    assert not trace.is_trace(Path("missing.json"))


def test_the_oracle_counts_covered_time_itself():
    assert covered([(0, 10), (5, 12), (20, 21), (30, 30)]) == 13


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no SIGALRM")
def test_a_signal_while_the_decoder_is_built_is_not_lost(monkeypatch):
    built, build = [], decoder._new_types

    def interrupted(options):
        signal.raise_signal(signal.SIGALRM)  # msgspec would drop the exception of its handler
        built.append(build(options))
        return built[0]

    def handler(*_):
        raise TimeoutError

    monkeypatch.setattr(decoder, "_new_types", interrupted)
    decoder._types_for.cache_clear()
    earlier = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError):
            decoder.parse_events(b"[]", READ_EVERYTHING)
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert built


@pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="Windows has no SIGALRM")
def test_a_signal_while_the_size_of_a_trace_is_read_is_not_lost(tmp_path, monkeypatch):
    path, stat = tmp_path / "trace.json", type(tmp_path).stat
    path.write_text("{}")

    def interrupted(self, **options):
        if self == path:
            signal.raise_signal(signal.SIGALRM)
        return stat(self, **options)

    def handler(*_):
        raise TimeoutError

    monkeypatch.setattr(type(tmp_path), "stat", interrupted)
    earlier = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(TimeoutError):
            kineto._is_small(path)
    finally:
        signal.signal(signal.SIGALRM, earlier)
