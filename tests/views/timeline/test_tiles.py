"""Tiles account for every nanosecond of a row and stay small for any run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import diagnose
from gpulab.run import Machine
from gpulab.tables import EventKind
from gpulab.views.timeline import Scene
from gpulab.views.timeline.scene.depths import call_depths
from gpulab.views.timeline.scene.elements import build_boxes
from gpulab.views.timeline.scene.scene import build_scene
from gpulab.views.timeline.tiles.cutting import BinLayer, bin_shares, cut_tile
from tests.support.front_end.scene_counts import MOST, large, looked_at, read, small_run, undiagnosed
from tests.support.runs.made_runs import GPUS, gpu_series, run_of
from tests.support.tiers import examples

QUICK = examples(60)


def covered_mask(starts, ends, first, last):
    """Return for each nanosecond of a window whether any of the spans covers it."""
    mask = np.zeros(last - first, bool)
    for start, end in zip(starts, ends, strict=True):
        mask[max(0, start - first) : max(0, end - first)] = True
    return mask


spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400), st.integers(0, 3)), max_size=40)


def row_of(box_spans):
    start, dur, key = (
        np.array(each, np.int64) for each in (zip(*box_spans, strict=True) if box_spans else ([], [], []))
    )
    names, ids = np.arange(len(start), dtype=np.int32), np.arange(len(start), dtype=np.int32)
    return build_boxes(start, start + dur, key.astype(np.uint8), names, ids)


@QUICK
@given(
    st.lists(spans, min_size=1, max_size=4),
    st.integers(0, 2500),
    st.integers(1, 3000),
    st.sampled_from([0, 300, 2000, 40_000]),
)
def test_boxes_and_bins_of_a_row_cover_its_time_to_the_nanosecond(rows, start, length, max_bytes):
    row_boxes = [row_of(box_spans) for box_spans in rows]
    end = start + length
    content = cut_tile(row_boxes, start, end, max_bytes, lambda names: np.full(len(names), 10))
    for number, box_spans in enumerate(rows):
        covered = covered_mask([s for s, _, _ in box_spans], [s + d for s, d, _ in box_spans], start, end)
        places = content.position[content.row == number]
        exact = covered_mask(
            row_boxes[number].start_ns[places].tolist(), row_boxes[number].end_ns[places].tolist(), start, end
        )
        binned = sum(
            (layer.filled_ns for layer in content.layers if layer.row == number),
            np.zeros(len(content.edges_ns) - 1, np.int64),
        )
        for bin, (a, b) in enumerate(zip(content.edges_ns[:-1] - start, content.edges_ns[1:] - start, strict=True)):
            assert exact[a:b].sum() + binned[bin] == covered[a:b].sum()


@pytest.mark.parametrize(("dur", "exact"), [(10, 256), (9, 0)])
def test_boxes_at_least_as_wide_as_a_bin_are_stored_singly(dur, exact):
    row = row_of([(at, dur, 0) for at in range(0, 5120, 20)])
    assert len(cut_tile([row], 0, 5120, 10**6, lambda names: np.full(len(names), 10)).row) == exact


@QUICK
@given(spans, st.integers(0, 2500), st.integers(600, 3000))
def test_a_bin_with_idle_time_is_never_full_and_one_with_work_is_never_empty(box_spans, start, length):
    content = cut_tile([row_of(box_spans)], start, start + length, 0, lambda names: np.zeros(len(names), np.int64))
    assert not len(content.row)
    covered = covered_mask([s for s, _, _ in box_spans], [s + d for s, d, _ in box_spans], start, start + length)
    values = sum(
        (value.astype(int) for _, _, value in bin_shares(content.layers, content.edges_ns)), np.zeros(512, int)
    )
    for bin, (a, b) in enumerate(zip(content.edges_ns[:-1] - start, content.edges_ns[1:] - start, strict=True)):
        assert (values[bin] > 0) == bool(covered[a:b].any())
        assert (values[bin] == 255) == bool(b > a and covered[a:b].all())
    for _, key, value in bin_shares(content.layers, content.edges_ns):
        layer = next(each for each in content.layers if each.key == key)
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
def test_one_nanosecond_of_work_or_idle_time_in_a_millisecond_is_visible(filled_ns, expected):
    layers = [BinLayer(3, key, np.array(each)) for key, each in enumerate(filled_ns)]
    values = bin_shares(layers, np.array([0, 1_000_000]))
    assert [(row, key, value.tolist()) for row, key, value in values] == [(3, 0, expected[:1]), (3, 1, expected[1:])]


def test_bins_are_accurate_to_1_in_255():
    box_spans = [(at, 3, 0) for at in range(0, 5120, 10)]
    content = cut_tile([row_of(box_spans)], 0, 5120, 0, lambda names: np.zeros(len(names), np.int64))
    ((_, _, value),) = bin_shares(content.layers, content.edges_ns)
    assert abs(value / 255 - 0.3).max() < 1 / 255


@QUICK
@given(spans)
def test_layers_of_a_row_never_overlap_even_if_its_boxes_do(box_spans):
    row = row_of(box_spans)
    assert sum(coverage.total_ns for _, coverage in row.layers) == row.coverage.total_ns
    assert (
        row.coverage.total_ns
        == covered_mask([s for s, _, _ in box_spans], [s + d for s, d, _ in box_spans], 0, 4000).sum()
    )


def calls(count, seed):
    """Generate nested calls by splitting each one at random."""
    rng = np.random.default_rng(seed)
    spans_, open_ = [], [(0, 100_000)]
    while open_ and len(spans_) < count:
        start, end = open_.pop(0)
        spans_.append((start, end))
        if end - start > 8:
            at = np.sort(rng.integers(start, end + 1, 4)).tolist()
            open_ += [(a, b) for a, b in (at[:2], at[2:]) if b > a]
    return sorted(spans_, key=lambda span: (span[0], -span[1]))


@pytest.mark.parametrize("seed", range(5))
def test_the_depth_of_a_call_is_the_number_of_calls_that_contain_it(seed):
    call_spans = calls(200, seed)
    start, end = (np.array(each) for each in zip(*call_spans, strict=True))
    by_hand = [sum(a <= s and e <= b for a, b in call_spans[:place]) for place, (s, e) in enumerate(call_spans)]
    assert call_depths(start, end).tolist() == by_hand


@QUICK
@given(st.lists(st.tuples(st.integers(0, 50_000), st.integers(1, 20_000)), min_size=1, max_size=40))
def test_calls_of_one_depth_overlap_by_at_most_a_rounding_error(call_spans):
    call_spans = sorted(((start, start + dur) for start, dur in call_spans), key=lambda span: (span[0], -span[1]))
    start, end = (np.array(each) for each in zip(*call_spans, strict=True))
    depth_of = call_depths(start, end)
    for depth in range(depth_of.max() + 1):
        indices = np.flatnonzero(depth_of == depth)
        assert (start[indices][1:] >= end[indices][:-1] - 2_000).all()


def test_neighbours_that_overlap_by_a_rounding_error_have_the_same_depth():
    start, end = np.array([0, 9_999, 20_000]), np.array([10_000, 20_001, 30_000])
    assert call_depths(start, end).tolist() == [0, 0, 0]


@pytest.fixture(scope="module")
def million() -> Scene:
    return build_scene(undiagnosed(large()))


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
        covered_ns = sum(value.astype(float).sum() for (at, _), value in bins.items() if at == number) / 255 * width
        covered_ns += boxes_["dur"][boxes_["row"] == number].sum()
        assert covered_ns == pytest.approx(row.coverage.total_ns, rel=0.01, abs=width * 2)


def test_long_hostile_names_neither_enlarge_a_tile_nor_break_its_head():
    run_scene = build_scene(undiagnosed(large(20_000, names=300, hostile=True)))
    for _, _, tile in looked_at(run_scene):
        assert len(tile) <= MOST
        head, *_ = read(tile)
        for text in (*head["names"], *head["notes"]):
            assert not any(letter in text for letter in "\u202e\x00")
        assert max(map(len, head["names"])) <= 200


def without_ids(tile):
    head, columns, bins, _ = read(tile)
    names = [head["names"][name] for name in columns["name"]]
    rest = {column: columns[column].tolist() for column in ("start", "dur", "row", "key", "partner_row")}
    links = [None if np.isnan(at) else at for at in columns["partner_at"]]
    return names, rest, links, {key: value.tolist() for key, value in bins.items()}


@examples(15)
@given(st.randoms(use_true_random=False))
def test_the_order_of_the_events_does_not_matter(random):
    run = small_run()
    order = list(range(len(run.event_rows)))
    random.shuffle(order)
    shuffled = replace(run, event_rows=run.event_rows.select(np.array(order)))
    first, second = build_scene(undiagnosed(run)), build_scene(undiagnosed(shuffled))
    for level, index in ((0, 0), (1, 1), (3, 2), (first.max_level, 0)):
        assert without_ids(first.tile(level, index)) == without_ids(second.tile(level, index))


def test_single_boxes_keep_their_nanoseconds_and_their_event():
    run = small_run()
    run_scene = build_scene(undiagnosed(run))
    rows = run.event_rows
    of_events = {
        row
        for group in run_scene.header()["groups"]
        if group["kind"] == "boxes" and group["id"].startswith(("thread", "gpu"))
        for row in range(group["first"], group["first"] + group["rows"])
    }
    exact_ids = set()
    for level, index in ((0, 0), *((4, index) for index in range(16))):
        head, columns, *_ = read(run_scene.tile(level, index))
        for start, dur, row, name, id in zip(
            columns["start"], columns["dur"], columns["row"], columns["name"], columns["id"], strict=True
        ):
            if row in of_events:
                exact_ids.add(id)
                assert (start, dur) == (rows["start_ns"][id], rows["dur_ns"][id])
                assert head["names"][name] == rows.text("name")[id]
    assert len(exact_ids) == (rows["kind"] != EventKind.STEP).sum()


def test_the_deepest_tiles_contain_every_box_at_least_as_wide_as_a_bin():
    run_scene = build_scene(undiagnosed(small_run()))
    for index in range(1 << run_scene.max_level):
        head, columns, *_ = read(run_scene.tile(run_scene.max_level, index))
        bin_ns = (head["end_ns"] - head["start_ns"]) / 512
        for number, row in enumerate(run_scene.rows):
            reaching = (row.start_ns < head["end_ns"]) & (row.end_ns > head["start_ns"])
            wide = reaching & (row.end_ns - row.start_ns >= bin_ns)
            assert (columns["row"] == number).sum() == wide.sum()


def test_a_small_tile_has_no_bins():
    head, columns, bins, _ = read(build_scene(undiagnosed(small_run())).tile(0, 0))
    assert not head["binned"]
    assert not bins
    assert len(columns["start"]) > 100


def test_tiles_nest_in_those_of_the_level_above_and_end_with_the_scene():
    run = small_run()
    run_scene = build_scene(undiagnosed(replace(run, span_ns=run.span_ns + 12_345)))
    assert run_scene.max_level == 5
    assert run_scene.end_ns == run.span_ns + 12_345
    for level in range(run_scene.max_level + 1):
        assert run_scene.tile_ns(level) << level == run_scene.span_ns
    head, *_ = read(run_scene.tile(run_scene.max_level, (1 << run_scene.max_level) - 1))
    assert head["end_ns"] == run_scene.span_ns >= run_scene.end_ns


@pytest.mark.parametrize(("level", "index"), [(-1, 0), (0, 1), (0, -1), (3, 8), (31, 0)])
def test_a_tile_that_does_not_exist_is_refused(level, index):
    with pytest.raises(ValueError, match="no tile"):
        build_scene(undiagnosed(small_run())).tile(level, index)


def test_a_kernel_refers_to_its_launch_and_back():
    run = small_run()
    run_scene = build_scene(undiagnosed(run))
    head, columns, *_ = read(run_scene.tile(0, 0))
    names = [head["names"][name] for name in columns["name"]]
    kernel = names.index("gemm_3")
    launch = int(
        np.flatnonzero(
            (columns["row"] == columns["partner_row"][kernel]) & (columns["start"] == columns["partner_at"][kernel])
        )[0]
    )
    assert names[launch] == "cudaLaunchKernel"
    assert (columns["partner_at"][launch], columns["partner_row"][launch]) == (
        columns["start"][kernel],
        columns["row"][kernel],
    )
    alone = names.index("aten::inner")
    assert np.isnan(columns["partner_at"][alone])
    assert columns["partner_row"][alone] == 65_535


def test_the_note_of_a_kernel_contains_its_launch_delay_and_operator():
    head, columns, *_ = read(build_scene(undiagnosed(small_run())).tile(0, 0))
    names = [head["names"][name] for name in columns["name"]]
    note = head["notes"][columns["note"][names.index("gemm_3")]]
    assert note.split("\n")[0] == "launched 7 us earlier by aten::inner"


def curve_scene(values_at, count=24):
    return build_scene(
        undiagnosed(run_of((), gpu_rows=gpu_series(values_at, count=count), machine=Machine(gpus=(GPUS["H100"],))))
    )


def test_a_curve_of_few_readings_consists_of_the_readings():
    values = [0.1 * (n % 7) for n in range(24)]
    run_scene = with_longer_span(curve_scene(lambda n: {"util_frac": values[n]}))
    row = next(group["first"] for group in run_scene.header()["groups"] if group["id"] == "gpu0:util_frac")
    _, _, _, curves = read(run_scene.tile(0, 0))
    at, low, high = curves[row]
    assert at.tolist() == [25e6 * n for n in range(24)]
    assert low.tolist() == high.tolist() == np.float32(values).tolist()


def with_longer_span(run_scene):
    run = replace(run_scene.diagnosis.run, span_ns=600_000_000)
    return build_scene(replace(run_scene.diagnosis, run=run))


def test_a_downsampled_curve_keeps_its_lowest_and_highest_reading():
    rng = np.random.default_rng(1)
    values = rng.random(20_000)
    run_scene = curve_scene(lambda n: {"power_w": values[n]}, count=20_000)
    run_scene = build_scene(
        replace(run_scene.diagnosis, run=replace(run_scene.diagnosis.run, span_ns=20_000 * 25_000_000))
    )
    row = next(group["first"] for group in run_scene.header()["groups"] if group["id"] == "gpu0:power_w")
    at, low, high = read(run_scene.tile(0, 0))[3][row]
    assert len(at) <= 256
    assert (np.diff(at) > 0).all()
    assert low.min() == np.float32(values.min())
    assert high.max() == np.float32(values.max())
    assert (low <= high).all()


def test_missing_readings_are_a_gap_and_not_zero():
    gap_scene = curve_scene(lambda n: {"util_frac": np.nan if 8 <= n < 12 else 0.5})
    run_scene = with_longer_span(gap_scene)
    row = next(group["first"] for group in run_scene.header()["groups"] if group["id"] == "gpu0:util_frac")
    at, low, _ = read(run_scene.tile(0, 0))[3][row]
    inside = (at >= 8 * 25e6) & (at < 12 * 25e6)
    assert np.isnan(low[inside]).all()
    assert (low[~inside] == 0.5).all()


def test_no_line_is_drawn_across_a_pause_of_the_sampler():
    rows = gpu_series(lambda n: {"util_frac": 0.5}).select(np.r_[0:8, 20:24])
    run_scene = build_scene(undiagnosed(run_of((), gpu_rows=rows, machine=Machine(gpus=(GPUS["H100"],)))))
    run_scene = with_longer_span(run_scene)
    row = next(group["first"] for group in run_scene.header()["groups"] if group["id"] == "gpu0:util_frac")
    at, low, _ = read(run_scene.tile(0, 0))[3][row]
    between = (at > 7 * 25e6) & (at < 20 * 25e6)
    assert between.any()
    assert np.isnan(low[between]).all()


def test_boxes_curves_and_notes_of_a_diagnosed_run_fit_together():
    run = small_run(gpu_rows=gpu_series(lambda n: {"util_frac": 0.5, "power_w": 300.0}))
    head, columns, _, curves = read(build_scene(diagnose(run)).tile(0, 0))
    assert len(columns["start"])
    assert len(curves) == 2
    assert head["notes"][0] == head["names"][0] == ""
    assert columns["name"].max() < len(head["names"])
    assert columns["note"].max() < len(head["notes"])
