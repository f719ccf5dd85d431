"""The scene of a timeline: the rows of a run, the notes in its header, and a second run below."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab import diagnose
from gpulab.intervals import Spans
from gpulab.run import Gap, Machine, Recording, Source
from gpulab.tables import MEMORY, STALLS, EventKind
from gpulab.views.timeline.scene.curves import sample_curve
from gpulab.views.timeline.scene.elements import Curve
from gpulab.views.timeline.scene.scene import build_scene
from tests.support.front_end.scene_counts import MOST, looked_at, read, undiagnosed
from tests.support.front_end.scene_questions import HOSTILE, computed, ledger_of, trained
from tests.support.runs.made_runs import (
    GPUS,
    event,
    gpu_samples,
    gpu_series,
    host_samples,
    mark,
    rows,
    run_of,
    stall,
    stepped,
)
from tests.support.runs.predicted import reading
from tests.support.tiers import examples

ON_GPU = Machine(gpus=(GPUS["H100"],))


def ids(run_scene):
    return [group["id"] for group in run_scene.header()["groups"]]


def group(run_scene, id):
    return next(each for each in run_scene.header()["groups"] if each["id"] == id)


def box_names(run_scene, id):
    """Return the names in each row of a group."""
    first, rows_ = (group(run_scene, id)[key] for key in ("first", "rows"))
    return [[run_scene.names[name] for name in row.name] for row in run_scene.rows[first : first + rows_]]


def sensor_run(**more):
    samples = gpu_series(lambda n: {"util_frac": 0.5, "power_w": 300.0, "throttle_bits": 4.0 if n in (3, 4) else 0.0})
    return run_of((), gpu_rows=samples, samples=host_samples(600, cpu_frac=0.4), machine=ON_GPU, windows=[], **more)


RUNS = {
    "gpu": trained(),
    "cpu": computed(),
    "sensors alone": sensor_run(),
    "steps alone": run_of((), marks=[mark(10.0 * n, 1) for n in range(8)], windows=[]),
    "empty": run_of(()),
    "one event of no time": run_of([event(EventKind.OP, "aten::empty", 0, 0)]),
    "kernels alone": run_of([event(EventKind.KERNEL, "k", n, 0.5) for n in range(9)], machine=ON_GPU),
    "hostile": run_of([event(EventKind.OP, HOSTILE, 0, 1)], name=HOSTILE),
    "virtual": replace(trained(), source=Source(how="virtual", device="H100 SXM")),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_run_has_a_scene_and_tiles(run):
    run_scene = build_scene(diagnose(run))
    head = run_scene.header()
    assert head["version"] == 1
    assert head["source"]
    assert head["span_ns"] >= 1
    assert 0 <= head["home"][0] < head["home"][1] <= head["span_ns"]
    assert head["counts"] == {"events": len(run.event_rows)}
    for _, _, tile in looked_at(run_scene):
        assert len(tile) <= MOST
        read(tile)
    run_scene.brush(0, head["span_ns"])
    run_scene.search("a")


def test_groups_are_in_order_and_their_rows_are_consecutive():
    samples = gpu_series(lambda n: {"util_frac": 0.5})
    events = [event(EventKind.OP, "autograd::engine::evaluate_function: AddBackward0", 3, 1, thread=1)]
    run = trained()
    run = replace(
        run,
        gpu_rows=samples,
        event_rows=gpulab.rows.concat(run.event_rows.table, [run.event_rows, rows(run.event_rows.table, events)]),
    )
    run_scene = build_scene(undiagnosed(run))
    assert ids(run_scene) == ["steps", "ledger", "thread:0", "thread:1", "gpu0:stream7", "gpu0:util_frac"]
    row = 0
    for header_group in run_scene.header()["groups"]:
        assert header_group["first"] == row
        row += header_group["rows"]
    assert row == len(run_scene.rows)
    assert group(run_scene, "thread:0")["name"] == "main thread"
    assert group(run_scene, "thread:1")["name"] == "autograd"
    assert group(run_scene, "thread:1")["folded"]


@pytest.mark.parametrize("name", ["MulBackward0", "CudnnConvolutionBackward", "autograd::engine::evaluate_function: X"])
def test_a_thread_of_backward_functions_is_called_autograd(name):
    events = [event(EventKind.OP, "aten::add", 0, 9), event(EventKind.OP, name, 1, 1, thread=2)]
    run = replace(run_of(events), threads=("python", "", "python"))
    assert group(build_scene(undiagnosed(run)), "thread:2")["name"] == "autograd (python)"


def test_calls_are_below_their_callers():
    names = [set(row) for row in box_names(build_scene(undiagnosed(trained())), "thread:0")]
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert names == [{loader, "aten::linear"}, {"aten::addmm"}, {"cudaLaunchKernel"}]


def test_python_frames_have_rows_of_their_own():
    events = [event(EventKind.PYTHON, f"frame {n}", n, 100 - 2 * n) for n in range(20)]
    events.append(event(EventKind.OP, "aten::add", 25, 1))
    run_scene = build_scene(undiagnosed(run_of(events)))
    assert group(run_scene, "python:0")["folded"]
    assert group(run_scene, "python:0")["rows"] == 14
    assert box_names(run_scene, "thread:0") == [["aten::add"]]
    assert any("14" in note for note in run_scene.header()["notes"])


def test_only_the_busiest_streams_have_a_row_and_the_others_share_one():
    events = [event(EventKind.KERNEL, f"k{n}", n, 0.1 + n / 100, stream=n) for n in range(10)]
    run_scene = build_scene(undiagnosed(run_of(events, machine=ON_GPU)))
    assert [each for each in ids(run_scene) if each.startswith("gpu0")] == [
        *(f"gpu0:stream{n}" for n in range(4, 10)),
        "gpu0:others",
    ]
    assert box_names(run_scene, "gpu0:others") == [["k0", "k1", "k2", "k3"]]
    assert group(run_scene, "gpu0:others")["name"] == "GPU: 4 other streams"


def test_copies_and_collectives_have_rows_of_their_own():
    events = [
        event(EventKind.KERNEL, "k", 0, 1),
        event(EventKind.MEMCPY, "Memcpy HtoD", 1, 1),
        event(EventKind.MEMSET, "Memset", 2, 1),
        event(EventKind.COLLECTIVE, "ncclAllReduce", 3, 1, stream=20),
    ]
    run_scene = build_scene(undiagnosed(run_of(events, machine=ON_GPU)))
    assert box_names(run_scene, "gpu0:stream7") == [["k"]]
    assert box_names(run_scene, "gpu0:copies") == [["Memcpy HtoD", "Memset"]]
    assert box_names(run_scene, "gpu0:communication") == [["ncclAllReduce"]]


def test_two_gpus_have_different_names():
    events = [event(EventKind.KERNEL, f"k{device}", 0, 1, device=device) for device in (0, 1)]
    run_scene = build_scene(undiagnosed(run_of(events)))
    assert [group(run_scene, f"gpu{device}:stream7")["name"] for device in (0, 1)] == ["GPU 0 kernels", "GPU 1 kernels"]


def test_the_ledger_row_equals_the_ledger_of_interior_steps_and_covers_the_whole_recording():
    diagnosis = undiagnosed(trained())
    run_scene = build_scene(diagnosis)
    row = run_scene.rows[group(run_scene, "ledger")["first"]]
    keys = [key["key"] for key in run_scene.header()["keys"]]
    for part in diagnosis.ledger.parts:
        covered = dict(row.layers).get(keys.index(part.key))
        memory = (
            0 if covered is None else int(covered.covered_ns(diagnosis.steps.start_ns[1], diagnosis.steps.end_ns[4]))
        )
        assert memory == diagnosis.ledger.part_ns[part.key].sum()
    assert row.coverage.total_ns == 600_000_000


def test_a_sensor_that_was_never_read_has_no_group():
    run_scene = build_scene(undiagnosed(sensor_run()))
    assert ids(run_scene) == ["gpu0:util_frac", "gpu0:power_w", "gpu0:throttle", "host:cpu_frac"]


def test_a_run_without_events_has_a_note_with_its_level():
    notes = build_scene(undiagnosed(sensor_run())).header()["notes"]
    assert "(level " in notes[0]


def test_an_empty_run_has_no_groups_and_one_note():
    run_scene = build_scene(undiagnosed(run_of(())))
    assert ids(run_scene) == []
    assert len(run_scene.header()["notes"]) == 1


def test_clock_throttling_is_drawn_as_boxes_with_their_reason():
    run_scene = build_scene(undiagnosed(sensor_run()))
    row = run_scene.rows[group(run_scene, "gpu0:throttle")["first"]]
    assert {run_scene.names[name] for name in row.name} == {"power cap"}
    assert row.coverage.total_ns == 50_000_000


def test_axes_have_a_unit_a_top_and_a_limit():
    gpu = replace(GPUS["H100"], power_limit_w=700.0)
    run_scene = build_scene(undiagnosed(replace(sensor_run(), machine=Machine(gpus=(gpu,)))))
    power, used = group(run_scene, "gpu0:power_w"), group(run_scene, "gpu0:util_frac")
    assert (power["unit"], power["format"], power["threshold"]) == ("W", "number", 700.0)
    assert power["high"] > 700
    assert (used["low"], used["high"], used["format"], used["threshold"]) == (0.0, 1.0, "percent", None)


def test_allocated_memory_is_constant_until_it_changes():
    finding = [
        {"at_ns": at, "thread": 0, "device": 0, "bytes": 1, "address": -1, "allocated_bytes": now, "reserved_bytes": -1}
        for at, now in ((0, 100), (1_000, 300), (9_000, 50))
    ]
    run_scene = build_scene(
        undiagnosed(run_of([event(EventKind.OP, "aten::add", 0, 0.01)], memory_rows=rows(MEMORY, finding)))
    )
    at, low, high = read(run_scene.tile(0, 0))[3][group(run_scene, "allocated:0")["first"]]
    assert low.tolist() == high.tolist() == [100, 100, 300, 300, 50, 50]
    assert at.tolist() == [0, 1_000, 1_000, 9_000, 9_000, 10_000]


def test_garbage_collections_have_a_row():
    run = run_of([event(EventKind.OP, "aten::add", 0, 10)], stall_rows=rows(STALLS, [stall(2, 3)]))
    assert box_names(build_scene(undiagnosed(run)), "stalls") == [["garbage collection: generation 2"]]


def test_home_is_the_three_steps_in_the_middle_of_the_interior():
    start, end = build_scene(undiagnosed(trained())).header()["home"]
    assert start <= 100_000_000 < 110_000_000
    assert 400_000_000 <= end < 410_000_000


def test_findings_come_with_their_longest_spans_and_how_many_more_there_are():
    diagnosis = diagnose(trained())
    assert diagnosis.first is not None
    start = np.arange(300) * 1_000_000
    many = replace(diagnosis.first, spans=Spans(start, start + 1_000 + np.arange(300)))
    finding = build_scene(replace(diagnosis, findings=(many,))).header()["findings"][0]
    assert finding["rule"] == many.rule
    assert finding["claim"] == many.claim
    assert len(finding["spans"]) == 200
    assert finding["more"] == 100
    assert finding["spans"] == sorted(finding["spans"])
    assert min(end - begin for begin, end in finding["spans"]) == 1_100


def test_notes_state_the_recorded_steps_gaps_and_lost_events():
    gap = Gap(what="shapes", why="they were off", fix="record with --level deep")
    run = trained(windows=[(200, 500)])
    recording = replace(run.recording, left_out=(gap,), lost={"cut short": 3})
    notes = build_scene(undiagnosed(replace(run, recording=recording))).header()["notes"]
    assert re.findall(r"[\d-]+", notes[0]) == ["3-5", "6"]
    assert any("shapes: they were off" in note for note in notes)
    assert any("3 events (cut short)" in note for note in notes)


@pytest.mark.parametrize(
    ("windows", "numbers"),
    [
        ([(200, 300)], ["3", "6"]),
        ([(0, 200), (400, 600)], ["4", "6", "1", "6"]),
        ([(210, 290)], ["6"]),
    ],
)
def test_a_note_states_which_steps_have_events(windows, numbers):
    notes = build_scene(undiagnosed(trained(windows=windows))).header()["notes"]
    assert re.findall(r"\d+", notes[0]) == numbers


def test_a_completely_recorded_run_has_no_notes():
    assert build_scene(undiagnosed(trained())).header()["notes"] == []


def test_a_virtual_run_is_watermarked_and_a_recorded_one_is_not():
    assert build_scene(undiagnosed(RUNS["virtual"])).header()["watermark"] == "virtual H100 SXM, estimated"
    assert build_scene(undiagnosed(RUNS["gpu"])).header()["watermark"] == ""


def test_no_text_of_the_header_contains_bidi_overrides():
    def texts(value):
        if isinstance(value, str):
            yield value
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(item)

    run = replace(RUNS["hostile"], threads=(HOSTILE, HOSTILE))
    run = replace(
        run, event_rows=rows(run.event_rows.table, [event(EventKind.OP, HOSTILE, 0, 1, thread=t) for t in (0, 1)])
    )
    for text in texts(build_scene(diagnose(run), run).header()):
        assert "\u202e" not in text
        assert len(text) <= 1000


@pytest.mark.parametrize("run", ["gpu", "cpu"])
def test_colours_have_the_labels_of_the_ledger_of_their_device(run):
    diagnosis = undiagnosed(RUNS[run])
    keys = {key["key"]: key["label"] for key in build_scene(diagnosis).header()["keys"]}
    labels = {part.key: part.label for part in diagnosis.ledger.parts}
    assert keys["dispatch"] == labels["dispatch"]


def busiest():
    """A run with the maximum of rows: deep calls on eight threads, four GPUs with 40 streams, eight GPUs' sensors."""
    events = []
    for at in range(20):
        for thread in range(8):
            for depth in range(16):
                kind = (EventKind.OP, EventKind.ANNOTATION, EventKind.RUNTIME, EventKind.ALLOC)[(at + depth) % 4]
                events.append(
                    event(kind, f"call {depth} {'x' * 300}", at + depth / 40, 0.9 - depth / 20, thread=thread)
                )
        for device in range(4):
            events += [
                event(EventKind.KERNEL, f"gemm{stream}", at + stream / 50, 0.7, device=device, stream=stream)
                for stream in range(40)
            ]
            events.append(event(EventKind.MEMCPY, "Memcpy HtoD", at, 0.5, device=device))
            events.append(event(EventKind.COLLECTIVE, "ncclAllReduce", at, 0.5, device=device))
    samples = gpu_samples(*({"util_frac": 0.5, "power_w": 300.0, "sm_clock_mhz": 1500.0, "throttle_bits": 4.0},) * 8)
    return run_of(events, gpu_rows=samples, samples=host_samples(20, every_ms=1, cpu_frac=0.4, rss_bytes=1e9))


def test_a_tile_stays_small_with_two_runs_of_the_maximum_number_of_rows():
    run = busiest()
    run_scene = build_scene(undiagnosed(run), run)
    assert len(run_scene.rows) > 180
    for _, _, tile in looked_at(run_scene):
        assert len(tile) <= MOST
    _, columns, bins, curves = read(run_scene.tile(0, 0))
    assert {row for row, _ in bins} | set(columns["row"]) | set(curves) == set(range(len(run_scene.rows)))


# A second run below.


def slower():
    """The same loop, starting later and with longer steps."""

    def step(at):
        return [event(EventKind.OP, "aten::linear", 50 + at, 40), event(EventKind.KERNEL, "sgemm_128", 55 + at, 60)]

    events = stepped(step, step_ms=130)
    for step_event in events:
        if step_event["kind"] == EventKind.STEP:
            step_event["start_ns"] += 50_000_000
    return run_of(events, name="after")


def test_a_second_run_is_aligned_by_its_first_visible_step():
    diagnosis = undiagnosed(trained(name="before"))
    other = undiagnosed(slower())
    run_scene = build_scene(diagnosis, other)
    first_steps, second_steps = (run_scene.rows[group(run_scene, id)["first"]] for id in ("steps", "beside:steps"))
    assert second_steps.start_ns[1] == first_steps.start_ns[1] == run_scene.header()["home"][0] + 3_000_000
    assert run_scene.shift_ns == 100_000_000 - 180_000_000
    head = run_scene.header()
    assert [side["name"] for side in head["sides"]] == ["before", "after"]
    assert {each["side"] for each in head["groups"] if each["id"].startswith("beside:")} == {1}
    alignment, cut = head["notes"][:2]
    assert alignment.startswith("after ")
    assert "80 ms of after" in cut


def test_boxes_of_the_second_run_are_its_events_shifted():
    run = slower()
    run_scene = build_scene(undiagnosed(trained()), run)
    first_row = group(run_scene, "beside:gpu0:stream7")["first"]
    row = run_scene.rows[first_row]
    assert (row.start_ns == run.event_rows["start_ns"][row.id] + run_scene.shift_ns).all()
    head, columns, *_ = read(run_scene.tile(0, 0))
    names = [head["names"][name] for name in columns["name"][columns["row"] == first_row]]
    assert set(names) == {"sgemm_128"}
    hit = run_scene.card(first_row, int(row.id[2]))
    assert hit["side"] == 1
    assert hit["start_ns"] == row.start_ns[2]
    assert run_scene.event(1, int(row.id[2]))["start_ns"] == hit["start_ns"] - run_scene.shift_ns


def test_a_brush_over_two_runs_sums_for_each():
    run_scene = build_scene(undiagnosed(trained()), slower())
    answer = run_scene.brush(90_000_000, 433_000_000)
    for side in (0, 1):
        assert sum(ledger_of(answer, side).values()) == 343_000_000
    second_ledger = undiagnosed(slower()).ledger
    step = ledger_of(run_scene.brush(100_000_000, 230_000_000), 1)
    assert step == {key: int(ns[0]) for key, ns in second_ledger.part_ns.items() if ns[0]}


def test_search_finds_in_both_runs():
    run_scene = build_scene(undiagnosed(trained()), slower())
    assert run_scene.search("sgemm")["count"] == 12
    assert {run_scene.side_of(hit["row"]).number for hit in run_scene.search("sgemm")["hits"]} == {0, 1}


def test_a_prediction_is_shown_below_its_run():
    run = reading()
    prediction = gpulab.whatif(run, "no_syncs")
    run_scene = build_scene(undiagnosed(run), prediction)
    head = run_scene.header()
    assert head["watermark"].startswith("below: ")
    assert any("not predicted" in note for note in head["notes"])
    assert build_scene(undiagnosed(run), prediction.prediction).header() == head


def test_a_run_without_recording_windows_is_recorded_from_its_first_event_to_its_last():
    run = replace(trained(), recording=Recording())
    answer = ledger_of(build_scene(undiagnosed(run)).brush(0, 600_000_000))
    assert "unrecorded" not in answer
    assert answer["matmul"] == 6 * 35_000_000


@examples(60)
@given(seed=st.integers(0, 10_000), bursts=st.integers(2, 5))
def test_a_held_value_is_constant_until_it_changes(seed, bursts):
    rng = np.random.default_rng(seed)
    begins = np.sort(rng.choice(np.arange(1, 90), bursts, replace=False)) * 1_000_000
    at = np.unique(np.concatenate([start + rng.integers(0, 200_000, 400) for start in begins]))
    value = rng.integers(0, 2**30, len(at)).astype(float)
    times, low, high = sample_curve(Curve(at, value, is_step_function=True), 0, 100_000_000, 128)
    assert len(times) <= 128
    assert (np.diff(times) >= 0).all()
    for burst, following in itertools.pairwise([*begins, 100_000_000]):
        # A quiet interval, without the points at which the burst before it ends and the next one begins.
        quiet = np.linspace(burst + 2_000_000, following - 2_000_000, 9)
        quiet = quiet[(quiet > burst + 2_000_000) & (quiet < following - 2_000_000)]
        expected = value[np.searchsorted(at, quiet, side="right") - 1]
        assert np.interp(quiet, times, low) == pytest.approx(expected, rel=1e-6)
        assert np.interp(quiet, times, high) == pytest.approx(expected, rel=1e-6)
