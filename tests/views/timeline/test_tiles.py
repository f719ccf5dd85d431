"""Tiles: nothing lost, nothing made up, small, whatever the run; checked by counting every nanosecond."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import diagnose
from gpulab.run import Machine
from gpulab.tables import Kind
from gpulab.views.timeline import Scene
from gpulab.views.timeline.scene.depths import depths
from gpulab.views.timeline.scene.groups import boxes
from gpulab.views.timeline.scene.scene import scene
from gpulab.views.timeline.tiles.cutting import Layer, cut, shares
from tests.support.front_end.scene_counts import MOST, large, looked_at, read, small_run, undiagnosed
from tests.support.runs.made_runs import GPUS, gpu_series, run_of
from tests.support.tiers import examples

QUICK = examples(60)


def filled(starts, ends, first, last):
    """Which nanoseconds of a stretch lie in any of these spans, one by one."""
    told = np.zeros(last - first, bool)
    for start, end in zip(starts, ends, strict=True):
        told[max(0, start - first) : max(0, end - first)] = True
    return told


spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400), st.integers(0, 3)), max_size=40)


def row_of(told):
    start, dur, key = (np.array(each, np.int64) for each in (zip(*told, strict=True) if told else ([], [], [])))
    names, ids = np.arange(len(start), dtype=np.int32), np.arange(len(start), dtype=np.int32)
    return boxes(start, start + dur, key.astype(np.uint8), names, ids)


@QUICK
@given(
    st.lists(spans, min_size=1, max_size=4),
    st.integers(0, 2500),
    st.integers(1, 3000),
    st.sampled_from([0, 300, 2000, 40_000]),
)
def test_boxes_and_bins_of_every_row_are_the_time_it_covers_to_the_nanosecond(rows, start, length, room):
    made = [row_of(told) for told in rows]
    end = start + length
    found = cut(made, start, end, room, lambda names: np.full(len(names), 10))
    for number, told in enumerate(rows):
        covered = filled([s for s, _, _ in told], [s + d for s, d, _ in told], start, end)
        places = found.place[found.row == number]
        exact = filled(made[number].start_ns[places].tolist(), made[number].end_ns[places].tolist(), start, end)
        binned = sum(
            (layer.filled_ns for layer in found.layers if layer.row == number),
            np.zeros(len(found.edges_ns) - 1, np.int64),
        )
        for bin, (a, b) in enumerate(zip(found.edges_ns[:-1] - start, found.edges_ns[1:] - start, strict=True)):
            assert exact[a:b].sum() + binned[bin] == covered[a:b].sum()


@pytest.mark.parametrize(("dur", "exact"), [(10, 256), (9, 0)])
def test_a_box_as_wide_as_a_bin_is_told_by_itself_and_a_narrower_one_is_not(dur, exact):
    row = row_of([(at, dur, 0) for at in range(0, 5120, 20)])
    assert len(cut([row], 0, 5120, 10**6, lambda names: np.full(len(names), 10)).row) == exact


@QUICK
@given(spans, st.integers(0, 2500), st.integers(600, 3000))
def test_a_bin_with_any_idle_is_never_full_and_one_with_any_work_is_never_empty(told, start, length):
    found = cut([row_of(told)], start, start + length, 0, lambda names: np.zeros(len(names), np.int64))
    assert not len(found.row)
    covered = filled([s for s, _, _ in told], [s + d for s, d, _ in told], start, start + length)
    seen = sum((value.astype(int) for _, _, value in shares(found.layers, found.edges_ns)), np.zeros(512, int))
    for bin, (a, b) in enumerate(zip(found.edges_ns[:-1] - start, found.edges_ns[1:] - start, strict=True)):
        assert (seen[bin] > 0) == bool(covered[a:b].any())
        assert (seen[bin] == 255) == bool(b > a and covered[a:b].all())
    for _, key, value in shares(found.layers, found.edges_ns):
        layer = next(each for each in found.layers if each.key == key)
        assert ((value > 0) == (layer.filled_ns > 0)).all()


@pytest.mark.parametrize(
    ("filled_ns", "expected"),
    [
        ([[1], [0]], [1, 0]),
        ([[999_999], [0]], [254, 0]),
        ([[1_000_000], [0]], [255, 0]),
        ([[999_998], [1]], [253, 1]),
        ([[999_999], [1]], [254, 1]),
        ([[0], [0]], [0, 0]),
    ],
)
def test_a_nanosecond_in_a_millisecond_is_seen_be_it_work_or_idle(filled_ns, expected):
    layers = [Layer(3, key, np.array(each)) for key, each in enumerate(filled_ns)]
    told = shares(layers, np.array([0, 1_000_000]))
    assert [(row, key, value.tolist()) for row, key, value in told] == [(3, 0, expected[:1]), (3, 1, expected[1:])]


def test_bins_are_right_to_a_255th():
    told = [(at, 3, 0) for at in range(0, 5120, 10)]
    found = cut([row_of(told)], 0, 5120, 0, lambda names: np.zeros(len(names), np.int64))
    ((_, _, value),) = shares(found.layers, found.edges_ns)
    assert abs(value / 255 - 0.3).max() < 1 / 255


@QUICK
@given(spans)
def test_layers_of_a_row_never_overlap_whatever_its_boxes_do(told):
    row = row_of(told)
    assert sum(coverage.total_ns for _, coverage in row.layers) == row.covered.total_ns
    assert row.covered.total_ns == filled([s for s, _, _ in told], [s + d for s, d, _ in told], 0, 4000).sum()


def calls(count, seed):
    """Calls that nest: each is split at random into calls that lie in it."""
    rng = np.random.default_rng(seed)
    found, open_ = [], [(0, 100_000)]
    while open_ and len(found) < count:
        start, end = open_.pop(0)
        found.append((start, end))
        if end - start > 8:
            at = np.sort(rng.integers(start, end + 1, 4)).tolist()
            open_ += [(a, b) for a, b in (at[:2], at[2:]) if b > a]
    return sorted(found, key=lambda each: (each[0], -each[1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_depth_of_a_call_is_how_many_hold_it(seed):
    told = calls(200, seed)
    start, end = (np.array(each) for each in zip(*told, strict=True))
    by_hand = [sum(a <= s and e <= b for a, b in told[:place]) for place, (s, e) in enumerate(told)]
    assert depths(start, end).tolist() == by_hand


@QUICK
@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 20_000)), min_size=1, max_size=40))
def test_calls_of_one_depth_overlap_by_no_more_than_a_rounding(told):
    told = sorted(((start, start + dur) for start, dur in told), key=lambda each: (each[0], -each[1]))
    start, end = (np.array(each) for each in zip(*told, strict=True))
    found = depths(start, end)
    for depth in range(found.max() + 1):
        mine = np.flatnonzero(found == depth)
        assert (start[mine][1:] >= end[mine][:-1] - 2_000).all()


def test_neighbours_that_overlap_by_a_rounding_stand_side_by_side():
    start, end = np.array([0, 9_999, 20_000]), np.array([10_000, 20_001, 30_000])
    assert depths(start, end).tolist() == [0, 0, 0]


@pytest.fixture(scope="module")
def million() -> Scene:
    return scene(undiagnosed(large()))


def test_a_tile_of_a_run_of_a_million_events_on_forty_streams_and_two_hundred_threads_is_small(million):
    assert max(len(tile) for _, _, tile in looked_at(million)) <= MOST
    head = million.header()
    assert len([group for group in head["groups"] if "stream" in group["name"]]) == 7
    assert any("194 other threads" in note for note in head["notes"])


def test_a_million_events_are_all_in_the_first_tile(million):
    head, boxes_, bins, _ = read(million.tile(0, 0))
    assert head["binned"]
    for number, row in enumerate(million.rows):
        if row is None:
            continue
        width = (head["end_ns"] - head["start_ns"]) / head["bins"]
        told = sum(value.astype(float).sum() for (at, _), value in bins.items() if at == number) / 255 * width
        told += boxes_["dur"][boxes_["row"] == number].sum()
        assert told == pytest.approx(row.covered.total_ns, rel=0.01, abs=width * 2)


def test_names_of_ten_thousand_hostile_letters_do_not_make_a_tile_large_or_the_head_broken():
    shown = scene(undiagnosed(large(20_000, names=300, hostile=True)))
    for _, _, tile in looked_at(shown):
        assert len(tile) <= MOST
        head, *_ = read(tile)
        for text in (*head["names"], *head["notes"]):
            assert not any(letter in text for letter in "\u202e\x00")
        assert max(map(len, head["names"])) <= 200


def without_ids(tile):
    head, told, bins, _ = read(tile)
    words = [head["names"][name] for name in told["name"]]
    rest = {column: told[column].tolist() for column in ("start", "dur", "row", "key", "partner_row")}
    links = [None if np.isnan(at) else at for at in told["partner_at"]]
    return words, rest, links, {key: value.tolist() for key, value in bins.items()}


@examples(15)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_events_does_not_matter(random):
    run = small_run()
    order = list(range(len(run.event_rows)))
    random.shuffle(order)
    shuffled = replace(run, event_rows=run.event_rows.where(np.array(order)))
    mine, theirs = scene(undiagnosed(run)), scene(undiagnosed(shuffled))
    for level, index in ((0, 0), (1, 1), (3, 2), (mine.deepest, 0)):
        assert without_ids(mine.tile(level, index)) == without_ids(theirs.tile(level, index))


def test_exact_boxes_keep_their_nanoseconds_and_say_which_event_they_are():
    run = small_run()
    shown = scene(undiagnosed(run))
    rows = run.event_rows
    of_events = {
        row
        for group in shown.header()["groups"]
        if group["kind"] == "boxes" and group["id"].startswith(("thread", "gpu"))
        for row in range(group["first"], group["first"] + group["rows"])
    }
    seen = set()
    for level, index in ((0, 0), *((4, index) for index in range(16))):
        head, told, *_ = read(shown.tile(level, index))
        for start, dur, row, name, id in zip(
            told["start"], told["dur"], told["row"], told["name"], told["id"], strict=True
        ):
            if row in of_events:
                seen.add(id)
                assert (start, dur) == (rows["start_ns"][id], rows["dur_ns"][id])
                assert head["names"][name] == rows.words("name")[id]
    assert len(seen) == (rows["kind"] != Kind.STEP).sum()


def test_the_deepest_tiles_show_each_box_that_is_as_wide_as_a_bin_or_wider():
    shown = scene(undiagnosed(small_run()))
    for index in range(1 << shown.deepest):
        head, told, *_ = read(shown.tile(shown.deepest, index))
        bin_ns = (head["end_ns"] - head["start_ns"]) / 512
        for number, row in enumerate(shown.rows):
            reaching = (row.start_ns < head["end_ns"]) & (row.end_ns > head["start_ns"])
            wide = reaching & (row.end_ns - row.start_ns >= bin_ns)
            assert (told["row"] == number).sum() == wide.sum()


def test_where_there_is_room_nothing_is_shown_as_bins():
    head, told, bins, _ = read(scene(undiagnosed(small_run())).tile(0, 0))
    assert not head["binned"]
    assert not bins
    assert len(told["start"]) > 100


def test_tiles_of_a_level_nest_in_those_above_and_end_where_the_scene_ends():
    run = small_run()
    shown = scene(undiagnosed(replace(run, span_ns=run.span_ns + 12_345)))
    assert shown.deepest == 5
    assert shown.until_ns == run.span_ns + 12_345
    for level in range(shown.deepest + 1):
        assert shown.tile_ns(level) << level == shown.span_ns
    head, *_ = read(shown.tile(shown.deepest, (1 << shown.deepest) - 1))
    assert head["end_ns"] == shown.span_ns >= shown.until_ns


@pytest.mark.parametrize(("level", "index"), [(-1, 0), (0, 1), (0, -1), (3, 8), (31, 0)])
def test_a_tile_that_does_not_exist_is_refused(level, index):
    with pytest.raises(ValueError, match="no tile"):
        scene(undiagnosed(small_run())).tile(level, index)


def test_a_kernel_points_to_its_launch_and_back():
    run = small_run()
    shown = scene(undiagnosed(run))
    head, told, *_ = read(shown.tile(0, 0))
    names = [head["names"][name] for name in told["name"]]
    kernel = names.index("gemm_3")
    launch = int(
        np.flatnonzero((told["row"] == told["partner_row"][kernel]) & (told["start"] == told["partner_at"][kernel]))[0]
    )
    assert names[launch] == "cudaLaunchKernel"
    assert (told["partner_at"][launch], told["partner_row"][launch]) == (told["start"][kernel], told["row"][kernel])
    alone = names.index("aten::inner")
    assert np.isnan(told["partner_at"][alone])
    assert told["partner_row"][alone] == 65_535


def test_a_note_tells_who_launched_a_kernel_and_when():
    head, told, *_ = read(scene(undiagnosed(small_run())).tile(0, 0))
    names = [head["names"][name] for name in told["name"]]
    note = head["notes"][told["note"][names.index("gemm_3")]]
    assert note.split("\n")[0] == "launched 7 us earlier by aten::inner"


def curved(told, count=24):
    return scene(undiagnosed(run_of((), gpu_rows=gpu_series(told, count=count), machine=Machine(gpus=(GPUS["H100"],)))))


def test_a_curve_of_few_readings_is_the_readings():
    values = [0.1 * (n % 7) for n in range(24)]
    shown = replace_span(curved(lambda n: {"util_frac": values[n]}))
    row = next(group["first"] for group in shown.header()["groups"] if group["id"] == "gpu0:util_frac")
    _, _, _, curves = read(shown.tile(0, 0))
    at, low, high = curves[row]
    assert at.tolist() == [25e6 * n for n in range(24)]
    assert low.tolist() == high.tolist() == np.float32(values).tolist()


def replace_span(shown):
    run = replace(shown.diagnosis.run, span_ns=600_000_000)
    return scene(replace(shown.diagnosis, run=run))


def test_of_many_readings_each_piece_keeps_its_lowest_and_highest():
    rng = np.random.default_rng(1)
    values = rng.random(20_000)
    shown = curved(lambda n: {"power_w": values[n]}, count=20_000)
    shown = scene(replace(shown.diagnosis, run=replace(shown.diagnosis.run, span_ns=20_000 * 25_000_000)))
    row = next(group["first"] for group in shown.header()["groups"] if group["id"] == "gpu0:power_w")
    at, low, high = read(shown.tile(0, 0))[3][row]
    assert len(at) <= 256
    assert (np.diff(at) > 0).all()
    assert low.min() == np.float32(values.min())
    assert high.max() == np.float32(values.max())
    assert (low <= high).all()


def test_a_hole_in_the_readings_is_a_hole_and_not_zero():
    told = curved(lambda n: {"util_frac": np.nan if 8 <= n < 12 else 0.5})
    shown = replace_span(told)
    row = next(group["first"] for group in shown.header()["groups"] if group["id"] == "gpu0:util_frac")
    at, low, _ = read(shown.tile(0, 0))[3][row]
    inside = (at >= 8 * 25e6) & (at < 12 * 25e6)
    assert np.isnan(low[inside]).all()
    assert (low[~inside] == 0.5).all()


def test_where_the_sampler_stood_still_no_line_is_drawn():
    rows = gpu_series(lambda n: {"util_frac": 0.5}).where(np.r_[0:8, 20:24])
    shown = scene(undiagnosed(run_of((), gpu_rows=rows, machine=Machine(gpus=(GPUS["H100"],)))))
    shown = replace_span(shown)
    row = next(group["first"] for group in shown.header()["groups"] if group["id"] == "gpu0:util_frac")
    at, low, _ = read(shown.tile(0, 0))[3][row]
    between = (at > 7 * 25e6) & (at < 20 * 25e6)
    assert between.any()
    assert np.isnan(low[between]).all()


def test_boxes_curves_and_notes_of_a_diagnosed_run_fit_together():
    run = small_run(gpu_rows=gpu_series(lambda n: {"util_frac": 0.5, "power_w": 300.0}))
    head, told, _, curves = read(scene(diagnose(run)).tile(0, 0))
    assert len(told["start"])
    assert len(curves) == 2
    assert head["notes"][0] == head["names"][0] == ""
    assert told["name"].max() < len(head["names"])
    assert told["note"].max() < len(head["notes"])
