"""The queries of a timeline: search by name, ledger of a window, details of a box."""

from __future__ import annotations

import json
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.intervals import covered_ns
from gpulab.tables import DEVICE_KINDS, EventKind
from gpulab.views.timeline.scene.scene import build_scene
from tests.support.front_end.scene_counts import large, small_run, undiagnosed
from tests.support.front_end.scene_questions import HOSTILE, computed, ledger_of, trained
from tests.support.runs.made_runs import MS, event, launched_kernel, mark, on_gpu, run_of
from tests.support.tiers import examples

QUICK = examples(40)


# Search.


def naive_search(run, run_scene, text):
    """Return name, duration and device flag of every drawn event whose name contains the text, with a plain loop."""
    rows, steps = run.event_rows, run_scene.sides[0].steps
    boxes = [
        (name, int(dur), kind in DEVICE_KINDS)
        for name, dur, kind in zip(rows.text("name").to_list(), rows["dur_ns"], rows["kind"], strict=True)
        if kind not in (EventKind.STEP, EventKind.SYNC_RECORD)
    ]
    boxes += [(f"step {index + 1}", int(dur), False) for index, dur in enumerate(steps.dur_ns)]
    return [each for each in boxes if text.lower() in (each[0] or "").lower()]


@pytest.mark.parametrize("text", ["gemm", "ATEN", "aten::op3", "cuda", "step 4", "step", "nothing like it", "e"])
def test_search_agrees_with_a_plain_loop_over_all_names(text):
    run = small_run()
    run_scene = build_scene(undiagnosed(run))
    answer, expected = run_scene.search(text), naive_search(run, run_scene, text)
    assert answer["count"] == len(expected)
    assert answer["total_ns"] == sum(dur for _, dur, _ in expected)
    assert {each["name"]: each["count"] for each in answer["names"]} == Counter(name for name, _, _ in expected)
    for entry in answer["names"]:
        durations = [dur for name, dur, _ in expected if name == entry["name"]]
        assert entry["total_ns"] == sum(durations)
        assert entry["longest"]["dur_ns"] == max(durations)
        assert entry["longest"]["name"] == entry["name"]


def test_search_lists_kernels_first_then_by_total_time():
    run = trained()
    run_scene = build_scene(undiagnosed(run))
    assert [each["name"] for each in run_scene.search("e")["names"]][:2] == ["sgemm_128", "elementwise"]
    host = [each["name"] for each in run_scene.search("aten")["names"]]
    assert host == ["aten::linear", "aten::addmm"]
    assert [hit["name"] for hit in run_scene.search("e", max_results=8)["hits"]] == ["sgemm_128"] * 6 + [
        "elementwise"
    ] * 2


def test_a_hit_has_the_row_and_start_of_its_box():
    run = small_run()
    run_scene = build_scene(undiagnosed(run))
    for hit in run_scene.search("gemm_2")["hits"]:
        assert run.event_rows["start_ns"][hit["id"]] == hit["start_ns"]
        row = run_scene.rows[hit["row"]]
        assert hit["start_ns"] in row.start_ns
        assert hit["id"] in row.id


def test_without_a_text_search_returns_all_names_and_no_hits():
    answer = build_scene(undiagnosed(small_run())).search("", max_results=500)
    assert answer["hits"] == []
    assert {"gemm_0", "aten::inner", "cudaLaunchKernel", "step 1"} <= {each["name"] for each in answer["names"]}


def test_search_counts_exactly_the_events_that_are_drawn():
    run = large(100_000)
    run_scene = build_scene(undiagnosed(run))
    names = run.event_rows.text("name").to_list()
    host = {int(thread) for thread in run.event_rows["thread"] if thread >= 0}
    drawn_ids = {id for row in run_scene.rows if row is not None for id in row.id.tolist()} - {-1}
    assert len(host) == 200
    assert 50_000 < len(drawn_ids) < 60_000  # all kernels, and the calls of six threads
    assert run_scene.search("kernel_29")["count"] == sum("kernel_29" in names[event] for event in drawn_ids)


def test_a_hostile_name_is_found_and_cleaned():
    run = run_of([event(EventKind.OP, HOSTILE, 0, 1)])
    answer = build_scene(undiagnosed(run)).search("SCRIPT")
    assert answer["count"] == 1
    name = answer["hits"][0]["name"]
    assert len(name) <= 200
    assert "\u202e" not in name
    json.dumps(answer)


# Brush.


@pytest.mark.parametrize("run", [trained(), computed()], ids=["gpu", "cpu"])
def test_the_ledger_of_a_brushed_step_is_the_ledger_of_that_step(run):
    diagnosis = undiagnosed(run)
    run_scene, steps, accounts = build_scene(diagnosis), diagnosis.steps, diagnosis.ledger
    for place, index in enumerate(np.flatnonzero(steps.interior)):
        answer = ledger_of(run_scene.brush(steps.start_ns[index], steps.end_ns[index]))
        expected = {part.key: int(accounts.part_ns[part.key][place]) for part in accounts.parts}
        assert answer == {key: ns for key, ns in expected.items() if ns}


@QUICK
@given(st.integers(0, 600 * MS), st.integers(0, 600 * MS))
def test_a_brush_sums_to_its_length_and_is_the_ledger_cut_to_it(one, other):
    start, end = sorted((one, other))
    diagnosis = undiagnosed(RUN)
    answer = SCENE.brush(start, end)
    assert sum(ledger_of(answer).values()) == end - start
    first, last = (int(each) for each in (diagnosis.steps.start_ns[1], diagnosis.steps.end_ns[4]))
    if first <= start and end <= last:  # interior: as the ledger has it, part by part
        for part in diagnosis.ledger.parts:
            assert ledger_of(answer).get(part.key, 0) == covered_ns(diagnosis.ledger.spans[part.key], start, end)


RUN = trained()
SCENE = build_scene(undiagnosed(RUN))


@QUICK
@given(st.lists(st.integers(0, 600 * MS), min_size=3, max_size=3))
def test_two_adjacent_windows_add_up_to_the_window_over_both(at):
    first, middle, last = sorted(at)
    both, left, right = (
        Counter(ledger_of(SCENE.brush(*each))) for each in ((first, last), (first, middle), (middle, last))
    )
    assert both == left + right


def test_time_without_events_is_unrecorded_and_not_python():
    run = trained(windows=[(200, 500)])
    run_scene = build_scene(undiagnosed(run))
    answer = run_scene.brush(0, 150 * MS)
    assert ledger_of(answer) == {"unrecorded": 150 * MS}
    assert answer["sides"][0]["note"]
    partly = run_scene.brush(150 * MS, 300 * MS)
    assert ledger_of(partly)["unrecorded"] == 50 * MS
    assert sum(ledger_of(partly).values()) == 150 * MS
    assert "50 ms" in partly["sides"][0]["note"]
    inside = run_scene.brush(210 * MS, 480 * MS)
    assert "unrecorded" not in ledger_of(inside)
    assert inside["sides"][0]["note"] == ""


def test_pauses_of_the_recording_are_unrecorded():
    run_scene = build_scene(undiagnosed(trained(pauses=[(500, 520)])))
    assert ledger_of(run_scene.brush(500 * MS, 520 * MS)) == {"unrecorded": 20 * MS}
    assert "unrecorded" not in ledger_of(run_scene.brush(520 * MS, 600 * MS))


def test_a_run_with_sensors_only_has_an_unrecorded_window():
    run = run_of((), marks=[mark(10.0 * n, 1) for n in range(8)], windows=[])
    answer = build_scene(undiagnosed(run)).brush(0, 50 * MS)
    assert ledger_of(answer) == {"unrecorded": 50 * MS}
    assert answer["sides"][0]["note"]
    assert answer["sides"][0]["kernels"] == []


def test_a_brush_is_clipped_to_the_scene():
    answer = SCENE.brush(-5 * MS, 10_000 * MS)
    assert (answer["start_ns"], answer["end_ns"]) == (0, 600 * MS)


def test_kernels_are_ranked_by_their_time_in_the_window():
    answer = SCENE.brush(50 * MS, 180 * MS)["sides"][0]["kernels"]
    # One sgemm from 50 to 75 (started at 40) and one from 140 to 175; one complete elementwise, one from 178 to 180.
    assert answer == [
        {"name": "sgemm_128", "count": 2, "total_ns": 60 * MS, "mean_ns": 30 * MS},
        {"name": "elementwise", "count": 2, "total_ns": 9 * MS, "mean_ns": 4_500_000},
    ]


def test_without_a_gpu_operators_are_ranked_by_self_time():
    answer = build_scene(undiagnosed(computed())).brush(100 * MS, 300 * MS)["sides"][0]["kernels"]
    assert answer == [
        {"name": "aten::addmm", "count": 2, "total_ns": 60 * MS, "mean_ns": 30 * MS},
        {"name": "aten::linear", "count": 2, "total_ns": 20 * MS, "mean_ns": 10 * MS},
    ]


def test_at_most_ten_kernels_are_listed():
    events = [event(EventKind.KERNEL, f"kernel {n}", n, 0.5 + n / 100, correlation=n) for n in range(30)]
    answer = build_scene(undiagnosed(run_of(events))).brush(0, 40 * MS)["sides"][0]["kernels"]
    assert [each["name"] for each in answer] == [f"kernel {n}" for n in range(29, 19, -1)]


# Cards and events.


def test_a_card_contains_sizes_grid_and_throughput():
    events = launched_kernel("ampere_sgemm_128", 1, 2, number=5, op="aten::mm", grid=512, called_ms=0.5,
                      shapes=[[1024, 1024], [1024, 1024]], dtypes=["float", "float"])  # fmt: skip
    run_scene = build_scene(undiagnosed(on_gpu(events)))
    hit = run_scene.search("sgemm")["hits"][0]
    card = run_scene.card(hit["row"], hit["id"])
    assert card["kind"] == "kernel"
    launch, grid, sizes, throughput, location, _ = card["lines"]
    assert re.findall(r"499 us|aten::mm", launch) == ["499 us", "aten::mm"]
    assert re.findall(r"\d+", grid) == ["512", "128"]
    assert sizes == "[1024, 1024] float, [1024, 1024] float"
    assert throughput == "2.15 GFLOP, 1.07 TFLOP/s"
    assert re.findall(r"\d+", location) == ["0", "7"]
    assert card["partner"]["name"] == "cudaLaunchKernel"
    back = run_scene.card(card["partner"]["row"], card["partner"]["id"])
    assert back["partner"]["id"] == hit["id"]
    assert re.findall(r"ampere_sgemm_128|499 us", back["lines"][0]) == ["ampere_sgemm_128", "499 us"]


def test_the_card_of_a_copy_contains_bytes_and_throughput():
    copy = event(EventKind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", 1, 2, size=16 << 20)
    run_scene = build_scene(undiagnosed(run_of([copy, event(EventKind.OP, "aten::to", 0, 1)])))
    hit = run_scene.search("HtoD")["hits"][0]
    assert "16 MiB, 8.39 GB/s" in run_scene.card(hit["row"], hit["id"])["lines"]


def test_the_card_of_a_step_contains_its_three_largest_parts():
    card = SCENE.card(0, 2)
    assert (card["name"], card["kind"]) == ("step 3", "step")
    [line] = card["lines"]
    assert re.findall(r"\d+ %", line) == ["35 %", "23 %", "20 %"]
    labels = {part.key: part.label for part in SCENE.sides[0].ledger.parts}
    assert line.startswith(f"{labels['matmul']} ")


def test_the_name_on_a_card_has_at_most_1200_letters():
    run_scene = build_scene(undiagnosed(run_of([event(EventKind.OP, HOSTILE, 0, 1)])))
    hit = run_scene.search("script")["hits"][0]
    name = run_scene.card(hit["row"], hit["id"])["name"]
    assert 1000 < len(name) <= 1200
    assert "\u202e" not in name


@pytest.mark.parametrize(("row", "id"), [(-1, 0), (10_000, 0), (1, -1), (2, 10**6), (0, 600)])
def test_a_box_that_does_not_exist_has_no_card(row, id):
    assert SCENE.card(row, id) is None
    assert SCENE.selection(row, id) is None


def test_an_event_consists_of_plain_values_and_absent_ones_are_none():
    hit = SCENE.search("sgemm")["hits"][0]
    answer = SCENE.event(0, hit["id"])
    assert answer["kind"] == "kernel"
    assert answer["name"] == "sgemm_128"
    assert (answer["start_ns"], answer["dur_ns"]) == (hit["start_ns"], 35 * MS)
    assert answer["thread"] is None
    assert answer["bytes"] is None
    assert answer["stream"] == 7
    assert answer == SCENE.selection(hit["row"], hit["id"])
    json.dumps(answer)


def test_an_event_that_does_not_exist_is_none():
    assert SCENE.event(0, 10**6) is None
    assert SCENE.event(0, -1) is None
    assert SCENE.event(1, 0) is None


def test_every_answer_can_be_encoded_as_json():
    for run_scene in (SCENE, build_scene(undiagnosed(computed()), trained())):
        answer = [
            run_scene.header(),
            run_scene.search("a"),
            run_scene.brush(0, 300 * MS),
            run_scene.card(0, 0),
            run_scene.selection(2, 3),
        ]
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer
