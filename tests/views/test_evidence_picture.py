"""The picture of a finding's evidence: a typical place, host and GPU, small; and the same in words and numbers."""

import base64
import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Spans, intersect, no_spans, union
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from gpulab.views.report.evidence_picture import evidence_timeline, typical_window
from gpulab.views.report.report import report
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.step_picture import WIDTH
from tests.support.front_end.read_views import Page
from tests.support.runs.made_runs import MS, NO_WORKERS, event, host_sample, loader_call, mark, run_of, stepped

MOST_BYTES = 6_000


def starved(at):
    return [
        loader_call(at, 40),
        event(EventKind.OP, "aten::mm", at + 40, 30),
        event(EventKind.LAUNCH, "cudaLaunchKernel", at + 41, 1),
        event(EventKind.KERNEL, "ampere_sgemm", at + 42, 38),
        event(EventKind.KERNEL, "vectorized_elementwise", at + 80, 15),
    ]


def found(make_step=starved, **more):
    diagnosis = diagnose(run_of(stepped(make_step), loaders=[NO_WORKERS], **more))
    assert diagnosis.first.rule == "no_workers"
    return diagnosis


def shown(diagnosis, *spans):
    """The picture where a finding happened in these spans, in ms."""
    starts, ends = zip(*spans, strict=True)
    when = union(np.array(starts) * MS, np.array(ends) * MS)
    finding = dataclasses.replace(diagnosis.first, spans=when)
    return evidence_timeline(finding, diagnosis)


def steps_of(count, step_ns):
    start = np.arange(count) * step_ns
    yes = np.ones(count, bool)
    interior = yes.copy()
    interior[[0, -1]] = False
    return Steps(start, start + step_ns, yes, interior, ~yes, "ProfilerStep")


def test_what_is_shaded_is_the_share_of_the_window_that_is_evidence():
    timeline = evidence_timeline(found().first, found())
    (shade,) = re.findall(r'fill-opacity=".22" transform="scale\((\d+) 1\)" d="([^"]+)"', timeline.svg)
    bars = [tuple(map(int, bar)) for bar in re.findall(r"M(\d+) 0H(\d+)", shade[1])]
    assert int(shade[0]) * sum(end - start for start, end in bars) / WIDTH == pytest.approx(0.4, abs=0.01)
    assert f'fill="{colour("evidence")}"' in timeline.svg


def test_the_words_say_how_long_where_and_what_host_and_gpu_did_meanwhile():
    timeline = evidence_timeline(found().first, found())
    assert timeline.lane_names == ("evidence", "host", "GPU")
    assert re.fullmatch(
        r"Example: in step [2-5] \(100 ms\), this cause leaves the GPU idle for 40 ms\.",
        timeline.alt,
    )


def test_what_host_and_gpu_did_is_counted_in_the_shaded_time_only():
    # From 30 to 60 ms of a step: the host waits 10 ms, dispatches 20 less 1 for a launch; the GPU idles 12.
    timeline = shown(found(), *((at + 30, at + 60) for at in range(0, 600, 100)))
    assert "concerns 30 ms (60 % matrix kernels, 40 % idle)" in timeline.alt
    # From 30 to 42 ms the GPU idles: 10 ms while the host waits, 2 while it dispatches.
    idle = shown(found(), *((at + 30, at + 42) for at in range(0, 600, 100)))
    assert "leaves the GPU idle for 12 ms (meanwhile on the CPU: 83 % waiting for data, 8 % " in idle.alt


def test_many_short_spans_are_shown_from_near_so_that_each_can_be_seen():
    spans = [(at + n, at + n + 0.05) for at in range(0, 600, 100) for n in range(0, 100, 1)]
    window = typical_window(
        union(*(np.rint(np.array(side) * MS) for side in zip(*spans, strict=True))), steps_of(6, 100 * MS), 600 * MS
    )
    assert window.end_ns - window.start_ns == pytest.approx(0.5 * MS, rel=0.01)
    assert window.steps[0] in (1, 2, 3, 4)


def test_the_place_is_the_usual_one_not_the_extreme_one():
    usual = [(at + 10, at + 20) for at in range(100, 500, 100)]
    window = typical_window(
        union(*zip(*((a * MS, b * MS) for a, b in [*usual, (250, 299), (330, 331)]), strict=True)),
        steps_of(6, 100 * MS),
        600 * MS,
    )
    assert any(window.start_ns <= at * MS and window.end_ns >= (at + 10) * MS for at in (110, 210, 310, 410))


def test_a_span_longer_than_any_step_is_shown_whole():
    window = typical_window(Spans(np.array([120 * MS]), np.array([380 * MS])), steps_of(6, 100 * MS), 600 * MS)
    assert window.start_ns <= 120 * MS
    assert window.end_ns >= 380 * MS


spans = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 4_000)), min_size=1, max_size=30)


@given(spans, st.integers(1, 8), st.integers(50, 2_000))
def test_wherever_a_finding_happened_some_of_it_is_in_the_picture(pairs, count, step_ns):
    when = union(*zip(*((start, start + length) for start, length in pairs), strict=True))
    window = typical_window(when, steps_of(count, step_ns), 15_000)
    assert 0 <= window.start_ns < window.end_ns
    assert intersect(when, Spans(np.array([window.start_ns]), np.array([window.end_ns]))).total_ns > 0


def test_a_finding_without_spans_has_no_picture_and_still_all_its_words():
    diagnosis = found()
    finding = dataclasses.replace(diagnosis.first, spans=no_spans())
    assert evidence_timeline(finding, diagnosis) is None
    told = report(dataclasses.replace(diagnosis, findings=(finding,)))
    assert "Evidence and method" not in told._repr_html_()
    assert f"%gpuwhy {finding.rule}" in told._repr_html_()


def test_without_events_there_is_no_picture():
    marks = [mark(at, 60) for at in range(0, 1000, 100)]
    diagnosis = diagnose(run_of(marks=marks, windows=[], samples=[host_sample(0, cpu_frac=0.25)], loaders=[NO_WORKERS]))
    assert all(evidence_timeline(finding, diagnosis) is None for finding in diagnosis.findings)


def noise(at, count=2000):
    random = np.random.default_rng(0)
    begins = np.sort(random.uniform(0, 100, count))
    kinds = random.choice(
        [
            EventKind.KERNEL,
            EventKind.MEMCPY,
            EventKind.OP,
            EventKind.LAUNCH,
            EventKind.SYNC,
            EventKind.ALLOC,
            EventKind.LOADER,
        ],
        count,
    )
    return [
        event(EventKind(kind), "sgemm", at + begin, 0.02)
        for kind, begin in zip(kinds.tolist(), begins.tolist(), strict=True)
    ]


def test_a_picture_has_a_few_kilobytes_however_much_goes_on_in_it():
    diagnosis = found()
    busy = diagnose(run_of(stepped(noise)))
    finding = dataclasses.replace(diagnosis.first, spans=union(*(np.array([[0, 600]]).T * MS)))
    timeline = evidence_timeline(finding, busy)
    assert len(base64.b64encode(timeline.svg.encode())) <= MOST_BYTES
    assert re.search(r"scale\((8|16|32) ", timeline.svg)


# In the report.


def ten(diagnosis):
    several = [dataclasses.replace(diagnosis.first, claim=f"Claim {n}.", rule=f"rule_{n}") for n in range(10)]
    return report(dataclasses.replace(diagnosis, findings=tuple(several)))


def test_ten_findings_are_read_in_ten_lines():
    html = ten(found())._repr_html_()
    lines = re.findall(r"<summary[^>]*><span[^>]*>(Claim \d\.)</span> <span[^>]*>([^<]+)</span></summary>", html)
    assert [claim for claim, _ in lines] == [f"Claim {n}." for n in range(1, 10)]
    assert {gain.split(" ")[1] for _, gain in lines} == {"→"}
    assert all(re.fullmatch(r"100 → [\d.]+(\u2013[\d.]+)? ms", gain) for _, gain in lines)


def test_every_finding_has_a_picture_of_its_own_in_every_form(tmp_path):
    told = ten(found())
    assert len(Page(told._repr_html_()).pictures) == 11, "ten findings, and a few steps"
    description = "leaves the GPU idle for 40 ms"
    assert " ".join(repr(told).split()).count(description) == 10
    assert told.save(tmp_path / "r.md").read_text(encoding="utf-8").count(description) == 10
    assert Page(told._repr_html_()).text.count(description) == 10
    assert len(told._repr_html_()) < 120_000
