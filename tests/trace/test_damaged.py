"""Damaged and hostile traces: a run, a partial run that lists the losses, or a TraceError; never anything else."""

from __future__ import annotations

import gzip
import json
import os
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import trace
from gpulab.errors import TraceError
from gpulab.run import Run
from gpulab.trace import Limits
from gpulab.trace.reading import chunks, text_blocks
from gpulab.trace.reading.repair import repair_json
from tests.support.tiers import examples


def event(number, **more):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": f"aten::op{number}",
        "pid": 1,
        "tid": 1,
        "ts": number + 0.125,
        "dur": 0.5,
        "args": {"External id": number, "Input Dims": [[2, 3], []], "Call stack": 'a.py(1): "f"'},
        **more,
    }


DOCUMENT = {
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
    "traceEvents": [
        *(event(number) for number in range(6)),
        event(7, cat="kernel", args={"device": 0, "stream": 7, "grid": [2, 1, 1], "correlation": 3}),
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main"}},
    ],
    "traceName": "x.json",
    "baseTimeNanoseconds": 1_700_000_000_000_000_000,
}
TEXT = json.dumps(DOCUMENT, indent=1).encode()
PACKED = gzip.compress(TEXT)


def names(run):
    return [name.removeprefix("aten::") for name in run.event_rows.text("name").to_list()]


def outcome(text, **limits):
    """The run, or the error; anything else fails the test."""
    try:
        return trace.read(text, limits=Limits(**limits) if limits else None)
    except TraceError as error:
        result = error
    assert result.problem
    assert result.why
    assert result.fix
    return result


def with_event(text):
    """A trace in which one event, as raw text, stands between two sound ones."""
    sound = [json.dumps(event(number)).encode() for number in (1, 2)]
    return b'{"traceEvents": [' + b", ".join((sound[0], text, sound[1])) + b'], "baseTimeNanoseconds": 7}'


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks so small that every damage also meets the seams."""
    monkeypatch.setattr(text_blocks, "BLOCK", 400)
    monkeypatch.setattr(chunks, "BLOCK", 400)


# Cut off.


@pytest.mark.full
def test_a_truncated_trace_gives_the_events_before_the_cut():
    intact = names(trace.read(TEXT))
    most = 0
    for size in range(1, len(TEXT)):
        result = outcome(TEXT[:size])
        if isinstance(result, TraceError):
            assert most == 0
            continue
        assert names(result) == intact[: len(names(result))]
        assert len(names(result)) >= most
        most = len(names(result))
        assert result.recording.lost or TEXT[:size].rstrip().endswith((b"]", b"}"))
    assert most == len(intact)


def test_every_truncation_with_tiny_blocks_gives_the_same(small_blocks):
    for size in range(1, len(TEXT), 7):
        outcome(TEXT[:size])


def test_every_truncation_of_the_compressed_file_is_survived():
    for size in range(1, len(PACKED)):
        outcome(PACKED[:size])
    run = trace.read(PACKED[:-20])
    assert len(run.event_rows) >= 5
    assert run.recording.lost["the file ends early"] == 1


def test_the_trace_of_a_killed_job_keeps_its_valid_part(recorded):
    text = gzip.decompress(recorded("v100_resnet50_workers0.json.gz").read_bytes())
    intact = trace.read(text)
    half = trace.read(text[: len(text) * 6 // 10])
    assert len(half.event_rows) > 20_000
    assert half.recording.lost == {"the file ends early": 1}
    events = set(zip(half.event_rows.text("name").to_list(), half.event_rows["dur_ns"].tolist(), strict=True))
    assert events <= set(
        zip(intact.event_rows.text("name").to_list(), intact.event_rows["dur_ns"].tolist(), strict=True)
    )


def test_damaged_compressed_data_keeps_the_events_before_the_damage():
    text = json.dumps({"traceEvents": [event(number) for number in range(5000)]}).encode()
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = os.urandom(40)
    run = outcome(bytes(packed))
    assert isinstance(run, Run)
    assert len(run.event_rows) > 1000
    assert set(run.recording.lost) & {"compressed data damaged from some point on", "event that is not JSON"}


# One event that is not as it should be.


ODD = b'{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 1.5, "dur": 1, %s}'


@pytest.mark.parametrize(
    ("fault", "repair"),
    [
        (b'"args": {"x": NaN}', "bare NaN, inf or N/A"),
        (b'"args": {"x": -inf}', "bare NaN, inf or N/A"),
        (b'"args": {"x": [-nan(ind), N/A]}', "bare NaN, inf or N/A"),
        (b'"x": "C:\\users"', "broken escapes"),
        (b'"x": "\\ud800"', "broken escapes"),
        (b'"tid": "\xff\xfe"', "text that is not UTF-8"),
        (b'"x": "a\nb\x00"', "control characters"),
    ],
)
def test_faults_in_json_are_repaired_and_reported(fault, repair, small_blocks):
    run = trace.read(with_event(ODD % fault))
    assert names(run) == ["op1", "odd", "op2"]
    assert run.recording.lost == {}
    assert run.facts["repairs"] == repair
    assert run.began_ns == 1132


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (b'{"ph": "X", "name": "an "unescaped" quote", "ts": 1, "dur": 1}', "event that is not JSON"),
        (b'{"ph": "X", "name": }', "event that is not JSON"),
        (b"[1, 2]", "event that is not JSON"),
        (b'"text"', "event that is not JSON"),
        (b'{"cat": "cpu_op", "name": "no phase"}', "event that is not JSON"),
        (b'{"ph": "X", "cat": "cpu_op", "dur": 1}', "event without a usable time"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": "soon", "dur": 1}', "event without a usable time"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": null, "dur": 1}', "event without a usable time"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": 1e999999999, "dur": 1}', "event without a usable time"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": 1e9999999999999999999, "dur": 1}', "event that is not JSON"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": [1], "dur": 1}', "event without a usable time"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": 1623142623460111}', "event more than a week from the others"),
        (b'{"ph": "X", "cat": "cpu_op", "ts": 1, "dur": 1e15}', "event more than a week from the others"),
    ],
)
def test_an_unreadable_event_is_counted_and_the_others_are_kept(text, cause, small_blocks):
    run = trace.read(with_event(text))
    assert names(run) == ["op1", "op2"]
    assert run.recording.lost == {cause: 1}
    assert run.began_ns == 1132


def test_negative_and_missing_durations_become_zero():
    run = trace.read(
        with_event(b'{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 1.5, "dur": -3}')
    )
    assert run.event_rows["dur_ns"].tolist() == [500, 0, 500]
    assert run.recording.lost == {"negative duration, taken as zero": 1}
    run = trace.read(with_event(b'{"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 1.5}'))
    assert run.event_rows["dur_ns"].tolist() == [500, 0, 500]


@pytest.mark.parametrize("value", [None, True, "7", "x", 1.5, -3, 2**70, 1e300, [], [1], {}, {"a": [1]}, [[1], 2]])
@pytest.mark.parametrize("field", ["name", "cat", "pid", "tid", "ts", "dur", "args", "ph"])
def test_any_type_in_any_field_is_survived(field, value, small_blocks):
    for category in ("cpu_op", "kernel"):
        run = trace.read(with_event(json.dumps(event(1, cat=category) | {field: value}).encode()))
        assert set(names(run)) >= {"op1", "op2"}


@pytest.mark.parametrize(
    "value", [None, True, "7", "x", 1.5, -3, 2**70, 1e300, [], [1], [1, "a"], [2**40] * 3, {}, "inf"]
)
@pytest.mark.parametrize(
    "field", ["stream", "device", "correlation", "bytes", "grid", "block", "est. achieved occupancy %"]
)
def test_any_type_in_any_argument_is_survived(field, value):
    run = trace.read(with_event(json.dumps(event(1, cat="kernel", args={field: value})).encode()))
    assert len(run.event_rows) == 3
    assert not run.recording.lost


@pytest.mark.parametrize(
    "value", [None, True, "7", -3, 2**70, 1e300, [], [1], [{}], {}, {"rank": "x"}, [{"name": 3, "id": "a"}]]
)
@pytest.mark.parametrize(
    "field",
    ["deviceProperties", "distributedInfo", "baseTimeNanoseconds", "with_stack", "host_name", "cuda_runtime_version"],
)
def test_any_type_in_the_metadata_is_survived(field, value):
    run = trace.read(json.dumps({field: value, "traceEvents": [event(1)]}).encode())
    assert names(run) == ["op1"]


def test_metadata_that_are_not_json_are_lost_without_the_events():
    run = trace.read(TEXT.replace(b'"schemaVersion": 1', b'"schemaVersion": oops'))
    assert len(run.event_rows) == 7
    assert run.recording.lost == {"metadata that is not JSON": 1}
    assert run.began_ns == 1_700_000_000_000_000_125
    run = trace.read(TEXT.replace(b'"traceName": "x.json"', b'"traceName": x.json'))
    assert len(run.event_rows) == 7
    assert run.recording.lost == {"metadata that is not JSON": 1}


def test_names_are_cut_to_a_maximum_length():
    run = trace.read(json.dumps({"traceEvents": [event(1, name="x" * 100_000), event(2, name="größe λ 核")]}).encode())
    long, letters = run.event_rows.text("name").to_list()
    assert len(long) == 16_384
    assert long.endswith("…")
    assert letters == "größe λ 核"


# Not traces.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "0 bytes"),
        (b"   \n", "no readable events"),
        (b"hello", "traceEvents"),
        (b"{}", "traceEvents"),
        (b"[]", "no readable events"),
        (b"[1, 2, 3]", "no readable events"),
        (b"null", "traceEvents"),
        (b'{"cells": [], "nbformat": 4}', "traceEvents"),
        (b'{"traceEvents": [', "ends early"),
        (b"\x80\x04\x95pickle", "traceEvents"),
        (b"PK\x03\x04" + b"x" * 50, "zip archive"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "zstd"),
        ("\ufeff{}".encode("utf-16"), "UTF-16"),
        (gzip.compress(b"", mtime=0), "no readable events"),
        (gzip.compress(b"hello", mtime=0), "traceEvents"),
        (b"\x1f\x8b" + b"x" * 50, "damaged"),
    ],
)
def test_text_that_is_not_a_trace_is_rejected_with_a_reason(text, why):
    error = outcome(text)
    assert isinstance(error, TraceError)
    assert why in str(error)
    assert "export_chrome_trace" in error.fix or "save it" in error.fix or "unpack" in error.fix or "zstd" in error.fix


def test_a_path_that_is_not_a_file_is_rejected_with_a_reason(tmp_path):
    for path, why in ((tmp_path, "a directory"), (tmp_path / "missing.json", "No such file"), ("a\0b", "null")):
        with pytest.raises(TraceError, match=why):
            trace.read(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_rejected_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="not a regular file"):
        trace.read(tmp_path / "pipe")


# Bombs.


def repeated(byte, count):
    """gzip of one byte over and over, made without holding the text."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    parts = [packer.compress(byte * 2**20) for _ in range(count)]
    return b"".join((*parts, packer.flush()))


def test_a_decompression_bomb_is_rejected():
    bomb = repeated(b" ", 300)
    assert len(bomb) < 400_000
    error = outcome(b"" + bomb)
    assert isinstance(error, TraceError)


def test_a_bomb_after_a_valid_beginning_is_rejected_by_its_ratio():
    error = outcome(gzip.compress(TEXT[:-300]) + repeated(b"9", 80), ratio_from_bytes=2**25)
    assert isinstance(error, TraceError)
    assert "expands too far" in error.problem


def test_text_above_the_limit_is_not_read():
    text = json.dumps({"traceEvents": [event(number) for number in range(20_000)]}).encode()
    run = outcome(gzip.compress(text), text_bytes=2**21)
    assert 5_000 < len(run.event_rows) < 15_000
    assert run.recording.lost["text above the limit, not read"] == 1


def test_events_above_the_limit_are_not_read():
    text = json.dumps({"traceEvents": [event(number) for number in range(20_000)]}).encode()
    run = outcome(text, events=1000)
    assert 1000 < len(run.event_rows) < 15_000
    assert run.recording.lost["events above the limit, not read"] == 1


def test_an_event_above_the_size_limit_is_skipped_and_counted():
    giant = event(3, args={"Call stack": "x" * 9_000_000})
    events = [event(1), giant, *(event(number) for number in range(4, 5000))]
    run = outcome(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 5}).encode(), event_bytes=2**22)
    assert len(run.event_rows) == 4997
    assert run.recording.lost == {"event above the size limit": 1}
    assert run.began_ns is not None
    assert len(outcome(json.dumps({"traceEvents": events}).encode()).event_rows) == 4998


@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b'{"ph":"X","args":{"a":[', b'{"traceEvents":[', b'"', b'{"ph":"X"},{']
)
def test_deep_nesting_and_many_open_brackets_finish_in_time(opening):
    for before in (
        b"",
        b'{"traceEvents": [',
        b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "args": ',
    ):
        outcome(before + opening * (400_000 // len(opening)))


def test_many_damaged_events_do_not_take_forever():
    text = b'{"traceEvents": [' + b'{"ph": "X", "name": "a "quote" in it", "args": {"a": [},\n' * 20_000 + TEXT[-200:]
    outcome(text)


# Anything at all.


@examples(200)
@given(data=st.data())
def test_no_damage_raises_anything_but_a_trace_error(data):
    text = bytearray(data.draw(st.sampled_from([TEXT, PACKED])))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        until = data.draw(st.integers(at, min(len(text), at + 60)))
        text[at:until] = data.draw(
            st.binary(max_size=12) | st.sampled_from([b'"', b"\\", b"}", b"]", b"{", b"[", b",", b"NaN", b"\xff"])
        )
    result = outcome(bytes(text))
    if isinstance(result, Run):
        rows = result.event_rows
        assert (rows["start_ns"] >= 0).all()
        assert (rows["dur_ns"] >= 0).all()
        assert len(rows) <= 8


@examples(100)
@given(st.binary(max_size=400))
def test_repairing_valid_json_changes_nothing(noise):
    sound = json.dumps({"text": noise.decode("latin-1"), "a\\": ["\\\\", "nan", "N/A \\"]}).encode()
    assert repair_json(sound) == (sound, ())


def test_mutations_of_a_trace_with_tiny_blocks_are_survived(small_blocks):
    rng = random.Random(7)
    for _ in range(400):
        text = bytearray(TEXT)
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(text))
            text[at : at + rng.randrange(0, 80)] = bytes(
                rng.choice(b'"\\{}[],:x\xff\n0') for _ in range(rng.randrange(0, 5))
            )
        outcome(bytes(text))
