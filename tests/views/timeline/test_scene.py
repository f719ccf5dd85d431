"""The scene of a timeline: which rows a run has, what a reader is told of them, a second run below."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab import diagnose
from gpulab.intervals import Spans
from gpulab.run import Gap, Machine, Recording, Source
from gpulab.tables import MEMORY, STALLS, Kind
from gpulab.views.timeline.scene.curves import pieces
from gpulab.views.timeline.scene.groups import Curve
from gpulab.views.timeline.scene.scene import scene
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


def ids(shown):
    return [group["id"] for group in shown.header()["groups"]]


def group(shown, id):
    return next(each for each in shown.header()["groups"] if each["id"] == id)


def named(shown, id):
    """The names in each row of a group."""
    of = group(shown, id)
    return [[shown.names[name] for name in row.name] for row in shown.rows[of["first"] : of["first"] + of["rows"]]]


def sensed(**more):
    told = gpu_series(lambda n: {"util_frac": 0.5, "power_w": 300.0, "throttle_bits": 4.0 if n in (3, 4) else 0.0})
    return run_of((), gpu_rows=told, samples=host_samples(600, cpu_frac=0.4), machine=ON_GPU, windows=[], **more)


RUNS = {
    "gpu": trained(),
    "cpu": computed(),
    "sensors alone": sensed(),
    "steps alone": run_of((), marks=[mark(10.0 * n, 1) for n in range(8)], windows=[]),
    "empty": run_of(()),
    "one event of no time": run_of([event(Kind.OP, "aten::empty", 0, 0)]),
    "kernels alone": run_of([event(Kind.KERNEL, "k", n, 0.5) for n in range(9)], machine=ON_GPU),
    "hostile": run_of([event(Kind.OP, HOSTILE, 0, 1)], name=HOSTILE),
    "virtual": replace(trained(), source=Source(how="virtual", device="H100 SXM")),
}


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_every_run_has_a_scene_and_tiles(run):
    shown = scene(diagnose(run))
    head = shown.header()
    assert head["version"] == 1
    assert head["source"]
    assert head["span_ns"] >= 1
    assert 0 <= head["home"][0] < head["home"][1] <= head["span_ns"]
    assert head["counts"] == {"events": len(run.event_rows)}
    for _, _, tile in looked_at(shown):
        assert len(tile) <= MOST
        read(tile)
    shown.brush(0, head["span_ns"])
    shown.search("a")


def test_groups_stand_in_order_and_their_rows_follow_one_another():
    told = gpu_series(lambda n: {"util_frac": 0.5})
    events = [event(Kind.OP, "autograd::engine::evaluate_function: AddBackward0", 3, 1, thread=1)]
    run = trained()
    run = replace(
        run,
        gpu_rows=told,
        event_rows=gpulab.rows.concat(run.event_rows.table, [run.event_rows, rows(run.event_rows.table, events)]),
    )
    shown = scene(undiagnosed(run))
    assert ids(shown) == ["steps", "ledger", "thread:0", "thread:1", "gpu0:stream7", "gpu0:util_frac"]
    row = 0
    for each in shown.header()["groups"]:
        assert each["first"] == row
        row += each["rows"]
    assert row == len(shown.rows)
    assert group(shown, "thread:0")["name"] == "main thread"
    assert group(shown, "thread:1")["name"] == "autograd"
    assert group(shown, "thread:1")["folded"]


@pytest.mark.parametrize("name", ["MulBackward0", "CudnnConvolutionBackward", "autograd::engine::evaluate_function: X"])
def test_a_thread_of_backward_functions_is_called_autograd(name):
    events = [event(Kind.OP, "aten::add", 0, 9), event(Kind.OP, name, 1, 1, thread=2)]
    run = replace(run_of(events), threads=("python", "", "python"))
    assert group(scene(undiagnosed(run)), "thread:2")["name"] == "autograd (python)"


def test_calls_stand_under_those_that_made_them():
    names = [set(row) for row in named(scene(undiagnosed(trained())), "thread:0")]
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert names == [{loader, "aten::linear"}, {"aten::addmm"}, {"cudaLaunchKernel"}]


def test_python_frames_have_rows_of_their_own():
    events = [event(Kind.PYTHON, f"frame {n}", n, 100 - 2 * n) for n in range(20)]
    events.append(event(Kind.OP, "aten::add", 25, 1))
    shown = scene(undiagnosed(run_of(events)))
    assert group(shown, "python:0")["folded"]
    assert group(shown, "python:0")["rows"] == 14
    assert named(shown, "thread:0") == [["aten::add"]]
    assert any("deeper than 14" in note for note in shown.header()["notes"])


def test_only_the_busiest_streams_have_a_row_and_the_others_share_one():
    events = [event(Kind.KERNEL, f"k{n}", n, 0.1 + n / 100, stream=n) for n in range(10)]
    shown = scene(undiagnosed(run_of(events, machine=ON_GPU)))
    assert [each for each in ids(shown) if each.startswith("gpu0")] == [
        *(f"gpu0:stream{n}" for n in range(4, 10)),
        "gpu0:others",
    ]
    assert named(shown, "gpu0:others") == [["k0", "k1", "k2", "k3"]]
    assert group(shown, "gpu0:others")["name"] == "GPU: 4 other streams"


def test_copies_and_collectives_stand_apart_from_kernels():
    events = [
        event(Kind.KERNEL, "k", 0, 1),
        event(Kind.MEMCPY, "Memcpy HtoD", 1, 1),
        event(Kind.MEMSET, "Memset", 2, 1),
        event(Kind.COLLECTIVE, "ncclAllReduce", 3, 1, stream=20),
    ]
    shown = scene(undiagnosed(run_of(events, machine=ON_GPU)))
    assert named(shown, "gpu0:stream7") == [["k"]]
    assert named(shown, "gpu0:copies") == [["Memcpy HtoD", "Memset"]]
    assert named(shown, "gpu0:communication") == [["ncclAllReduce"]]


def test_two_gpus_are_told_apart():
    events = [event(Kind.KERNEL, f"k{device}", 0, 1, device=device) for device in (0, 1)]
    shown = scene(undiagnosed(run_of(events)))
    assert [group(shown, f"gpu{device}:stream7")["name"] for device in (0, 1)] == ["GPU 0 kernels", "GPU 1 kernels"]


def test_the_ledger_row_is_the_ledger_in_the_interior_and_goes_on_beside_it():
    diagnosis = undiagnosed(trained())
    shown = scene(diagnosis)
    row = shown.rows[group(shown, "ledger")["first"]]
    keys = [key["key"] for key in shown.header()["keys"]]
    for part in diagnosis.ledger.parts:
        covered = dict(row.layers).get(keys.index(part.key))
        told = 0 if covered is None else int(covered.within(diagnosis.steps.start_ns[1], diagnosis.steps.end_ns[4]))
        assert told == diagnosis.ledger.part_ns[part.key].sum()
    assert row.covered.total_ns == 600_000_000


def test_a_sensor_that_was_never_read_has_no_group():
    shown = scene(undiagnosed(sensed()))
    assert ids(shown) == ["gpu0:util_frac", "gpu0:power_w", "gpu0:throttle", "host:cpu_frac"]


def test_a_scene_of_sensors_alone_says_that_there_are_no_events():
    notes = scene(undiagnosed(sensed())).header()["notes"]
    assert notes[0].startswith("No events were recorded")


def test_a_wholly_empty_run_says_that_nothing_was_recorded():
    shown = scene(undiagnosed(run_of(())))
    assert ids(shown) == []
    assert shown.header()["notes"] == ["Nothing was recorded: there is nothing to show."]


def test_clocks_held_back_are_boxes_with_their_reason():
    shown = scene(undiagnosed(sensed()))
    row = shown.rows[group(shown, "gpu0:throttle")["first"]]
    assert {shown.names[name] for name in row.name} == {"power cap"}
    assert row.covered.total_ns == 50_000_000


def test_axes_have_a_unit_a_top_and_a_limit():
    gpu = replace(GPUS["H100"], power_limit_w=700.0)
    shown = scene(undiagnosed(replace(sensed(), machine=Machine(gpus=(gpu,)))))
    power, used = group(shown, "gpu0:power_w"), group(shown, "gpu0:util_frac")
    assert (power["unit"], power["format"], power["threshold"]) == ("W", "number", 700.0)
    assert power["high"] > 700
    assert (used["low"], used["high"], used["format"], used["threshold"]) == (0.0, 1.0, "percent", None)


def test_memory_allocated_stays_until_it_changes():
    told = [
        {"at_ns": at, "thread": 0, "device": 0, "bytes": 1, "address": -1, "allocated_bytes": now, "reserved_bytes": -1}
        for at, now in ((0, 100), (1_000, 300), (9_000, 50))
    ]
    shown = scene(undiagnosed(run_of([event(Kind.OP, "aten::add", 0, 0.01)], memory_rows=rows(MEMORY, told))))
    at, low, high = read(shown.tile(0, 0))[3][group(shown, "allocated:0")["first"]]
    assert low.tolist() == high.tolist() == [100, 100, 300, 300, 50, 50]
    assert at.tolist() == [0, 1_000, 1_000, 9_000, 9_000, 10_000]


def test_collections_of_garbage_have_a_row():
    run = run_of([event(Kind.OP, "aten::add", 0, 10)], stall_rows=rows(STALLS, [stall(2, 3)]))
    assert named(scene(undiagnosed(run)), "stalls") == [["garbage collection: generation 2"]]


def test_home_is_the_three_steps_in_the_middle_of_the_interior():
    start, end = scene(undiagnosed(trained())).header()["home"]
    assert start <= 100_000_000 < 110_000_000
    assert 400_000_000 <= end < 410_000_000


def test_findings_come_with_their_longest_spans_and_how_many_more_there_are():
    diagnosis = diagnose(trained())
    assert diagnosis.first is not None
    start = np.arange(300) * 1_000_000
    many = replace(diagnosis.first, shown_by=Spans(start, start + 1_000 + np.arange(300)))
    told = scene(replace(diagnosis, findings=(many,))).header()["findings"][0]
    assert told["rule"] == many.rule
    assert told["claim"] == many.claim
    assert len(told["spans"]) == 200
    assert told["more"] == 100
    assert told["spans"] == sorted(told["spans"])
    assert min(end - begin for begin, end in told["spans"]) == 1_100


def test_a_reader_is_told_what_was_recorded_and_what_was_left_out():
    left = Gap(what="shapes", why="they were off", fix="record with --level deep")
    run = trained(windows=[(200, 500)])
    recording = replace(run.recording, left_out=(left,), lost={"cut short": 3})
    notes = scene(undiagnosed(replace(run, recording=recording))).header()["notes"]
    assert notes[0] == "Events were recorded for steps 3-5 only, of 6."
    assert any("shapes: they were off" in note for note in notes)
    assert "Lost from the trace: 3 events (cut short)." in notes


@pytest.mark.parametrize(
    ("windows", "note"),
    [
        ([(200, 300)], "Events were recorded for step 3 only, of 6."),
        ([(0, 200), (400, 600)], "Events were recorded for 4 of 6 steps only, between steps 1 and 6."),
        ([(210, 290)], "No whole step of 6 was recorded with events."),
    ],
)
def test_of_which_steps_there_are_events_is_said_in_words(windows, note):
    assert note in scene(undiagnosed(trained(windows=windows))).header()["notes"]


def test_of_a_run_recorded_from_end_to_end_nothing_is_said_to_be_missing():
    assert scene(undiagnosed(trained())).header()["notes"] == []


def test_a_virtual_run_is_watermarked_and_a_recorded_one_is_not():
    assert scene(undiagnosed(RUNS["virtual"])).header()["watermark"] == "virtual H100 SXM, estimated"
    assert scene(undiagnosed(RUNS["gpu"])).header()["watermark"] == ""


def test_every_text_of_the_header_is_free_of_marks_that_reorder_it():
    def texts(value):
        if isinstance(value, str):
            yield value
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from texts(each)

    run = replace(RUNS["hostile"], threads=(HOSTILE, HOSTILE))
    run = replace(run, event_rows=rows(run.event_rows.table, [event(Kind.OP, HOSTILE, 0, 1, thread=t) for t in (0, 1)]))
    for text in texts(scene(diagnose(run), run).header()):
        assert "\u202e" not in text
        assert len(text) <= 1000


@pytest.mark.parametrize(("run", "label"), [("gpu", "operator dispatch"), ("cpu", "small operators")])
def test_colours_are_named_as_the_ledger_of_such_a_run_names_them(run, label):
    keys = {key["key"]: key["label"] for key in scene(undiagnosed(RUNS[run])).header()["keys"]}
    assert keys["dispatch"] == label


def busiest():
    """Six threads that call deep, four GPUs with forty overlapping streams each, sensors of eight: all there can be."""
    events = []
    for at in range(20):
        for thread in range(8):
            for depth in range(16):
                kind = (Kind.OP, Kind.ANNOTATION, Kind.RUNTIME, Kind.ALLOC)[(at + depth) % 4]
                events.append(
                    event(kind, f"call {depth} {'x' * 300}", at + depth / 40, 0.9 - depth / 20, thread=thread)
                )
        for device in range(4):
            events += [
                event(Kind.KERNEL, f"gemm{stream}", at + stream / 50, 0.7, device=device, stream=stream)
                for stream in range(40)
            ]
            events.append(event(Kind.MEMCPY, "Memcpy HtoD", at, 0.5, device=device))
            events.append(event(Kind.COLLECTIVE, "ncclAllReduce", at, 0.5, device=device))
    told = gpu_samples(*({"util_frac": 0.5, "power_w": 300.0, "sm_clock_mhz": 1500.0, "throttle_bits": 4.0},) * 8)
    return run_of(events, gpu_rows=told, samples=host_samples(20, every_ms=1, cpu_frac=0.4, rss_bytes=1e9))


def test_a_tile_is_small_though_two_runs_have_every_row_there_can_be():
    run = busiest()
    shown = scene(undiagnosed(run), run)
    assert len(shown.rows) > 180
    for _, _, tile in looked_at(shown):
        assert len(tile) <= MOST
    _, told, bins, curves = read(shown.tile(0, 0))
    assert {row for row, _ in bins} | set(told["row"]) | set(curves) == set(range(len(shown.rows)))


# A second run below.


def slower():
    """The same loop, later and with a longer step."""

    def step(at):
        return [event(Kind.OP, "aten::linear", 50 + at, 40), event(Kind.KERNEL, "sgemm_128", 55 + at, 60)]

    events = stepped(step, step_ms=130)
    for each in events:
        if each["kind"] == Kind.STEP:
            each["start_ns"] += 50_000_000
    return run_of(events, name="after")


def test_a_second_run_begins_its_first_shown_step_where_the_first_does():
    diagnosis = undiagnosed(trained(name="before"))
    other = undiagnosed(slower())
    shown = scene(diagnosis, other)
    mine, theirs = (shown.rows[group(shown, id)["first"]] for id in ("steps", "beside:steps"))
    assert theirs.start_ns[1] == mine.start_ns[1] == shown.header()["home"][0] + 3_000_000
    assert shown.shift_ns == 100_000_000 - 180_000_000
    head = shown.header()
    assert [side["name"] for side in head["sides"]] == ["before", "after"]
    assert {each["side"] for each in head["groups"] if each["id"].startswith("beside:")} == {1}
    assert any("moved so that the first steps shown of both begin together" in note for note in head["notes"])
    assert "The first 80 ms of after are left of the beginning and are not shown." in head["notes"]


def test_boxes_of_the_second_run_are_its_events_moved():
    run = slower()
    shown = scene(undiagnosed(trained()), run)
    of = group(shown, "beside:gpu0:stream7")
    row = shown.rows[of["first"]]
    assert (row.start_ns == run.event_rows["start_ns"][row.id] + shown.shift_ns).all()
    head, told, *_ = read(shown.tile(0, 0))
    names = [head["names"][name] for name in told["name"][told["row"] == of["first"]]]
    assert set(names) == {"sgemm_128"}
    hit = shown.card(of["first"], int(row.id[2]))
    assert hit["side"] == 1
    assert hit["start_ns"] == row.start_ns[2]
    assert shown.event(1, int(row.id[2]))["start_ns"] == hit["start_ns"] - shown.shift_ns


def test_a_brush_over_two_runs_sums_for_each():
    shown = scene(undiagnosed(trained()), slower())
    told = shown.brush(90_000_000, 433_000_000)
    for side in (0, 1):
        assert sum(ledger_of(told, side).values()) == 343_000_000
    own = undiagnosed(slower()).ledger
    step = ledger_of(shown.brush(100_000_000, 230_000_000), 1)
    assert step == {key: int(ns[0]) for key, ns in own.part_ns.items() if ns[0]}


def test_search_finds_in_both_runs():
    shown = scene(undiagnosed(trained()), slower())
    assert shown.search("sgemm")["count"] == 12
    assert {shown.side_of(hit["row"]).number for hit in shown.search("sgemm")["hits"]} == {0, 1}


def test_a_prediction_is_laid_below_what_it_was_made_from():
    run = reading()
    told = gpulab.whatif(run, "no_syncs")
    shown = scene(undiagnosed(run), told)
    head = shown.header()
    assert head["watermark"].startswith("below: predicted from")
    assert any("Sensors and memory are not predicted" in note for note in head["notes"])
    assert scene(undiagnosed(run), told.prediction).header() == head


def test_the_recording_of_a_run_without_windows_is_from_its_first_event_to_its_last():
    run = replace(trained(), recording=Recording())
    told = ledger_of(scene(undiagnosed(run)).brush(0, 600_000_000))
    assert "unrecorded" not in told
    assert told["matmul"] == 6 * 35_000_000


@examples(60)
@given(seed=st.integers(0, 10_000), bursts=st.integers(2, 5))
def test_a_value_that_is_held_is_drawn_level_until_it_changes(seed, bursts):
    chance = np.random.default_rng(seed)
    begins = np.sort(chance.choice(np.arange(1, 90), bursts, replace=False)) * 1_000_000
    at = np.unique(np.concatenate([start + chance.integers(0, 200_000, 400) for start in begins]))
    value = chance.integers(0, 2**30, len(at)).astype(float)
    moments, low, high = pieces(Curve(at, value, held=True), 0, 100_000_000, 128)
    assert len(moments) <= 128
    assert (np.diff(moments) >= 0).all()
    for burst, following in itertools.pairwise([*begins, 100_000_000]):
        # A quiet stretch, without the piece in which the burst before it ended and that in which the next begins.
        quiet = np.linspace(burst + 2_000_000, following - 2_000_000, 9)
        quiet = quiet[(quiet > burst + 2_000_000) & (quiet < following - 2_000_000)]
        held = value[np.searchsorted(at, quiet, side="right") - 1]
        assert np.interp(quiet, moments, low) == pytest.approx(held, rel=1e-6)
        assert np.interp(quiet, moments, high) == pytest.approx(held, rel=1e-6)
