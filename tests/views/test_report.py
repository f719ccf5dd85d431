"""The report says the same in every form, to everyone, whatever the trace says; what is absent is absent in words."""

import dataclasses
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from gpulab.errors import GpulabError
from gpulab.rows import TextColumn
from gpulab.rules import diagnose
from gpulab.run import Gap, Gpu, Machine, Recording, Source
from gpulab.tables import DEVICE_KINDS, EVENTS, GPU_SAMPLES, EventKind
from gpulab.views.report.report import report
from gpulab.views.report.sensor_table import sampling_summary
from gpulab.views.sheet.palette import _BY_KEY
from gpulab.views.sheet.sheet import Answer, Section, Timeline
from tests.support.front_end.read_views import DECORATION, SURVIVING_CSS, SURVIVING_TAGS, Page, contrast, numbers
from tests.support.runs import example_report
from tests.support.runs.made_loading_runs import MAIN_PROCESS_LOADER, from_main
from tests.support.runs.made_runs import (
    MS,
    NO_WORKERS,
    event,
    gpu_series,
    host_sample,
    loader_call,
    mark,
    run_of,
    stepped,
)

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J\u202e`|**[x](javascript:y)"


def starved(at):
    op = event(EventKind.OP, "aten::mm", at + 41, 2)
    return [
        loader_call(at, 40),
        op,
        event(EventKind.LAUNCH, "cudaLaunchKernel", at + 41.5, 0.4),
        event(EventKind.KERNEL, "ampere_sgemm", at + 42, 38),
        event(EventKind.KERNEL, "vectorized_elementwise", at + 80, 15),
        event(EventKind.MEMCPY, "Memcpy HtoD (Pinned -> Device)", at + 60, 3, stream=9),
    ]


def on_cpu(at):
    return [
        loader_call(at, 40),
        event(EventKind.OP, "aten::mm", at + 42, 50),
        event(EventKind.OP, "aten::add", at + 94, 0.004),
    ]


def a_run(make_step=starved, **more):
    samples = [host_sample(at, cpu_frac=0.5, rss_bytes=2**30) for at in range(0, 600, 100)]
    return run_of(stepped(make_step), loaders=[NO_WORKERS], samples=samples, **more)


@pytest.fixture(params=["gpu", "cpu", "sensors only", "nothing"])
def any_report(request):
    if request.param == "gpu":
        return report(diagnose(a_run()))
    if request.param == "cpu":
        return report(diagnose(a_run(on_cpu)))
    if request.param == "sensors only":
        marks = [mark(at, 40) for at in range(0, 1000, 100)]
        return report(run_of(marks=marks, windows=[], samples=[host_sample(0, cpu_frac=0.25)]))
    return report(run_of(outcome="KeyboardInterrupt"))


# One content, several forms.


def test_text_and_html_hold_the_same_numbers(any_report):
    page = Page(any_report._repr_html_())
    # Only pictures have numbers of their own: those along the axis, and those of the streams beside the lanes.
    assert numbers(page.text) - numbers(repr(any_report)) <= picture_numbers(any_report)
    assert numbers(repr(any_report)) <= numbers(page.text)


def pictures_of(view):
    sections = [block.blocks for block in view.sheet.blocks if isinstance(block, Section)]
    blocks = [*view.sheet.blocks, *(block for some in sections for block in some)]
    answers = [block.picture for block in blocks if isinstance(block, Answer) and block.picture]
    return [*answers, *(block for block in blocks if isinstance(block, Timeline))]


def picture_numbers(view):
    pictures = pictures_of(view)
    return {n for each in pictures for n in numbers(" ".join([*each.lane_names, *(tick.text for tick in each.ticks)]))}


def test_markdown_holds_the_same_numbers(any_report, tmp_path):
    text = any_report.save(tmp_path / "report.md").read_text(encoding="utf-8")
    assert numbers(repr(any_report)) <= numbers(text)


def test_the_headline_has_claim_fix_gain_and_confidence():
    lines = repr(report(a_run())).splitlines()
    assert re.fullmatch(r"Data loading leaves the GPU idle for 40 ?% of each step: num_workers=0 .*", lines[0])
    assert any(re.search(r"num_workers=\d.* DataLoader\(", line) for line in lines)
    text = " ".join(" ".join(lines).split())
    speedup = r"\([\d.]+(-[\d.]+)?x\)"
    confidence = "Confidence in the cause: high"
    bound = r"Upper bound: [\d.]+x \(assumes [^)]*\)"
    assert re.search(rf"Predicted step time: [\d.]+ -> [\d.]+(-[\d.]+)? ms {speedup} {bound} {confidence}", text)
    assert "Next bottleneck: " in text


def test_text_lines_have_100_columns_at_most_but_for_code(any_report):
    code = ("Fix:", "    ")
    assert [line for line in repr(any_report).splitlines() if len(line) > 100 and not line.startswith(code)] == []


def test_the_table_of_the_ledger_sums_and_shows_every_part_that_took_time():
    diagnosis = diagnose(a_run())
    text = repr(report(diagnosis))
    rows = dict(re.findall(r"^ +([A-Za-z][\w ().<>=]*?)  +([\d.]+|<[\d.]+) +[<\d.]+ %", text, re.MULTILINE))
    ledger = diagnosis.ledger
    shown = {part.label for part in ledger.parts if ledger.part_ns[part.key].any()}
    assert shown <= set(rows)
    parts = sum(float(rows[part.label]) for part in ledger.parts if part.label in rows)
    assert parts == pytest.approx(float(rows["step"]), abs=0.05 * len(shown))
    assert float(rows["GPU busy"]) + float(rows["GPU idle"]) == pytest.approx(float(rows["step"]), abs=0.1)


def test_the_report_of_a_cpu_run_does_not_mention_a_gpu():
    text = repr(report(a_run(on_cpu)))
    before_details = text.split("Checks that could not run")[0]
    assert "GPU" not in before_details.replace("Made GPU", "")
    assert "long operators (>= 10 us)" in before_details


# What is absent.


def test_sensors_that_did_not_answer_are_not_zeros():
    silent = {column.name: [np.nan] * 3 for column in GPU_SAMPLES.columns}
    silent |= {"at_ns": [0, 1, 2], "late_ns": [0, 0, 0], "device": [0, 0, 0], "power_w": [100.0, np.nan, 300.0]}
    machine = Machine(gpus=(Gpu(index=0, name="Made GPU"),))
    run = dataclasses.replace(a_run(), gpu_rows=GPU_SAMPLES.rows(silent), machine=machine)
    text = repr(report(run))
    assert re.search(r"GPU utilisation +not measured$", text, re.MULTILINE)
    assert re.search(r"GPU power +200 W +100 W +300 W", text)
    assert not re.search(r"GPU temperature +0", text)


@pytest.mark.parametrize(("late_ms", "note"), [(2, ""), (30, "; taken at most 30 ms late")])
def test_only_samples_that_are_noticeably_late_are_called_late(late_ms, note):
    samples = [host_sample(ms, cpu_frac=0.25, late_ns=late_ms * 1_000_000) for ms in (0, 100, 200)]
    assert sampling_summary(run_of(samples=samples)) == f"3 samples, every 100 ms{note}"


@pytest.mark.parametrize(("traced_ms", "text"), [(12, "1.20x the time without the profiler"), (4, "another reason")])
def test_traced_steps_that_are_much_shorter_than_others_are_not_the_profilers_doing(traced_ms, text):
    marks = [mark(at, 1) for at in range(0, 60, 10)] + [mark(60 + traced_ms * number, 1) for number in range(8)]
    assert text in " ".join(repr(report(run_of(marks=marks, windows=[(59, 200)]))).split())


def test_unknown_profiler_overhead_reads_not_measured():
    text = repr(report(a_run()))
    assert "profiler: overhead not measured" in text
    assert "too few steps ran without it" in text


def test_an_interrupted_run_says_when_and_shows_what_there_is():
    run = a_run(outcome="KeyboardInterrupt")
    text = repr(report(run))
    assert text.startswith("Interrupted after 6 steps, at 600 ms")
    assert "Where the step time goes" in text


def test_a_run_ended_by_an_exception_before_any_step_says_so():
    text = repr(report(run_of(outcome="OutOfMemoryError", samples=[host_sample(0, rss_bytes=3 * 2**30)])))
    assert "Ended by OutOfMemoryError before the first complete step" in text
    assert "3 GiB" in text
    assert "Where the step time goes" not in text


def test_a_program_that_fails_at_once_is_not_judged():
    """A tensor or two before a failed import are no training."""
    work = [event(EventKind.OP, "aten::ones", 1, 2)]
    failed = repr(report(run_of(work, outcome="ModuleNotFoundError")))
    assert "No diagnosis: the program ended before the first step" in failed
    assert "aten::ones" not in failed
    assert "aten::ones" in repr(report(run_of(work)))
    long = [event(EventKind.OP, "aten::mm", at, 50) for at in range(0, 400, 50)]
    assert "aten::mm" in repr(report(run_of(long, outcome="KeyboardInterrupt")))


def test_a_program_that_fails_after_steps_is_not_told_that_it_had_none():
    work, marks = [event(EventKind.OP, "aten::mm", 801, 9)], [mark(100 * step, 1) for step in range(9)]
    text = repr(report(run_of(work, marks=marks, windows=[(800, 810)], outcome="KeyboardInterrupt")))
    assert text.startswith("Interrupted after 8 steps")
    assert "before the first step" not in text


def test_the_steps_that_are_traced_and_analysed_add_up():
    run = run_of(stepped(example_report.starved, count=8), windows=[(0, 100), (200, 800)])
    text = " ".join(repr(report(run)).split())
    assert re.search(r"8 steps, [^;]*; 7 traced, 4 of them complete", text)


def test_every_number_has_its_source_beside_it(any_report):
    for form in (repr(any_report), Page(any_report._repr_html_()).text):
        parts = 2 if "How this was measured" in form else 1  # a run without PyTorch has the headline block only
        assert form.count("recorded on Made GPU, 2026-01-01") >= parts


def test_a_virtual_gpu_is_said_to_be_one():
    run = dataclasses.replace(a_run(), source=Source(how="virtual", device="H100"))
    text = " ".join(repr(report(run)).split())
    assert text.startswith("Virtual H100, estimated.")
    assert "Grade of the estimate: D" in text
    assert 'Run "made": virtual H100, estimated.' in text


def test_what_was_not_recorded_or_was_lost_is_told():
    recording = Recording(
        windows_ns=((0, 600_000_000),),
        left_out=(Gap(what="GPU kernels", why="CUPTI is busy", fix="stop the other profiler"),),
        lost={"cut off": 1234},
    )
    text = repr(report(dataclasses.replace(a_run(), recording=recording)))
    assert "Not recorded: GPU kernels: CUPTI is busy. Stop the other profiler." in text
    assert "Lost from the trace: 1,234 events (cut off)." in text


# Safe and lasting.


def hostile_report():
    long = "k" * 10_000 + HOSTILE
    events = stepped(lambda at: [loader_call(at, 40), event(EventKind.KERNEL, long, at + 40, 60)])
    run = run_of(events, loaders=[dataclasses.replace(NO_WORKERS, dataset=HOSTILE)], name=HOSTILE)
    machine = Machine(torch=HOSTILE, cores_allowed=8.0, gaps=())
    source = Source(how="recorded", device=long, date=HOSTILE)
    recording = dataclasses.replace(run.recording, lost={HOSTILE: 1}, options=(HOSTILE,))
    run = dataclasses.replace(run, machine=machine, source=source, recording=recording)
    diagnosis = diagnose(run)
    finding = dataclasses.replace(
        diagnosis.first, claim=HOSTILE, evidence=(HOSTILE, long), fix=f"x = 1\n{HOSTILE}", caveats=(HOSTILE,)
    )
    return report(dataclasses.replace(diagnosis, findings=(finding, finding), verdict=HOSTILE, next_limit=HOSTILE))


def test_foreign_text_is_only_ever_text():
    page = Page(hostile_report()._repr_html_())
    assert set(page.tags) <= SURVIVING_TAGS
    assert {name for _, name, _ in page.attributes} <= {
        "style", "title", "src", "alt", "role", "aria-label", "aria-level", "scope", "class",
    }  # fmt: skip
    assert set(page.all("class")) == {"mathjax_ignore"}
    assert all(src.startswith("data:image/svg+xml;base64,") for src in page.all("src"))
    assert "<script>alert(1)</script>" in page.text, "the reader still sees what it was called"
    assert not any(ord(character) < 32 or character == "\u202e" for character in page.text.replace("\n", ""))


def test_foreign_text_cannot_become_markdown_or_move_the_cursor(tmp_path):
    markdown = hostile_report().save(tmp_path / "report.md").read_text(encoding="utf-8")
    prose = [line for line in markdown.splitlines() if not line.startswith("    ")]
    assert not any("<" in line or re.search(r"(?<!\\)\[x\]", line) for line in prose)
    text = repr(hostile_report())
    assert not any(ord(character) < 32 for character in text.replace("\n", ""))
    assert "\u202e" not in text


def test_names_of_any_length_leave_a_report_of_a_bounded_size():
    assert len(hostile_report()._repr_html_()) < 150_000
    assert len(repr(hostile_report())) < 20_000


def test_the_html_holds_only_what_an_untrusted_notebook_keeps(any_report):
    html = any_report._repr_html_()
    page = Page(html)
    assert page.css - DECORATION <= SURVIVING_CSS
    assert set(page.tags) <= SURVIVING_TAGS
    # The class only keeps JupyterLab from typesetting prices as formulas.
    styled = html.replace(' class="mathjax_ignore"', "")
    assert not re.search(r"<style|<script|<svg|<iframe|class=|\sid=|var\(--|http", styled)


def test_text_takes_the_colour_of_the_page(any_report):
    # Only fills have a colour; a colour for text would be unreadable in one theme or the other.
    styles = Page(any_report._repr_html_()).all("style")
    assert not any(re.search(r"(^|;)\s*color:", style) for style in styles)


def test_every_picture_has_an_alt_text():
    page = Page(report(a_run())._repr_html_())
    first, large, *others = page.all("alt")
    assert all(alt.startswith("Lanes: evidence, host, GPU") for alt in (first, *others))
    assert re.match(r"Timeline of steps 2 to 4 as recorded: 300 ms .*matrix kernels \d+ %", large)
    assert re.search(r"step \d \(100 ms\), this cause leaves the GPU idle for 40 ms\.", page.text)
    assert "As text and table" in page.text


def test_parts_are_told_apart_by_more_than_colour_and_seen_on_light_and_dark():
    for key, colour in _BY_KEY.items():
        assert contrast(colour, "#ffffff") >= 3, key
        assert contrast(colour, "#111111") >= 3, key
    page = Page(report(a_run())._repr_html_())
    assert page.text.count("waiting for data") >= 5, (
        "under the bar, in its table, in the picture's key, words and table"
    )


def test_a_notebook_is_given_text_and_html_and_nothing_that_would_be_shown_instead(any_report):
    data = any_report._repr_mimebundle_()
    assert sorted(data) == ["text/html", "text/plain"]
    assert data["text/plain"] == repr(any_report)


# Saved.


def test_a_saved_page_is_whole_and_needs_nothing_from_elsewhere(any_report, tmp_path):
    page = any_report.save(tmp_path / "report.html", timeline=False).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert any_report._repr_html_() in page
    assert "default-src 'none'" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_with_the_timeline_a_saved_page_holds_the_same_report_and_is_fit_for_a_mail(tmp_path):
    told = report(a_run())
    page = told.save(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert told._repr_html_() in page
    assert "gpulab-tl" in page
    assert len(page.encode()) < 2_000_000
    assert "default-src 'none'" in page
    assert "script-src 'sha256-" in page


@pytest.mark.parametrize("ending", [".html", ".htm", ".HTML"])
def test_without_events_or_where_it_is_not_wanted_there_is_no_timeline(tmp_path, ending):
    for number, (told, wanted) in enumerate([(report(run_of()), True), (report(a_run()), False)]):
        page = told.save(tmp_path / f"{number}{ending}", timeline=wanted).read_text(encoding="utf-8")
        assert page == told.html_page()
        assert "<script" not in page


def test_a_report_is_saved_as_a_picture(any_report, tmp_path):
    path = any_report.save(tmp_path / "report.png")
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert 600 <= width <= 1600
    assert 60 <= height <= 3000


def a_million_events(steps=50):
    """Fifty steps of 20,000 events: an operator, a launch and a kernel in turn, with waiting, syncs and copies."""
    per_step, step_ns = 20_000, 200 * MS
    number = np.tile(np.arange(per_step), steps)
    base = np.repeat(np.arange(steps) * step_ns, per_step)
    kind = np.array([EventKind.OP, EventKind.LAUNCH, EventKind.KERNEL, EventKind.KERNEL], np.int8)[number % 4]
    kind[number == 0], kind[number == 1] = EventKind.STEP, EventKind.LOADER
    kind[number % 2000 == 3] = EventKind.MEMCPY
    kind[number % 2000 == 5] = EventKind.SYNC
    random = np.random.default_rng(0)
    dur = random.integers(1_000, 9_000, len(number))
    dur[number == 0], dur[number == 1] = step_ns, 60 * MS
    on_device = np.isin(kind, DEVICE_KINDS)
    words = ("ProfilerStep#1", "aten::add", "cudaLaunchKernel", "vectorized_elementwise", "ampere_sgemm_128x64",
             "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "Memcpy HtoD (Pageable -> Device)",
             "cudaStreamSynchronize")  # fmt: skip
    named = {
        EventKind.STEP: 0,
        EventKind.OP: 1,
        EventKind.LAUNCH: 2,
        EventKind.LOADER: 5,
        EventKind.MEMCPY: 6,
        EventKind.SYNC: 7,
    }
    codes = np.where(number % 8 < 4, 3, 4).astype(np.int32)
    for each, code in named.items():
        codes[kind == each] = code
    late = base + 60 * MS + number * 6_900
    start = np.where(number == 0, base, np.where(number == 1, base + 1000, late))
    order = np.argsort(start, kind="stable")
    correlation = np.where(
        np.isin(kind, (EventKind.LAUNCH, EventKind.KERNEL)) & (number % 4 != 3), np.arange(len(kind)) // 4 + 1, -1
    )
    columns = {
        "kind": kind, "name": codes, "start_ns": start, "dur_ns": dur, "thread": np.where(on_device, -1, 0),
        "device": np.where(on_device, 0, -1), "stream": np.where(on_device, 7, -1), "correlation": correlation,
        "bytes": np.where(kind == EventKind.MEMCPY, 4096, -1),
    }  # fmt: skip
    columns = {name: values[order] for name, values in columns.items()}
    columns["name"] = TextColumn(columns["name"], words)
    base_run = run_of(loaders=[NO_WORKERS])
    recording = Recording(windows_ns=((0, steps * step_ns),))
    return dataclasses.replace(base_run, event_rows=EVENTS.rows(columns), span_ns=steps * step_ns, recording=recording)


@pytest.mark.full
def test_a_report_of_a_million_events_adds_at_most_300_kilobytes_to_a_notebook():
    run = a_million_events()
    assert len(run.event_rows) == 1_000_000
    diagnosis = diagnose(run)
    several = [dataclasses.replace(diagnosis.first, rule=f"rule_{n}") for n in range(10)]
    findings = (*diagnosis.findings, *several)
    told = report(dataclasses.replace(diagnosis, findings=findings))
    assert len(pictures_of(told)) >= 10, "a picture for each of a dozen findings"
    assert len(json.dumps(told._repr_mimebundle_())) <= 300_000


def test_a_file_is_replaced_whole_or_left_as_it_was(any_report, tmp_path):
    path = tmp_path / "report.txt"
    path.write_text("the old one")
    any_report.save(path)
    assert path.read_text(encoding="utf-8").strip() == repr(any_report).strip()
    assert [each.name for each in tmp_path.iterdir()] == ["report.txt"]


def test_a_place_that_cannot_be_written_leaves_nothing_and_says_what_to_do(any_report, tmp_path):
    with pytest.raises(GpulabError, match=r"fix: use one of \.html"):
        any_report.save(tmp_path / "report.pdf")
    with pytest.raises(GpulabError, match="cannot be written"):
        any_report.save(tmp_path / "nowhere" / "report.html", timeline=False)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "report.html").mkdir()
    with pytest.raises(GpulabError, match="cannot be written"):
        any_report.save(tmp_path / "report.html", timeline=False)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            lambda number: {"throttle_bits": 0.0, "power_held_s": 5.0, "thermal_held_s": 7.0},
            "clocks were not throttled.",
        ),
        (
            lambda number: {"throttle_bits": 0.0, "power_held_s": 5.0 + number / 10},
            "throttled by: the power limit for 2.3 s.",
        ),
        (lambda number: {"throttle_bits": 4.0 * (number % 2)}, "throttled by: power cap in 50 % of samples."),
        (lambda number: {"thermal_held_s": 1.0 + number / 100}, "throttled by: heat for 230 ms."),
    ],
)
def test_throttling_is_reported_from_samples_and_counters(told, said):
    run = dataclasses.replace(a_run(), gpu_rows=gpu_series(told), machine=Machine(gpus=(Gpu(index=0, name="H100"),)))
    assert said in " ".join(str(report(run)).split())


def test_unknown_throttling_is_not_reported_as_none():
    run = dataclasses.replace(a_run(), gpu_rows=gpu_series(lambda number: {"util_frac": 0.5}))
    assert "throttled" not in str(report(run)).split("Checks that could not run")[0]


def computing_samples(**loader):
    """Two cores and samples that take CPU time: the first remedy is advice."""
    settings = {"batches": 80, "batch_bytes": 10_000, "dataset": "Photos", "name": "train_loader"} | loader
    return from_main(fetch_ms=80, cores=2.0, on_gpu=False, loader=replace(MAIN_PROCESS_LOADER, **settings))


def alternatives_in(view):
    return [block for block in view.sheet.blocks if isinstance(block, Section) and "as code" in block.title]


def test_where_the_first_remedy_is_advice_another_one_is_given_as_code():
    diagnosis = diagnose(computing_samples())
    assert diagnosis.first.fix == ""
    (section,) = alternatives_in(report(diagnosis))
    (answer,) = section.blocks
    cached = next(each for each in diagnosis.first.alternatives if each.alternative == "cached")
    assert answer.fix == cached.fix != ""
    assert answer.expectation.worst_frac == cached.gain.worst_ns / cached.gain.step_ns
    assert answer.notes


@pytest.mark.parametrize("loader", [{"batches": 10**7}, {"dataset_library": "torch"}])
def test_samples_that_cannot_be_kept_in_memory_are_not_offered_as_code(loader):
    assert not alternatives_in(report(computing_samples(**loader)))


def test_beside_a_fix_with_code_there_is_no_other_remedy():
    diagnosis = diagnose(from_main(on_gpu=False))
    assert diagnosis.first.fix
    assert not alternatives_in(report(diagnosis))
