"""Replays as pictures: the path with what decides, a step before and after a change; the same in words, and safe."""

import base64
import dataclasses
import re
import xml.etree.ElementTree as ElementTree

import pytest

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.critical_path import KIND_LABELS, critical_path
from gpulab.replay.graph.graph import WORKER_LIMIT
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict
from gpulab.tables import EVENTS, EventKind
from gpulab.views.sheet.palette import _BY_KEY, colour
from gpulab.views.sheet.sheet import Line, Section, Sheet, TableBlock, Timeline
from gpulab.views.sheet.step_picture import LEVELS, MAX_BYTES, WIDTH
from gpulab.views.sheet.view import View
from gpulab.views.whatif.critical_path import before_and_after, critical_path_section
from tests.support.front_end.picture import areas
from tests.support.front_end.read_views import Page
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, mark, run_of
from tests.support.runs.simulated_machine import Call, run_like

LOADING = [Call(loads_us=900.0), *[Call(host_us=10.0, kernel_us=60.0)] * 10, Call(waits=True)]


def ready(run):
    prediction = find_steps(run)
    return build_replay_model(run, prediction, build_ledger(run, prediction))


@pytest.fixture(scope="module")
def loading():
    return ready(run_like(LOADING, steps=12))


def on_a_cpu():
    events, marks, at = [], [], 0.0
    for _ in range(10):
        events += [loader_call(at, 30.0), event(EventKind.OP, "aten::mm", at + 30.0, 20.0)]
        marks.append(mark(at, 30.0))
        at += 50.0
    return ready(run_of(events, marks=marks, loaders=[NO_WORKERS]))


def told(where, *changes):
    return predict(where, parse_changes(" ".join(changes)), samples=2)


def picture(section):
    (prediction,) = [block for block in section.blocks if isinstance(block, Timeline)]
    return prediction


def page(block):
    return Page(View(Sheet("timeline", (block,)))._repr_html_())


# The path.


def test_the_critical_path_lane_is_full_and_each_colour_has_its_share(loading):
    timeline = picture(critical_path_section(loading.schedule))
    assert timeline.lane_names == ("critical path", "host", "GPU")
    path = critical_path(loading.schedule)
    inked = {key: areas(timeline.svg, key)[-1] for key in ("loader", "matmul")}
    # Drawn from the ground to their own top, the lowest is as it is; together they fill the lane.
    assert max(inked.values()) <= WIDTH * LEVELS
    assert path.by_kind["loader"] + path.by_kind["matmul"] > 0.95 * path.step_ns
    first = next(iter(path.by_kind))
    assert inked[first] / (WIDTH * LEVELS) == pytest.approx(path.by_kind[first] / path.step_ns, abs=0.02)


def test_a_line_above_a_lane_shows_where_the_path_is_in_it(loading):
    timeline = picture(critical_path_section(loading.schedule))
    strips = re.findall(r'transform="translate\(0 (\d+)\)" d="([^"]+)"', timeline.svg)
    assert [top for top, _ in strips] == ["30", "60"], "of the host's lane and of the GPU's"
    path = critical_path(loading.schedule)
    for (_, lanes_drawn), on_device in zip(strips, (False, True), strict=True):
        width = sum(int(end) - int(start) for start, end in re.findall(r"M(\d+) 0H(\d+)", lanes_drawn))
        share = path.spans(on_device=on_device).total_ns / path.step_ns
        assert width / WIDTH == pytest.approx(share, abs=0.02)


def test_the_text_has_the_numbers_of_the_picture(loading):
    section = critical_path_section(loading.schedule)
    path = critical_path(loading.schedule)
    timeline = picture(section)
    assert "waiting for data" in timeline.alt
    assert "matrix kernels" in timeline.alt
    (total,) = [row for row in timeline.table.rows if row.kind == "total"]
    parts = [float(row.cells[1]) for row in timeline.table.rows if row.kind == "plain"]
    assert float(total.cells[1]) == pytest.approx(path.step_ns / 1e6, abs=0.001)
    assert sum(parts) == pytest.approx(float(total.cells[1]), abs=0.003)
    assert any("a 10 % cut in" in block.text for block in section.blocks if isinstance(block, Line))


def test_what_would_shorten_it_stands_in_a_table(loading):
    (levers,) = [block for block in critical_path_section(loading.schedule).blocks if isinstance(block, TableBlock)]
    first = levers.rows[0]
    assert first.key == "loader"
    assert float(first.cells[3]) == pytest.approx(0.09, abs=0.01)
    assert float(first.cells[4]) == pytest.approx(0.9, abs=0.02)


def test_the_path_of_a_run_on_a_cpu_has_its_one_lane():
    timeline = picture(critical_path_section(on_a_cpu().schedule))
    assert timeline.lane_names == ("critical path", "CPU")
    assert {key for key, _ in timeline.legend} == {"compute", "loader"}


# Before and after.


def test_the_recorded_step_is_above_the_predicted_one_on_one_scale(loading):
    prediction = told(loading, "free_input")
    timeline = before_and_after(prediction)
    assert timeline.lane_names == ("now: host", "now: GPU", "predicted: host", "predicted: GPU")
    ends = [float(at) for at in re.findall(r"M([\d.]+) (?:0|60)h2V(?:60|120)h-2z", timeline.svg)]
    assert ends[0] == WIDTH - 2
    assert ends[1] / WIDTH == pytest.approx(prediction.likely_ns / prediction.step_ns, abs=0.03)


def test_the_two_steps_as_numbers_sum_and_differ_as_predicted(loading):
    prediction = told(loading, "free_input")
    table = before_and_after(prediction).table
    (total,) = [row for row in table.rows if row.kind == "total"]
    for column in (1, 2, 3):
        parts = sum(float(row.cells[column]) for row in table.rows if row.kind == "plain")
        assert parts == pytest.approx(float(total.cells[column]), abs=0.005)
    assert float(total.cells[1]) == pytest.approx(prediction.step_ns / 1e6, rel=0.02)
    assert float(total.cells[2]) == pytest.approx(prediction.likely_ns / 1e6, rel=0.02)
    loader = next(row for row in table.rows if row.key == "loader")
    assert float(loader.cells[1]) == pytest.approx(0.9, abs=0.02)
    assert loader.cells[2] == "0.000"


def test_a_change_that_changes_nothing_draws_the_same_step_twice(loading):
    timeline = before_and_after(told(loading))
    assert all(row.cells[1] == row.cells[2] and float(row.cells[3]) == 0 for row in timeline.table.rows)


def test_what_else_limits_is_drawn_as_waiting_for_it(loading):
    prediction = told(loading, "free_input")
    graph = dataclasses.replace(prediction.schedule.graph, limits_ns={WORKER_LIMIT: 1_200_000.0})
    schedule = dataclasses.replace(prediction.schedule, graph=graph)
    limited = dataclasses.replace(prediction, schedule=schedule, likely_ns=1_200_000)
    table = before_and_after(limited).table
    (total,) = [row for row in table.rows if row.kind == "total"]
    assert float(total.cells[2]) == pytest.approx(1.2, abs=0.02)
    loader = next(row for row in table.rows if row.key == "loader")
    assert float(loader.cells[2]) == pytest.approx(1.2 - prediction.likely_ns / 1e6, abs=0.02)


def test_a_step_that_takes_no_time_is_drawn_as_nothing(loading):
    timeline = before_and_after(told(loading, "instant_gpu", "instant_host", "free_input"))
    assert len(timeline.lane_names) == 4
    assert ElementTree.fromstring(timeline.svg) is not None


def test_a_cpu_run_has_one_lane_per_step():
    timeline = before_and_after(told(on_a_cpu(), "free_input"))
    assert timeline.lane_names == ("now: CPU", "predicted: CPU")


# Both, on any page.


def test_pictures_are_bounded_well_formed_and_hold_no_foreign_text(recorded):
    import gpulab

    where = ready(gpulab.load(recorded("v100_resnet50_workers4.json.gz")))
    for timeline in (picture(critical_path_section(where.schedule)), before_and_after(told(where, "free_input"))):
        assert len(timeline.svg) <= MAX_BYTES
        root = ElementTree.fromstring(timeline.svg)
        assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {"svg", "g", "path"}
        assert timeline.alt


def test_hostile_names_of_a_trace_stay_out_of_markup(loading):
    run = run_like(LOADING, steps=12)
    words = run.event_rows.text("name")
    nasty = tuple(f"<script>{word}</script>" if word == "aten::op" else word for word in words.vocabulary)
    columns = {**run.event_rows.columns, "name": dataclasses.replace(words, vocabulary=nasty)}
    where = ready(dataclasses.replace(run, name="<script>", event_rows=EVENTS.rows(columns)))
    for block in (critical_path_section(where.schedule), before_and_after(told(where, "free_input"))):
        html = View(Sheet("timeline", (block,)))._repr_html_()
        assert "<script" not in html
        for data in re.findall(r"base64,([A-Za-z0-9+/=]+)", html):
            assert b"script" not in base64.b64decode(data)


def test_every_picture_has_an_alt_text(loading):
    for block in (critical_path_section(loading.schedule), before_and_after(told(loading, "free_input"))):
        timeline = page(block)
        (alt,) = timeline.all("alt")
        assert len(alt.split()) > 10
        assert "As text and table" in timeline.text


def test_every_kind_on_a_path_has_a_colour_and_a_name():
    for kind, label in KIND_LABELS.items():
        assert kind in _BY_KEY
        assert colour(kind) != colour("nothing of the kind")
        assert label


def test_a_section_is_one_block_with_its_title(loading):
    section = critical_path_section(loading.schedule)
    assert isinstance(section, Section)
    assert section.title.startswith("The critical path of a typical step")
