"""What a timeline is asked: where is this name, where did this stretch go, what is this box."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.intervals import covered_ns
from gpulab.tables import DEVICE_KINDS, Kind
from gpulab.views.timeline.scene.scene import scene
from tests.support.front_end.scene_counts import large, small_run, undiagnosed
from tests.support.front_end.scene_questions import HOSTILE, computed, ledger_of, trained
from tests.support.runs.made_runs import MS, event, launched, mark, on_gpu, run_of
from tests.support.tiers import examples

QUICK = examples(40)


# Search.


def naive(run, shown, text):
    """Every drawn event whose name holds the text, by asking each."""
    rows, steps = run.event_rows, shown.sides[0].steps
    drawn = [
        (name, int(dur), kind in DEVICE_KINDS)
        for name, dur, kind in zip(rows.words("name").to_list(), rows["dur_ns"], rows["kind"], strict=True)
        if kind not in (Kind.STEP, Kind.SYNC_RECORD)
    ]
    drawn += [(f"step {index + 1}", int(dur), False) for index, dur in enumerate(steps.dur_ns)]
    return [each for each in drawn if text.lower() in (each[0] or "").lower()]


@pytest.mark.parametrize("text", ["gemm", "ATEN", "aten::op3", "cuda", "step 4", "step", "nothing like it", "e"])
def test_search_counts_what_a_look_at_every_name_counts(text):
    run = small_run()
    shown = scene(undiagnosed(run))
    told, expected = shown.search(text), naive(run, shown, text)
    assert told["count"] == len(expected)
    assert told["total_ns"] == sum(dur for _, dur, _ in expected)
    assert {each["name"]: each["count"] for each in told["names"]} == Counter(name for name, _, _ in expected)
    for each in told["names"]:
        mine = [dur for name, dur, _ in expected if name == each["name"]]
        assert each["total_ns"] == sum(mine)
        assert each["longest"]["dur_ns"] == max(mine)
        assert each["longest"]["name"] == each["name"]


def test_kernels_are_found_first_then_what_took_most_time():
    run = trained()
    shown = scene(undiagnosed(run))
    assert [each["name"] for each in shown.search("e")["names"]][:2] == ["sgemm_128", "elementwise"]
    host = [each["name"] for each in shown.search("aten")["names"]]
    assert host == ["aten::linear", "aten::addmm"]
    assert [hit["name"] for hit in shown.search("e", most=8)["hits"]] == ["sgemm_128"] * 6 + ["elementwise"] * 2


def test_a_hit_lies_where_it_is_drawn():
    run = small_run()
    shown = scene(undiagnosed(run))
    for hit in shown.search("gemm_2")["hits"]:
        assert run.event_rows["start_ns"][hit["id"]] == hit["start_ns"]
        row = shown.rows[hit["row"]]
        assert hit["start_ns"] in row.start_ns
        assert hit["id"] in row.id


def test_without_a_text_all_names_are_told_and_no_hits():
    told = scene(undiagnosed(small_run())).search("", most=500)
    assert told["hits"] == []
    assert {"gemm_0", "aten::inner", "cudaLaunchKernel", "step 1"} <= {each["name"] for each in told["names"]}


def test_no_event_that_is_drawn_is_missed_and_none_that_is_not_is_counted():
    run = large(100_000)
    shown = scene(undiagnosed(run))
    names = run.event_rows.words("name").to_list()
    host = {int(thread) for thread in run.event_rows["thread"] if thread >= 0}
    drawn = {id for row in shown.rows if row is not None for id in row.id.tolist()} - {-1}
    assert len(host) == 200
    assert 50_000 < len(drawn) < 60_000  # every kernel, and the calls of six threads
    assert shown.search("kernel_29")["count"] == sum("kernel_29" in names[event] for event in drawn)


def test_a_hostile_name_is_found_and_shown_as_text():
    run = run_of([event(Kind.OP, HOSTILE, 0, 1)])
    told = scene(undiagnosed(run)).search("SCRIPT")
    assert told["count"] == 1
    name = told["hits"][0]["name"]
    assert len(name) <= 200
    assert "\u202e" not in name
    json.dumps(told)


# Brush.


@pytest.mark.parametrize("run", [trained(), computed()], ids=["gpu", "cpu"])
def test_the_ledger_of_a_brushed_step_is_the_ledger_of_that_step(run):
    diagnosis = undiagnosed(run)
    shown, steps, accounts = scene(diagnosis), diagnosis.steps, diagnosis.ledger
    for place, index in enumerate(np.flatnonzero(steps.interior)):
        told = ledger_of(shown.brush(steps.start_ns[index], steps.end_ns[index]))
        expected = {part.key: int(accounts.part_ns[part.key][place]) for part in accounts.parts}
        assert told == {key: ns for key, ns in expected.items() if ns}


@QUICK
@given(st.integers(0, 600 * MS), st.integers(0, 600 * MS))
def test_a_brush_sums_to_its_length_and_is_the_ledger_cut_to_it(one, other):
    start, end = sorted((one, other))
    diagnosis = undiagnosed(RUN)
    told = SHOWN.brush(start, end)
    assert sum(ledger_of(told).values()) == end - start
    first, last = (int(each) for each in (diagnosis.steps.start_ns[1], diagnosis.steps.end_ns[4]))
    if first <= start and end <= last:  # interior: as the ledger has it, part by part
        for part in diagnosis.ledger.parts:
            assert ledger_of(told).get(part.key, 0) == covered_ns(diagnosis.ledger.spans[part.key], start, end)


RUN = trained()
SHOWN = scene(undiagnosed(RUN))


@QUICK
@given(st.lists(st.integers(0, 600 * MS), min_size=3, max_size=3))
def test_two_stretches_side_by_side_add_up_to_the_one_over_both(at):
    first, middle, last = sorted(at)
    whole, left, right = (
        Counter(ledger_of(SHOWN.brush(*each))) for each in ((first, last), (first, middle), (middle, last))
    )
    assert whole == left + right


def test_what_was_not_recorded_is_called_that_and_not_python():
    run = trained(windows=[(200, 500)])
    shown = scene(undiagnosed(run))
    told = shown.brush(0, 150 * MS)
    assert ledger_of(told) == {"unrecorded": 150 * MS}
    assert told["sides"][0]["note"] == "No events were recorded in this stretch."
    partly = shown.brush(150 * MS, 300 * MS)
    assert ledger_of(partly)["unrecorded"] == 50 * MS
    assert sum(ledger_of(partly).values()) == 150 * MS
    assert partly["sides"][0]["note"] == "In 50 ms of it no events were recorded."
    inside = shown.brush(210 * MS, 480 * MS)
    assert "unrecorded" not in ledger_of(inside)
    assert inside["sides"][0]["note"] == ""


def test_while_gpulab_held_the_main_thread_nothing_was_recorded():
    shown = scene(undiagnosed(trained(pauses=[(500, 520)])))
    assert ledger_of(shown.brush(500 * MS, 520 * MS)) == {"unrecorded": 20 * MS}
    assert "unrecorded" not in ledger_of(shown.brush(520 * MS, 600 * MS))


def test_a_run_of_sensors_alone_has_a_brush_that_says_so():
    run = run_of((), marks=[mark(10.0 * n, 1) for n in range(8)], windows=[])
    told = scene(undiagnosed(run)).brush(0, 50 * MS)
    assert ledger_of(told) == {"unrecorded": 50 * MS}
    assert told["sides"][0]["note"] == "No events were recorded in this run."
    assert told["sides"][0]["kernels"] == []


def test_a_brush_is_cut_to_the_scene():
    told = SHOWN.brush(-5 * MS, 10_000 * MS)
    assert (told["start_ns"], told["end_ns"]) == (0, 600 * MS)


def test_kernels_are_ranked_by_their_time_inside_the_brush():
    told = SHOWN.brush(50 * MS, 180 * MS)["sides"][0]["kernels"]
    # One sgemm from 50 to 75 (begun at 40) and one from 140 to 175; one elementwise whole, one from 178 to 180.
    assert told == [
        {"name": "sgemm_128", "count": 2, "total_ns": 60 * MS, "mean_ns": 30 * MS},
        {"name": "elementwise", "count": 2, "total_ns": 9 * MS, "mean_ns": 4_500_000},
    ]


def test_without_a_gpu_operators_are_ranked_by_their_own_time():
    told = scene(undiagnosed(computed())).brush(100 * MS, 300 * MS)["sides"][0]["kernels"]
    assert told == [
        {"name": "aten::addmm", "count": 2, "total_ns": 60 * MS, "mean_ns": 30 * MS},
        {"name": "aten::linear", "count": 2, "total_ns": 20 * MS, "mean_ns": 10 * MS},
    ]


def test_no_more_than_ten_kernels_are_named():
    events = [event(Kind.KERNEL, f"kernel {n}", n, 0.5 + n / 100, correlation=n) for n in range(30)]
    told = scene(undiagnosed(run_of(events))).brush(0, 40 * MS)["sides"][0]["kernels"]
    assert [each["name"] for each in told] == [f"kernel {n}" for n in range(29, 19, -1)]


# Cards and events.


def test_a_card_tells_sizes_grid_and_the_rate_reached():
    events = launched("ampere_sgemm_128", 1, 2, number=5, op="aten::mm", grid=512, called_ms=0.5,
                      shapes=[[1024, 1024], [1024, 1024]], dtypes=["float", "float"])  # fmt: skip
    shown = scene(undiagnosed(on_gpu(events)))
    hit = shown.search("sgemm")["hits"][0]
    card = shown.card(hit["row"], hit["id"])
    assert card["kind"] == "kernel"
    assert card["lines"] == [
        "launched 499 us earlier by aten::mm",
        "grid 512 x 128 threads",
        "[1024, 1024] float, [1024, 1024] float",
        "2.15 GFLOP, 1.07 TFLOP/s",
        "on GPU 0, stream 7",
        "begun in the whole run",
    ]
    assert card["partner"]["name"] == "cudaLaunchKernel"
    back = shown.card(card["partner"]["row"], card["partner"]["id"])
    assert back["partner"]["id"] == hit["id"]
    assert back["lines"][0] == "started ampere_sgemm_128 499 us later"


def test_a_copy_tells_bytes_and_rate():
    copy = event(Kind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", 1, 2, size=16 << 20)
    shown = scene(undiagnosed(run_of([copy, event(Kind.OP, "aten::to", 0, 1)])))
    hit = shown.search("HtoD")["hits"][0]
    assert "16 MiB, 8.39 GB/s" in shown.card(hit["row"], hit["id"])["lines"]


def test_a_card_of_a_step_tells_where_it_went():
    card = SHOWN.card(0, 2)
    assert (card["name"], card["kind"]) == ("step 3", "step")
    assert card["lines"] == ["matrix kernels 35 %, Python outside PyTorch 23 %, waiting for data 20 %"]


def test_a_card_has_the_whole_name_up_to_bearable_length():
    shown = scene(undiagnosed(run_of([event(Kind.OP, HOSTILE, 0, 1)])))
    hit = shown.search("script")["hits"][0]
    name = shown.card(hit["row"], hit["id"])["name"]
    assert 1000 < len(name) <= 1200
    assert "\u202e" not in name


@pytest.mark.parametrize(("row", "id"), [(-1, 0), (10_000, 0), (1, -1), (2, 10**6), (0, 600)])
def test_there_is_no_card_of_what_is_not_there(row, id):
    assert SHOWN.card(row, id) is None
    assert SHOWN.chosen(row, id) is None


def test_an_event_is_told_as_plain_values_and_what_is_absent_is_none():
    hit = SHOWN.search("sgemm")["hits"][0]
    told = SHOWN.event(0, hit["id"])
    assert told["kind"] == "kernel"
    assert told["name"] == "sgemm_128"
    assert (told["start_ns"], told["dur_ns"]) == (hit["start_ns"], 35 * MS)
    assert told["thread"] is None
    assert told["bytes"] is None
    assert told["stream"] == 7
    assert told == SHOWN.chosen(hit["row"], hit["id"])
    json.dumps(told)


def test_there_is_no_event_where_there_is_none():
    assert SHOWN.event(0, 10**6) is None
    assert SHOWN.event(0, -1) is None
    assert SHOWN.event(1, 0) is None


def test_every_answer_can_be_written_as_json():
    for shown in (SHOWN, scene(undiagnosed(computed()), trained())):
        told = [shown.header(), shown.search("a"), shown.brush(0, 300 * MS), shown.card(0, 0), shown.chosen(2, 3)]
        assert json.loads(json.dumps(told, allow_nan=False)) == told
