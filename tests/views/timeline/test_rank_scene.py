"""The ranks of a job on one time axis: a lane for each, with aligned clocks, and the diagnosed rank in detail."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gpulab
from gpulab.files import Ranks
from gpulab.questions import diagnose
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from gpulab.views.timeline.page import timeline_page
from gpulab.views.timeline.scene.rank_scene import MAX_LANES, build_rank_scene
from gpulab.views.timeline.tiles.encoding import MAX_TILE_BYTES
from tests.support.runs.made_jobs import job
from tests.support.runs.made_runs import event, run_of, stepped

MS = 1_000_000
OFFSETS_MS = (0.0, 250.0, 3.0, 1_000.0)
LATE = 2


def late_job(ranks=4, *, offset_ms=lambda rank: 0.0, **more):
    return job(lambda rank, step: 40 + 15 * (rank == LATE), ranks=ranks, offset_ms=offset_ms, **more)


def scene_of_ranks(runs):
    return build_rank_scene(diagnose(Ranks(tuple(runs))), runs)


def side_of(scene, name):
    return next(side for side in scene.sides if side.name == name)


def rows_of(scene, side, id):
    """Return the first row of a group of a side."""
    return next(scene.rows[each.first] for each in side.placed_groups if each.group.id == id)


def test_the_diagnosed_rank_is_in_detail_and_each_other_rank_has_a_lane():
    scene = scene_of_ranks(late_job())
    sides = scene.header()["sides"]
    assert [(side["name"], side["lane"]) for side in sides] == [
        (f"rank {LATE}", False),
        ("rank 0", True),
        ("rank 1", True),
        ("rank 3", True),
    ]
    assert "4 ranks" in scene.header()["title"]
    lanes = [group for group in scene.header()["groups"] if group["side"]]
    assert {group["name"] for group in lanes} == {"rank 0", "rank 1", "rank 3", "collectives"}
    assert [group["id"] for group in scene.header()["groups"] if not group["side"]][:2] == ["steps", "ledger"]


def test_collectives_of_all_ranks_end_at_the_same_place_whatever_their_clocks_say():
    scene = scene_of_ranks(late_job(offset_ms=lambda rank: OFFSETS_MS[rank]))
    main = side_of(scene, f"rank {LATE}")
    events = main.run.event_rows
    ends = np.sort(
        (events["start_ns"] + events["dur_ns"])[["AllReduce" in name for name in events.text("name").to_list()]]
    )
    for side in scene.sides[1:]:
        assert np.abs(rows_of(scene, side, "collectives").end_ns - ends).max() < 0.01 * MS
    assert any("aligned" in note for note in scene.header()["notes"])


def test_the_lane_of_a_rank_holds_its_ledger_in_every_window():
    scene = scene_of_ranks(late_job())
    answer = scene.brush(57 * MS, 190 * MS)
    for contents, side in zip(answer["sides"], scene.sides, strict=True):
        assert contents["name"] == side.name
        assert sum(part["ns"] for part in contents["ledger"]) == 133 * MS
    waiting = {side["name"]: {part["key"]: part["ns"] for part in side["ledger"]} for side in answer["sides"]}
    assert waiting["rank 0"]["communication"] > waiting[f"rank {LATE}"]["communication"]


def test_a_collective_of_a_lane_can_be_found_and_has_a_card():
    scene = scene_of_ranks(late_job())
    found = scene.search("AllReduce")
    assert found["count"] == 4 * 10
    side = side_of(scene, "rank 3")
    row = next(each.first for each in side.placed_groups if each.group.id == "collectives")
    hit = next(each for each in found["hits"] if each["row"] == row)
    card = scene.card(row, hit["id"])
    assert card["side"] == side.number
    assert (card["start_ns"], card["dur_ns"]) == (hit["start_ns"], hit["dur_ns"])


def test_of_many_ranks_those_that_others_wait_for_have_lanes_and_tiles_stay_small():
    scene = scene_of_ranks(late_job(MAX_LANES + 16))
    assert len(scene.sides) == MAX_LANES
    assert scene.diagnosis.run.rank == LATE
    assert any(f"{MAX_LANES} of {MAX_LANES + 16} ranks" in note for note in scene.header()["notes"])
    assert not any(group["name"] == "collectives" for group in scene.header()["groups"])
    for level, index in ((0, 0), (1, 1), (scene.max_level, 0)):
        assert len(scene.tile(level, index)) <= MAX_TILE_BYTES


def test_ranks_without_common_collectives_are_placed_by_their_steps_and_that_is_said():
    def rank(number):
        events = stepped(lambda at: [event(EventKind.OP, "aten::mm", at + 10, 60)])
        return replace(run_of(events, name=f"rank{number}"), rank=number)

    scene = scene_of_ranks([rank(0), rank(1)])
    assert any("cannot be aligned" in note for note in scene.header()["notes"])
    assert rows_of(scene, scene.sides[1], "ledger").start_ns.min() >= 0


def test_a_timeline_of_ranks_has_a_picture_with_all_of_them_and_saves_the_report_of_the_job(tmp_path):
    runs = Ranks(tuple(late_job()))
    view = gpulab.timeline(runs, live=False)
    assert "4 ranks" in repr(view.scene)
    html = view._repr_html_()
    for rank in range(4):
        assert f"rank {rank}" in html
    page = view.save(tmp_path / "job.html").read_text(encoding="utf-8")
    assert "Who waits for whom" in page
    json.dumps(view.scene.header())


def test_one_rank_is_a_timeline_of_a_run():
    [rank, *_] = late_job()
    assert len(gpulab.timeline([rank]).scene.sides) == 1


def test_something_else_than_runs_is_refused():
    with pytest.raises(gpulab.GpulabError, match=r"no file 'rank0\.gpulab'"):
        gpulab.timeline(["rank0.gpulab"])
    with pytest.raises(gpulab.GpulabError, match="no timeline"):
        gpulab.timeline(Ranks(tuple(late_job())), late_job()[0])


# In a browser.


@pytest.fixture(scope="module")
def opened(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    runs = Ranks(tuple(late_job(offset_ms=lambda rank: OFFSETS_MS[rank])))
    path = tmp_path_factory.mktemp("job") / "job.html"
    path.write_text(timeline_page(scene_of_ranks(runs), report(runs)._repr_html_()), encoding="utf-8")
    window = chromium.new_context(viewport={"width": 1100, "height": 1200}, offline=True).new_page()
    window.complaints = []
    window.on("pageerror", lambda error: window.complaints.append(str(error)))
    window.goto(path.as_uri())
    window.locator(".gpulab-tl[data-painted]").wait_for()
    return window


@pytest.mark.browser
def test_lanes_lie_above_the_rank_in_detail_in_order_of_their_ranks(opened):
    tops = {
        name: opened.locator(".gpulab-tl-label", has_text=name).first.bounding_box()["y"]
        for name in ("rank 0", "rank 1", "rank 3", "steps", "ledger")
    }
    assert sorted(tops, key=tops.get) == ["rank 0", "rank 1", "rank 3", "steps", "ledger"]
    assert opened.complaints == []


@pytest.mark.browser
def test_a_window_in_the_file_has_the_ledger_of_every_rank(opened):
    opened.locator(".gpulab-tl-stage").focus()
    opened.keyboard.press("b")
    panel = opened.locator('[data-panel="brush"]')
    panel.get_by_text("rank 3:").wait_for()
    text = panel.inner_text()
    assert all(f"rank {rank}" in text for rank in range(4))
    assert opened.complaints == []
