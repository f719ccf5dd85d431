"""A run as a trace for Perfetto: read back it is the same run, to the nanosecond; what gpulab saw stands beside it."""

import dataclasses
import gzip
import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.errors import GpulabError
from gpulab.rules import diagnose
from gpulab.run import TRACE_TABLES, Gpu, Machine
from gpulab.tables import GPU_SAMPLES, MEMORY, WAITS, EventKind
from gpulab.trace.perfetto import EVENTS_PER_CHUNK, HOST, NOTES, SENSORS, write_trace
from gpulab.views.perfetto import to_perfetto
from tests.support.runs.made_runs import (
    MS,
    NO_WORKERS,
    collective,
    collective_columns,
    event,
    gpu_samples,
    host_sample,
    launched_kernel,
    loader_call,
    on_gpu,
    rank_of,
    rows,
    run_of,
    stepped,
)
from tests.support.tiers import every_nth


def starved(at):
    tracks = [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 2)]
    tracks += launched_kernel("ampere_sgemm", at + 45.000007, 38, number=round(at) + 1, called_ms=at + 41.2, grid=64)
    tracks += launched_kernel(
        "elementwise", at + 83, 5, number=round(at) + 2, called_ms=at + 42, shapes=[[64, 3], []], dtypes=["float", ""]
    )
    tracks.append(
        event(
            EventKind.MEMCPY,
            "Memcpy HtoD (Pinned -> Device)",
            at + 90,
            3,
            stream=9,
            size=4096,
            correlation=round(at) + 3,
        )
    )
    return [*tracks, event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 89, 0.5, correlation=round(at) + 3)]


def a_run(**more):
    samples = [host_sample(at, cpu_frac=0.5) for at in range(0, 600, 100)]
    return on_gpu(stepped(starved), loaders=[NO_WORKERS], samples=samples, **more)


def written(run, path):
    return json.loads(to_perfetto(run, path).read_bytes())["traceEvents"]


def assert_same(one, other):
    """The same events and side tables; threads by name, as each file counts them in its own order."""
    begins = int(one.event_rows["start_ns"].min(initial=2**62))
    for field in TRACE_TABLES:
        mine, theirs = getattr(one, field), getattr(other, field)
        assert len(mine) == len(theirs), field
        for column in mine.table.columns:
            expected, tracks = mine[column.name], theirs[column.name]
            if column.dtype == "words":
                expected, tracks = mine.text(column.name).to_list(), theirs.text(column.name).to_list()
            elif column.name == "thread":
                expected = [one.threads[at] if at >= 0 else None for at in expected]
                tracks = [other.threads[at] if at >= 0 else None for at in tracks]
            elif column.name in ("start_ns", "at_ns"):
                tracks = tracks + begins
            np.testing.assert_array_equal(expected, tracks, f"{field}.{column.name}")


# Read back.

TRACES = (
    "h100_bert_small_inference",
    "v100_resnet50_workers0",
    "a100_ddp_8ranks_rank",
    "mi210_gpu_only",
    "cuda_event_sync_multi_stream",
)


@pytest.mark.full
@pytest.mark.parametrize("name", every_nth(TRACES, 3, pytest.mark.night))
def test_a_recorded_run_read_back_is_the_same_run(name, recorded, tmp_path):
    run = gpulab.load(recorded(f"{name}.json.gz"), shapes=True)
    again = gpulab.load(to_perfetto(run, tmp_path / "again.json.gz"), shapes=True)
    assert_same(run, again)
    assert again.recording.lost == {}
    assert again.recording.left_out == ()
    assert (again.began_ns, again.rank) == (run.began_ns, run.rank)
    assert [gpu.name for gpu in again.machine.gpus] == [gpu.name for gpu in run.machine.gpus]


def test_a_made_run_read_back_is_the_same_run(tmp_path):
    assert_same(a_run(), gpulab.load(to_perfetto(a_run(), tmp_path / "again.json")))


def test_what_collectives_move_and_what_waits_wait_for_comes_back(tmp_path):
    events = [
        collective("ncclDevKernel_AllReduce", 10 * n, 5, moves=collective_columns(1000 + n, sequence=n))
        for n in range(4)
    ]
    run = rank_of([event(EventKind.OP, "aten::mm", 0, 50), *events], rank=3)
    waits = rows(WAITS, [{"event": 0, "wait_on_stream": 7, "wait_on_correlation": 12}])
    run = dataclasses.replace(run, wait_rows=waits, event_rows=run.event_rows)
    again = gpulab.load(to_perfetto(run, tmp_path / "again.json"))
    np.testing.assert_array_equal(again.collective_rows["elements_in"], [1000, 1001, 1002, 1003])
    np.testing.assert_array_equal(again.collective_rows["sequence"], range(4))
    assert again.rank == 3


def test_memory_that_was_told_of_before_the_first_event_comes_back(tmp_path):
    memory = MEMORY.of([[-1500, 0, 0, 512, 64, 512, 1024], [2 * MS + 507, 0, -1, -512, 64, -1, -1]])
    run = dataclasses.replace(a_run(), memory_rows=memory, began_ns=1_700_000_000_000_000_000)
    again = gpulab.load(to_perfetto(run, tmp_path / "again.json"))
    assert_same(run, again)
    assert again.began_ns == run.began_ns
    assert min(each.get("ts", 0) for each in written(run, tmp_path / "out.json")) >= 0


times = st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 2**40)), min_size=1, max_size=20)


@given(times)
def test_no_nanosecond_is_lost(pairs):
    base = [{**event(EventKind.OP, "aten::mm", 0, 0), "start_ns": start, "dur_ns": dur} for start, dur in sorted(pairs)]
    text = b"".join(write_trace(run_of(base)))
    boxes = [each for each in json.loads(text, parse_float=str)["traceEvents"] if each["ph"] == "X"]
    assert [tuple(int(each[key].replace(".", "")) for key in ("ts", "dur")) for each in boxes] == sorted(pairs)


def test_a_run_without_anything_is_still_a_trace(tmp_path):
    assert [each["ph"] for each in written(run_of(), tmp_path / "out.json")].count("X") == 0


# The format.


def check(events):
    """Faults by the Trace Event Format: what a viewer would drop, or draw where it does not belong."""
    faults = []
    events_read = {"X": ("name", "cat", "ts", "dur"), "M": ("name", "args"), "C": ("name", "ts", "args")}
    events_read |= {"i": ("name", "ts", "s"), "s": ("name", "cat", "id", "ts"), "f": ("name", "cat", "id", "ts", "bp")}
    for each in events:
        if each.get("ph") not in events_read or not {*events_read[each["ph"]], "pid", "tid"} <= set(each):
            faults.append(f"incomplete: {each}")
        elif not all(type(each[key]) is int and each[key] >= 0 for key in ("pid", "tid")):
            faults.append(f"a process or thread that is no number: {each}")
        elif any(not isinstance(each.get(key, 0), (int, float)) or each.get(key, 0) < 0 for key in ("ts", "dur")):
            faults.append(f"no time: {each}")
        elif each["ph"] == "C" and not all(isinstance(value, (int, float)) for value in each["args"].values()):
            faults.append(f"a counter of words: {each}")
    named = {(each["pid"], each["tid"]) for each in events if each["name"] == "thread_name"}
    faults += [
        f"a thread without a name: {each}"
        for each in events
        if each["ph"] == "X" and (each["pid"], each["tid"]) not in named
    ]
    return faults + _arrows(events) + _overlaps(events)


def _arrows(events):
    boxes = {}
    for each in events:
        if each["ph"] == "X":
            boxes.setdefault((each["pid"], each["tid"]), []).append((each["ts"], each["ts"] + each["dur"]))
    arrows = [each for each in events if each["ph"] in "sf"]
    faults = [
        f"an arrow from or to nothing: {each}"
        for each in arrows
        if not any(start <= each["ts"] <= end for start, end in boxes.get((each["pid"], each["tid"]), ()))
    ]
    begun, ended = ([each["id"] for each in arrows if each["ph"] == ph] for ph in "sf")
    return faults + (
        [] if sorted(begun) == sorted(ended) and len(set(begun)) == len(begun) else ["arrows without two ends"]
    )


def _overlaps(events):
    faults = []
    boxes = sorted(
        (each["tid"], each["ts"], each["ts"] + each["dur"])
        for each in events
        if each["ph"] == "X" and each["pid"] == NOTES
    )
    for one, other in itertools.pairwise(boxes):
        if one[0] == other[0] and other[1] < one[2] - 1e-6:
            faults.append(f"boxes over one another: {one} {other}")
    return faults


def test_every_event_is_what_the_format_asks_for(tmp_path):
    assert check(written(a_run(), tmp_path / "out.json")) == []


def test_the_check_of_the_format_can_fail():
    box = {"ph": "X", "name": "x", "cat": "Trace", "ts": 0, "dur": 5, "pid": NOTES, "tid": 1}
    name = {"ph": "M", "name": "thread_name", "pid": NOTES, "tid": 1, "args": {"name": "x"}}
    assert check([name, box]) == []
    assert check([box])
    assert check([name, {**box, "pid": "a"}])
    assert check([name, {**box, "ts": -1}])
    assert check([name, box, {**box, "ts": 3}])
    assert check([name, box, {"ph": "s", "name": "a", "cat": "a", "id": 1, "ts": 1, "pid": NOTES, "tid": 1}])


def test_processes_threads_and_streams_have_their_names(tmp_path):
    machine = Machine(gpus=(Gpu(index=0, name="NVIDIA H100"),), cores_allowed=8.0)
    events = written(a_run(machine=machine), tmp_path / "out.json")
    named = {each["args"]["name"] for each in events if each["name"] in ("process_name", "thread_name")}
    assert {
        "host",
        "main",
        "GPU 0 NVIDIA H100",
        "stream 7",
        "stream 9",
        "sensors",
        "gpulab: steps",
        "gpulab: ledger",
    } <= named
    assert any(name.startswith("gpulab: made, recorded on Made GPU") for name in named), "law 6: the source of it all"


def test_an_arrow_leads_from_each_call_to_the_work_it_started(tmp_path):
    run = a_run()
    events = written(run, tmp_path / "out.json")
    begins = {each["id"]: each for each in events if each["ph"] == "s"}
    ends = {each["id"]: each for each in events if each["ph"] == "f"}
    assert set(begins) == set(ends)
    assert len(begins) == 18, "three in each of six steps"
    kernels = {
        each["args"]["correlation"]: each["ts"] for each in events if each.get("cat") in ("kernel", "gpu_memcpy")
    }
    assert {number: each["ts"] for number, each in ends.items()} == kernels
    assert all(each["pid"] == HOST for each in begins.values())


# What gpulab saw.


def track(events, name):
    (tid,) = {each["tid"] for each in events if each["name"] == "thread_name" and each["args"]["name"] == name}
    return [each for each in events if each["ph"] == "X" and each["pid"] == NOTES and each["tid"] == tid]


def test_steps_ledger_and_findings_stand_beside_the_events(tmp_path):
    diagnosis = diagnose(a_run())
    events = written(diagnosis, tmp_path / "out.json")
    steps = track(events, "gpulab: steps")
    assert [each["name"] for each in steps] == [f"step {n}" for n in range(1, 7)]
    assert [each["dur"] for each in steps] == [100_000] * 6
    parts = track(events, "gpulab: ledger")
    total = {part.label: 0.0 for part in diagnosis.ledger.parts}
    for each in parts:
        total[each["name"]] += 1000 * each["dur"]
    assert total == {part.label: int(diagnosis.ledger.part_ns[part.key].sum()) for part in diagnosis.ledger.parts}
    (tracks,) = {each["name"] for each in track(events, "gpulab: finding 1, no_workers")}
    assert tracks == diagnosis.first.claim
    seen = sum(1000 * each["dur"] for each in track(events, "gpulab: finding 1, no_workers"))
    assert seen == diagnosis.first.spans.total_ns
    assert "Predicted step time: 100 -> " in track(events, "gpulab: finding 1, no_workers")[0]["args"]["about"]


def test_sensors_are_curves_and_what_was_not_measured_is_a_hole(tmp_path):
    samples = gpu_samples({"util_frac": 0.5, "power_w": 300.0}, count=4)
    holed = {column.name: samples[column.name].copy() for column in GPU_SAMPLES.columns}
    holed["util_frac"][2] = np.nan
    run = dataclasses.replace(a_run(), gpu_rows=GPU_SAMPLES.rows(holed))
    curves = [each for each in written(run, tmp_path / "out.json") if each["ph"] == "C"]
    facts = [(each["ts"], each["args"]["value"]) for each in curves if each["name"] == "GPU 0 utilisation, %"]
    assert facts == [(0, 50), (25_000, 50), (75_000, 50)]
    assert {each["pid"] for each in curves} == {SENSORS}
    assert not any("temperature" in each["name"] for each in curves), "never read, never drawn"


def test_memory_is_a_curve_too(tmp_path):
    memory = MEMORY.of([[at * MS, 0, 0, 2**20, 64, (at + 1) * 2**20, -1] for at in range(3)])
    curves = [
        each
        for each in written(dataclasses.replace(a_run(), memory_rows=memory), tmp_path / "o.json")
        if each["ph"] == "C"
    ]
    facts = [each["args"]["value"] for each in curves if each["name"] == "GPU 0 memory allocated by PyTorch, MiB"]
    assert facts == [1, 2, 3]
    assert not any("reserved" in each["name"] for each in curves)


# The file.


def test_packed_it_says_the_same(tmp_path):
    plain, packed = to_perfetto(a_run(), tmp_path / "a.json"), to_perfetto(a_run(), tmp_path / "a.json.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    with pytest.raises(GpulabError, match="cannot be written"):
        to_perfetto(a_run(), tmp_path / "nowhere" / "out.json")
    broken = dataclasses.replace(a_run(), threads=(None,))
    with pytest.raises(TypeError):
        to_perfetto(broken, tmp_path / "out.json")
    assert list(tmp_path.iterdir()) == []


def test_a_large_run_is_made_into_text_piece_by_piece():
    count = 5 * EVENTS_PER_CHUNK
    base = run_of([event(EventKind.OP, "aten::mm", 0, 1)])
    many = base.event_rows.select(np.zeros(count, np.int64))
    sizes = [len(piece) for piece in write_trace(dataclasses.replace(base, event_rows=many))]
    assert max(sizes) < 1.2 * sum(sizes) / 5
    assert len(sizes) >= 5
