"""The timeline picture: its inked area is the time, its size is bounded, idle stays visible."""

import re

import numpy as np
import pytest

from gpulab.intervals import Spans, no_spans, union
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from gpulab.views.report.report import report
from gpulab.views.sheet.lanes import Lane, Window, disjoint_layers, middle_window, timeline_lanes
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.step_picture import LEVELS, MAX_BYTES, WIDTH, lanes_svg, step_timeline
from tests.support.front_end.picture import areas
from tests.support.front_end.read_views import Page
from tests.support.runs.made_runs import MS, NO_WORKERS, event, loader_call, run_of, stepped

SHOWN = Window(0, 800_000, (0,))


def drawn(*parts):
    return lanes_svg([Lane("lane", tuple(parts))], SHOWN, [0], no_spans())


def every(period_ns, on_ns, until_ns=800_000):
    starts = np.arange(0, until_ns, period_ns)
    return union(starts, starts + on_ns)


def test_the_inked_area_is_the_time_however_short_the_pieces():
    total_row = WIDTH * LEVELS
    for period_ns, on_ns in ((100_000, 50_000), (100, 50), (400, 100), (3, 1)):
        (area,) = areas(drawn(("kernels", every(period_ns, on_ns))), "kernels")
        assert area / total_row == pytest.approx(on_ns / period_ns, abs=0.012), (period_ns, on_ns)


def test_a_lane_of_countless_short_kernels_still_shows_that_it_is_half_idle():
    (area,) = areas(drawn(("matmul", every(20, 10))), "matmul")
    assert area < 0.52 * WIDTH * LEVELS


def test_parts_that_share_a_moment_of_the_picture_are_stacked_not_hidden():
    kernels, copies = every(100, 50), Spans(every(100, 50).start_ns + 50, every(100, 50).end_ns + 25)
    drawing = drawn(("kernels", kernels), ("copies", copies))
    (low,), (high,) = areas(drawing, "kernels"), areas(drawing, "copies")
    assert low / (WIDTH * LEVELS) == pytest.approx(0.5, abs=0.02)
    assert high / (WIDTH * LEVELS) == pytest.approx(0.75, abs=0.02), "drawn behind: from the ground to its own top"
    assert drawing.index(colour("copies")) < drawing.index(colour("kernels"))


def test_an_instant_belongs_to_the_first_layer_that_covers_it():
    parts = dict(
        disjoint_layers([("loader", union([0], [10])), ("dispatch", union([5], [20])), ("launch", union([6], [9]))])
    )
    assert parts["loader"].total_ns == 10
    assert parts["dispatch"].total_ns == 10
    assert "launch" not in parts


def noise(count=40_000):
    random = np.random.default_rng(0)
    at = random.uniform(0, 600, count)
    stream = random.integers(1, 12, count)
    kinds = random.choice(
        [
            EventKind.KERNEL,
            EventKind.MEMCPY,
            EventKind.COLLECTIVE,
            EventKind.OP,
            EventKind.LAUNCH,
            EventKind.SYNC,
            EventKind.ALLOC,
        ],
        count,
    )
    names = random.choice(["sgemm", "elementwise", "copy"], count)
    rows = zip(kinds.tolist(), names.tolist(), at.tolist(), stream.tolist(), strict=True)
    return [event(EventKind(kind), name, start, 0.006, stream=lane) for kind, name, start, lane in rows]


def test_the_picture_of_a_busy_run_on_many_streams_is_bounded():
    steps = [event(EventKind.STEP, f"ProfilerStep#{n}", n * 100, 100) for n in range(6)]
    diagnosis = diagnose(run_of([*steps, *noise()]))
    drawn = step_timeline(diagnosis)
    assert len(drawn.svg) <= MAX_BYTES
    assert len(report(diagnosis)._repr_html_()) < 150_000
    assert len(drawn.lane_names) == 6, "the host, the four busiest streams, and the rest in one"
    assert drawn.lane_names[-1] == "7 other streams"


def test_lanes_that_change_in_every_pixel_make_a_coarser_picture_not_a_larger_one():
    random = np.random.default_rng(1)
    at = np.arange(0, 800_000, 100)
    keys = ("loader", "sync", "launch", "dispatch", "glue", "python")

    def parts():
        ends = np.sort(random.integers(0, 101, (len(at), len(keys))), axis=1)
        starts = np.hstack([np.zeros((len(at), 1), np.int64), ends[:, :-1]])
        return tuple((key, union(at + starts[:, n], at + ends[:, n])) for n, key in enumerate(keys))

    drawing = lanes_svg([Lane(f"lane {n}", parts()) for n in range(6)], SHOWN, [0], no_spans())
    assert len(drawing) <= MAX_BYTES
    assert "scale(2 " in drawing or "scale(4 " in drawing


def test_the_picture_shows_three_steps_from_the_middle():
    diagnosis = diagnose(run_of(stepped(lambda at: [event(EventKind.KERNEL, "sgemm", at, 60)], count=20)))
    page_text = middle_window(diagnosis.steps)
    assert page_text.steps == (8, 9, 10)
    assert (page_text.start_ns, page_text.end_ns) == (800 * MS, 1100 * MS)
    assert [mark.text for mark in step_timeline(diagnosis).steps] == [f"step {n}: 100.0 ms" for n in (9, 10, 11)]


def test_the_axis_has_a_few_round_numbers_and_its_unit():
    for step_ms in (0.013, 1, 7.3, 177, 2500):
        run = run_of(stepped(lambda at, d=step_ms: [event(EventKind.KERNEL, "sgemm", at, d * 0.6)], step_ms=step_ms))
        ticks = step_timeline(diagnose(run)).ticks
        assert 3 <= len(ticks) <= 8
        assert ticks[0].text.startswith("0 ")
        assert len({tick.text for tick in ticks}) == len(ticks)
        assert re.fullmatch(r"[0.]*[125]0*", ticks[1].text)


def test_the_shaded_stretches_are_those_of_the_first_finding():
    starved = stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "sgemm", at + 40, 60)])
    drawn = step_timeline(diagnose(run_of(starved, loaders=[NO_WORKERS])))
    (shade,) = re.findall(r'fill-opacity=".22"[^>]* d="([^"]+)"', drawn.svg)
    bars = [tuple(map(int, bar)) for bar in re.findall(r"M(\d+) 0H(\d+)", shade)]
    assert len(bars) == 3
    assert sum(end - start for start, end in bars) / WIDTH == pytest.approx(0.4, abs=0.01)
    assert drawn.shaded


def test_without_a_finding_nothing_is_shaded():
    idle_a_little = stepped(
        lambda at: [event(EventKind.KERNEL, "sgemm", at, 82), event(EventKind.SYNC, "wait", at, 100)]
    )
    diagnosis = diagnose(run_of(idle_a_little))
    assert diagnosis.first is None
    assert step_timeline(diagnosis).shaded == ""
    assert 'fill-opacity=".22"' not in step_timeline(diagnosis).svg


def test_the_picture_is_well_formed_and_holds_no_text_a_theme_could_hide():
    from xml.dom.minidom import parseString

    starved = stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "sgemm", at + 40, 60)])
    drawings = Page(report(run_of(starved, loaders=[NO_WORKERS]))._repr_html_()).pictures
    assert len(drawings) == 2, "what shows the finding, and a few steps"
    for drawing in drawings:
        root = parseString(drawing).documentElement
        assert {node.tagName for node in root.getElementsByTagName("*")} <= {"g", "path"}


def test_a_run_without_interior_steps_has_no_picture():
    assert step_timeline(diagnose(run_of())) is None


def test_on_a_cpu_what_is_not_computing_is_what_computing_leaves_free():
    run = run_of(stepped(lambda at: [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 50)]))
    diagnosis = diagnose(run)
    waiting, computing = timeline_lanes(run, diagnosis.ledger, middle_window(diagnosis.steps))
    idle_ns = sum(spans.total_ns for _, spans in waiting.parts)
    busy_ns = sum(spans.total_ns for _, spans in computing.parts)
    assert idle_ns + busy_ns == int(diagnosis.ledger.step_ns.sum())


def test_the_steps_in_words_sum_to_the_steps():
    starved = stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, "sgemm", at + 43, 50)])
    table = step_timeline(diagnose(run_of(starved, loaders=[NO_WORKERS]))).table
    *parts, total = table.rows
    for column in range(1, len(table.header)):
        page_text = [row.cells[column] for row in parts]
        assert sum(float(cell) for cell in page_text if "<" not in cell) == pytest.approx(
            float(total.cells[column]), abs=0.1 * len(page_text)
        )
