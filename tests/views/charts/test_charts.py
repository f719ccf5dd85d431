"""Every chart of the catalogue: what it says is in its numbers, and its picture can be read, whatever the run."""

from __future__ import annotations

import dataclasses
import html
import io
import itertools
import re
import struct

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text

import gpulab
from gpulab.analysis.kernels.kernel_table import kernel_table
from gpulab.analysis.kernels.roofline import flops_utilisation, operator_work_of_run
from gpulab.analysis.memory.lifetimes import BEFORE_STEP, FOR_BACKWARD, FOR_OPTIMIZER, TEMPORARY, memory_at_peak
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger as ledger_of
from gpulab.rules import diagnose
from gpulab.run import Failure, Gpu, Machine, Model, Source
from gpulab.tables import HOLDERS, MEMORY, STALLS, EventKind
from gpulab.views import charts
from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT
from gpulab.views.charts.drawing.text_layout import break_lines, text_width_in
from gpulab.views.charts.report_png import report_chart, report_png
from gpulab.views.sheet.sheet import TableBlock
from gpulab.wording import percent, scale, size
from tests.support.runs.large_run import large_run
from tests.support.runs.made_runs import (
    GPUS,
    MS,
    NO_WORKERS,
    event,
    gpu_series,
    host_samples,
    launched_kernel,
    mark,
    on_gpu,
    rows,
    run_of,
    stall,
    stepped,
)
from tests.support.tiers import first_tier, tiered_product

MIB = 1024**2
HOSTILE = "<script>alert(1)</script>\"'&$x^2$\u202e\u200b 名前 " + "k" * 10_000
NONE = TableBlock(header=("", ""), rows=())


# The runs every chart is given.


def training(name="made", source=None, kernel="ampere_sgemm_128x64_tn"):
    """Six steps of waiting, a matrix product with its sizes, an elementwise kernel, a copy; marks, sensors, memory."""
    events, number = [], itertools.count(1)
    for step in range(6):
        at = step * 100.0
        events.append(event(EventKind.STEP, f"ProfilerStep#{step}", at, 100.0))
        events.append(event(EventKind.LOADER, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 40.0))
        events.append(event(EventKind.COPY_CALL, "cudaMemcpyAsync", at + 41, 1, correlation=900 + step))
        events.append(
            event(EventKind.MEMCPY, "Memcpy HtoD (Pageable -> Device)", at + 41, 2, correlation=900 + step, size=2**24)
        )
        told = {"op": "aten::mm", "shapes": [[4096, 4096], [4096, 4096]], "dtypes": ["float", "float"]}
        events += launched_kernel(kernel, at + 45, 20, number=next(number), grid=256, **told)
        events += launched_kernel("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
                           at + 66, 10, number=next(number), op="aten::add")  # fmt: skip
        backward = event(EventKind.OP, "autograd::engine::evaluate_function: MmBackward0", at + 76, 10, thread=1)
        events += [backward, event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 90, 8)]
        events.append(event(EventKind.OP, "aten::add_", at + 90.5, 7))
    card = dataclasses.replace(GPUS["V100"], memory_bytes=2**30, power_limit_w=300.0, sm_clock_max_mhz=1530.0)
    told = {"util_frac": 0.6, "sm_clock_mhz": 1400.0, "throttle_bits": 4.0, "memory_used_bytes": 2.0**29}
    samples = gpu_series(lambda n: {**told, "power_w": 200.0 + n})
    run = on_gpu(events, marks=[mark(step * 100.0, 40.0) for step in range(6)], gpu_rows=samples, name=name,
                 machine=Machine(gpus=(card,), cores_allowed=8.0), memory_rows=lives(), loaders=[NO_WORKERS],
                 samples=host_samples(600, rss_bytes=5e8, cpu_frac=0.5))  # fmt: skip
    return dataclasses.replace(run, source=source) if source else run


def lives(device=0):
    """In each step 64 MiB kept from forward to backward, 32 MiB of gradients, 8 MiB that pass; 100 MiB from before."""
    told, out, address = [], 100 * MIB, itertools.count(1)

    def change(at_ms, mib, place):
        nonlocal out
        out += mib * MIB
        told.append({"at_ns": round(at_ms * MS), "thread": 0, "device": device, "bytes": mib * MIB, "address": place,
                     "allocated_bytes": out, "reserved_bytes": 256 * MIB})  # fmt: skip

    for step in range(6):
        at, (kept, passing, left) = step * 100.0, (next(address) for _ in range(3))
        change(at + 45, 64, kept)
        change(at + 66, 8, passing)
        change(at + 66.002, -8, passing)
        change(at + 77, 32, left)
        change(at + 85, -64, kept)
        change(at + 95, -32, left)
    return rows(MEMORY, told)


def cpu_only(name="cpu"):
    """A loop on the CPU, with an odd step that a garbage collection explains and one that nothing does."""
    lengths = [50.0] * 20
    lengths[9], lengths[14] = 150.0, 180.0
    begins = np.concatenate([[0.0], np.cumsum(lengths)])
    events = [event(EventKind.OP, "aten::mm", at + 5, 40) for at in begins[:-1]]
    marks = [mark(at, 2.0) for at in begins]
    stalls = rows(STALLS, [stall(begins[9] + 45, 100.0)])
    made = run_of(events, marks=marks, samples=host_samples(1200, rss_bytes=5e8, cpu_frac=0.5), stall_rows=stalls,
                  loaders=[NO_WORKERS], windows=[(0, float(begins[5]))], name=name)  # fmt: skip
    return dataclasses.replace(made, source=Source(how="measured", device="Made CPU"))


def large():
    """A million events and as much of everything else as goes with them."""
    run = large_run(1_000_000)
    at = np.linspace(0, run.span_ns - 1, 100_000).astype(np.int64)
    sizes = np.where(np.arange(len(at)) % 2 == 0, MIB, -MIB)
    told = {"at_ns": at, "thread": at * 0, "device": at * 0, "bytes": sizes, "address": np.arange(len(at)) // 2}
    memory = MEMORY.rows({**told, "allocated_bytes": 2**30 + np.cumsum(sizes), "reserved_bytes": at * 0 + 2**31})
    return dataclasses.replace(run, memory_rows=memory)


MADE = {
    "empty": lambda: run_of(name="empty"),
    "cpu": cpu_only,
    "gpu": training,
    "virtual": lambda: training(source=Source(how="virtual", device="H100 SXM")),
    "hostile": lambda: training(name=HOSTILE, kernel=HOSTILE, source=Source(how="recorded", device=HOSTILE)),
    "large": large,
}
RECORDED = ("v100_resnet50_workers0", "a100_ddp_8ranks_rank", "h100_timesformer_inference", "cpu_only_gloo")
_KEPT = {}


def made(kind):
    if kind not in _KEPT:
        _KEPT[kind] = MADE[kind]()
    return _KEPT[kind]


by_chart = pytest.mark.parametrize("make", CHARTS, ids=lambda make: make.__name__)


# What can be asked of a picture.


def texts(drawn):
    """Every text of a picture that is seen, with the box it fills in pixels."""
    drawn.canvas.draw()
    renderer, hidden = drawn.canvas.get_renderer(), _hidden_ticks(drawn)
    return [
        (text, text.get_window_extent(renderer))
        for text in drawn.findobj(Text)
        if text.get_text().strip() and text.get_visible() and text.get_gid() != "mark" and id(text) not in hidden
    ]


def _hidden_ticks(drawn):
    """matplotlib keeps labels of ticks beyond the ends of an axis; it does not draw them."""
    hidden = set()
    for axes in drawn.axes:
        for axis in (axes.xaxis, axes.yaxis):
            drawn_ones = {id(label) for tick in axis._update_ticks() for label in (tick.label1, tick.label2)}
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            kept = {id(label) for tick in ticks for label in (tick.label1, tick.label2)}
            hidden |= kept - drawn_ones if axes.axison and axis.get_visible() else kept
    return hidden


def faults(drawn):
    """What is wrong with the texts of a picture: outside of it, over one another, too small, too pale."""
    found, bounds = [], drawn.bbox
    boxes = texts(drawn)
    for text, box in boxes:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > bounds.x1 + 1 or box.y1 > bounds.y1 + 1:
            found.append(f"outside: {text.get_text()[:60]!r} {box}")
        if text.get_fontsize() < SMALL_PT:
            found.append(f"{text.get_fontsize()} pt: {text.get_text()[:60]!r}")
        if contrast(mpl.colors.to_rgba(text.get_color()), ground_of(drawn, text, box)) < 4.5:
            found.append(f"pale: {text.get_text()[:60]!r} {text.get_color()}")
    for (one, here), (other, there) in itertools.combinations(boxes, 2):
        wide = min(here.x1, there.x1) - max(here.x0, there.x0)
        tall = min(here.y1, there.y1) - max(here.y0, there.y0)
        if wide > 2 and tall > 2.5:
            found.append(
                f"over one another: {one.get_text()[:40]!r}, {other.get_text()[:40]!r} by {wide:.0f}x{tall:.0f}"
            )
    return found


def ground_of(drawn, text, box):
    """What a text stands on: its own box, the bar that it lies in, or the paper."""
    if text.get_bbox_patch():
        return text.get_bbox_patch().get_facecolor()
    middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    bars = [patch for axes in drawn.axes for patch in axes.patches if isinstance(patch, mpl.patches.Rectangle)]
    under = [bar for bar in bars if bar.get_window_extent().contains(*middle) and bar.get_facecolor()[3] > 0.5]
    return under[-1].get_facecolor() if under else mpl.colors.to_rgba(BACKGROUND)


def contrast(one, other):
    """As WCAG 2.2 defines it."""
    light = sorted((_luminance(one), _luminance(other)))
    return (light[1] + 0.05) / (light[0] + 0.05)


def _luminance(rgba):
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgba[:3]]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def pixels(data):
    """Width and height of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


def numbers(text):
    """What looks like a number in a text."""
    return [word for word in "".join(c if c.isdigit() or c in ".," else " " for c in text).split() if word[0].isdigit()]


# Every chart.


@pytest.mark.full
@pytest.mark.parametrize(("make", "kind"), tiered_product(CHARTS, MADE, strength=1))
def test_every_chart_of_every_run_is_a_readable_picture_that_says_itself_in_words(make, kind):
    run = made(kind)
    drawn = make(run)
    assert isinstance(drawn, Chart)
    assert drawn.headline
    assert drawn.headline in drawn.alt
    assert drawn.source in drawn.alt
    assert drawn.source.split(";")[0] in str(run.source) + drawn.source
    assert faults(drawn) == []
    assert drawn.bbox.width == 864
    assert 150 <= drawn.bbox.height <= 1200
    assert len(drawn.table.rows) <= 42
    for row in drawn.table.rows:
        assert len(row.cells) == len(drawn.table.header)


@pytest.mark.parametrize(("make", "trace"), tiered_product(CHARTS, RECORDED, strength=1))
def test_every_chart_of_a_recorded_trace_is_a_readable_picture(make, trace, recorded):
    if trace not in _KEPT:
        _KEPT[trace] = gpulab.load(recorded(f"{trace}.json.gz"))
    drawn = make(_KEPT[trace])
    assert faults(drawn) == []
    assert str(_KEPT[trace].source) in drawn.alt


@by_chart
def test_a_chart_without_its_data_says_what_is_missing_and_never_draws_an_empty_frame(make):
    drawn = make(made("empty"))
    assert drawn.headline.endswith("not measured")
    assert all(not axes.axison for axes in drawn.axes)
    words = " ".join(text.get_text() for text, _ in texts(drawn))
    assert len(words) > len(drawn.headline) + len(drawn.source) + 30
    assert drawn.table.rows == ()
    assert "0" not in drawn.headline


@by_chart
def test_a_number_of_the_title_is_among_those_in_words_and_figures(make):
    for kind in ("gpu", "cpu"):
        drawn = make(made(kind))
        cells = " ".join(cell for row in drawn.table.rows for cell in (*row.cells, *drawn.table.header))
        told = drawn.alt.removeprefix(drawn.headline) + cells + drawn.table.caption
        named = numbers(drawn.headline)
        assert not named or any(number in told for number in named), (drawn.answer, told)


@pytest.mark.full
@by_chart
@pytest.mark.parametrize("kind", ["hostile"])
def test_names_from_a_trace_are_text_in_pictures_and_in_pages(make, kind):
    drawn = make(made(kind))
    page = drawn._repr_html_()
    assert "<script" not in page
    assert "\u202e" not in page
    assert "\u202e" not in drawn.alt
    assert page.count("<img ") == 1
    assert len(drawn.alt) < 4_000
    assert all(not text.get_parse_math() for text, _ in texts(drawn))


@pytest.mark.full
@by_chart
def test_a_virtual_gpu_is_named_across_its_picture_and_no_other_is(make):
    marks = {
        kind: [text for text in make(made(kind)).findobj(Text) if text.get_gid() == "mark"]
        for kind in ("virtual", "gpu")
    }
    assert [text.get_text() for text in marks["virtual"]] == ["virtual H100 SXM, estimated"]
    assert marks["gpu"] == []
    # Seen: the picture with the mark is another than the one without.
    drawn = make(made("virtual"))
    with_mark = drawn.png()
    next(text for text in drawn.findobj(Text) if text.get_gid() == "mark").set_visible(False)
    assert drawn.png() != with_mark


@by_chart
def test_a_chart_opens_no_figure_of_the_users_and_changes_no_setting(make):
    import matplotlib.pyplot as plt

    theirs = plt.figure()
    before, open_ones = dict(mpl.rcParams), plt.get_fignums()
    make(made("gpu")).png()
    assert plt.get_fignums() == open_ones == [theirs.number]
    assert plt.gcf() is theirs
    assert dict(mpl.rcParams) == before
    plt.close(theirs)


def test_a_chart_looks_the_same_whatever_style_the_user_has_chosen():
    plain = charts.step_times(made("cpu")).png()
    ugly = {"axes.facecolor": "black", "font.size": 30, "text.color": "white", "axes.grid": False, "lines.linewidth": 9,
            "savefig.dpi": 10, "savefig.bbox": "tight", "xtick.color": "red", "axes.spines.top": True}  # fmt: skip
    with mpl.rc_context(ugly):
        drawn = charts.step_times(made("cpu"))
        assert drawn.png() == plain
    assert drawn.png() == plain


def test_the_file_of_a_chart_says_in_words_what_it_shows(tmp_path):
    drawn = charts.ledger(made("gpu"))
    drawn.savefig(tmp_path / "ledger.png")
    drawn.savefig(tmp_path / "ledger.svg")
    with io.BytesIO() as file:
        drawn.savefig(file, format="pdf")
        assert file.getvalue().startswith(b"%PDF")
    assert drawn.headline.encode() in (tmp_path / "ledger.png").read_bytes()
    assert drawn.headline in (tmp_path / "ledger.svg").read_text(encoding="utf-8")


def test_charts_are_called_by_their_names_and_an_unknown_name_gets_a_hint():
    assert {each.__name__ for each in CHARTS} <= set(dir(charts))
    assert len({each.__name__ for each in CHARTS}) == len(CHARTS)
    for each in CHARTS:
        assert getattr(charts, each.__name__).__wrapped__ is each  # the public one takes names of runs, too
        assert len((each.__doc__ or "").split("\n\n")) >= 2, (
            f"{each.__name__} does not say from what, and what it cannot show"
        )
    with pytest.raises(AttributeError, match="did you mean step_times"):
        _ = charts.step_time


def test_a_figure_shows_itself_as_a_picture_with_its_words():
    drawn = charts.ledger(made("gpu"))
    bundle = drawn._repr_mimebundle_()
    assert bundle["text/plain"] == drawn.alt == str(drawn)
    assert f'alt="{html.escape(drawn.alt)}"' in bundle["text/html"]
    assert "matrix kernels" in bundle["text/html"]


# What is shared by all: titles, sources, lines.


def test_a_long_title_takes_lines_and_stays_inside():
    drawn = single_plot("word " * 30 + "w" * 40, lambda axes: axes.plot([1, 2]), source="x", alt="y", table=NONE)
    assert faults(drawn) == []


def test_the_checker_of_pictures_sees_what_is_wrong():
    def crowded(axes):
        for x, words, pale in ((0.5, "one over", "#000"), (0.5, "the other", "#000"), (0.2, "pale", "#ddd")):
            axes.text(x, 0.5, words, color=pale)
        axes.text(0.95, 0.9, "far too long to end inside of the picture", clip_on=False).set_in_layout(False)
        axes.text(0.1, 0.1, "tiny", fontsize=5)

    found = " ".join(faults(single_plot("title", crowded, source="x", alt="y", table=NONE)))
    assert all(word in found for word in ("over one another", "outside", "pale", "5.0 pt"))


@pytest.mark.parametrize("why", ["no sensor was read", "no sensor was read."])
def test_words_end_in_one_full_stop(why):
    drawn = missing_data_chart(made("cpu"), "Sensors", why, "read them.")
    assert (
        drawn.alt == "Sensors: not measured. No sensor was read. Read them. Source: measured here on Made CPU; run cpu."
    )


def test_lines_are_no_wider_than_asked_for_and_a_unit_stays_with_its_number():
    words = "GPU idle 44 % of each step, most of it waiting for data: 59.5 ms of 177.2 ms " * 3
    lines = break_lines(3.0, words + "x" * 200, 9.0, 1.0).split("\n")
    assert all(text_width_in(line, 9.0) <= 3.0 for line in lines)
    assert all(not line.strip().startswith(("%", "ms")) for line in lines)
    assert "".join(lines).replace("\N{NO-BREAK SPACE}", "").replace(" ", "") == (words + "x" * 200).replace(" ", "")


# The numbers of each chart are those of its analysis.


def cells(drawn):
    return {row.cells[0]: row.cells[1:] for row in drawn.table.rows}


def test_the_ledger_has_each_part_as_the_analysis_has_it_and_they_sum_to_the_step():
    run = made("gpu")
    accounts = ledger_of(run, find_steps(run))
    unit = scale(float(accounts.step_ns.mean()), figures=4)
    told = cells(charts.ledger(run))
    for part in accounts.parts:
        if accounts.sum_ns(part.key).any():
            assert told[part.label][:2] == (
                unit.number(float(accounts.sum_ns(part.key).mean())),
                percent(accounts.total_frac(part.key), 1),
            )
    assert told["total"][0] == unit.number(float(accounts.step_ns.mean()))
    assert (
        f"GPU idle {percent(accounts.idle_frac)} of each step, mostly waiting for data" in charts.ledger(run).headline
    )


def test_the_bars_of_the_ledger_follow_one_another_to_the_length_of_the_step():
    run = made("gpu")
    bars = [patch for patch in charts.ledger(run).axes[0].patches if patch.get_width() > 0]
    length = float(ledger_of(run, find_steps(run)).step_ns.mean())
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(length)
    assert sum(bar.get_width() for bar in bars) == pytest.approx(2 * length)  # the cascade, and the step as one bar


def test_the_ledger_of_several_runs_is_a_waterfall_whose_changes_sum_to_the_difference():
    slow = training(name="slow")
    short = stepped(lambda at: [event(EventKind.KERNEL, "gemm", at + 5, 50.0)], step_ms=60.0)
    fast = run_of(short, name="fast")
    drawn = charts.ledger(slow, fast)
    assert re.match(r"fast against slow: 1\.67x .*100\.0 ms to 60\.0 ms", drawn.headline)
    assert cells(drawn)["step"] == ("100.0", "60.0")
    assert cells(drawn)["waiting for data"] == ("40.0", "0.0")
    bars = drawn.axes[0].patches
    assert bars[0].get_width() == pytest.approx(100 * MS)
    assert bars[-1].get_width() == pytest.approx(60 * MS)
    assert faults(drawn) == []
    assert "slow" in drawn.source
    assert "fast" in drawn.source


def test_a_waterfall_of_many_runs_shows_first_and_last():
    runs = [training(name=f"run {number}") for number in range(12)]
    drawn = charts.ledger(*runs)
    assert "run 11 against run 0" in drawn.headline
    assert "4 runs before the last" in drawn.alt
    assert faults(drawn) == []


def test_a_waterfall_with_a_run_without_events_names_that_run():
    assert "(empty)" in charts.ledger(made("gpu"), made("empty")).headline


def test_step_times_counts_outliers_and_says_what_explains_them():
    run = made("cpu")
    drawn = charts.step_times(run)
    assert drawn.headline.startswith("2 of 20 steps take more than twice the median (50.0 ms)")
    told = cells(drawn)
    assert told["step 10"][:2] == ("garbage collection", "150.0")
    assert told["step 15"][:2] == ("unexplained", "180.0")
    assert told["median of 20"][1] == "50.0"


def test_step_times_without_outliers_says_so():
    drawn = charts.step_times(made("gpu"))
    assert re.match(r"None of 5 steps .*\(100 ms\)", drawn.headline)


def test_very_many_steps_are_drawn_as_a_band_and_their_outliers_one_by_one():
    dur = np.full(50_000, 10.0)
    dur[::1000] = 25.0
    begins = np.concatenate([[0.0], np.cumsum(dur)])
    marks = [mark(at, 0.1) for at in begins]
    drawn = charts.step_times(run_of(marks=marks, windows=[]))
    assert drawn.headline.startswith("50 of 50,000 steps take more than twice the median (10.0 ms)")
    assert sum(len(line.get_xdata()) for line in drawn.axes[0].lines) < 2_000
    assert "11 more" in drawn.table.caption
    assert faults(drawn) == []


def test_kernels_are_those_of_the_kernel_table_and_the_rest_is_told():
    run = made("gpu")
    table, told = kernel_table(run), cells(charts.kernels(run))
    total = int(table["total_ns"].sum())
    unit = scale(float(table["total_ns"][0]))
    assert told["ampere_sgemm_128x64_tn"][:4] == ("matrix", "6", unit.number(int(table["total_ns"][0])), "66.7 %")
    assert told["total"][2] == unit.number(total)
    many = on_gpu(
        [each for n in range(60) for each in launched_kernel(f"kernel_{n}", n * 10.0, 1 + n / 100, number=n + 1)]
    )
    drawn = charts.kernels(many)
    assert "the 12 longest of 60 kernels take" in drawn.headline
    assert "48 others" in [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert "22 others" in cells(drawn)


def test_the_roofline_says_what_the_analysis_says():
    run = made("gpu")
    found = find_steps(run)
    from gpulab.analysis.kernels.interior_kernels import interior_kernels

    kernels = interior_kernels(run, found, ledger_of(run, found))
    used = flops_utilisation(kernels, found.traced_ns, operator_work_of_run(run, found, ledger_of(run, found)))
    drawn = charts.roofline(run)
    assert f"reaches {percent(used.kernel_frac)} of the {used.spec.name}'s 15.7 TFLOP/s in float32" in drawn.headline
    assert percent(used.step_frac) in drawn.headline
    work = next(iter(cells(drawn).values()))
    rate = 2 * 4096**3 / 20e-3
    assert work[4] == f"{rate / 1e12:.3g}"
    assert work[5] == percent(rate / 15.7e12, 1)


def test_the_roofline_of_a_gpu_that_is_not_listed_says_so():
    run = made("gpu")
    other = dataclasses.replace(run, machine=Machine(gpus=(Gpu(index=0, name="Some GPU"),)))
    drawn = charts.roofline(other)
    assert drawn.headline == "Roofline: not measured"
    assert "Some GPU" in drawn.alt


def test_memory_by_phase_is_that_of_the_analysis():
    run = made("gpu")
    peaks = phase_peaks(run, find_steps(run), 0)
    told = cells(charts.memory_phases(run))
    assert {name: told[name][0] for name in peaks} == {name: size(count) for name, count in peaks.items()}
    assert told["GPU capacity"][0] == "1 GiB"
    assert told["reserved by PyTorch"][0] == "256 MiB"


def test_memory_by_category_follows_each_piece_from_its_asking_to_its_return():
    run = made("gpu")
    peak = memory_at_peak(run, find_steps(run), 0)
    assert peak.by_kind == {BEFORE_STEP: 100 * MIB, FOR_BACKWARD: 64 * MIB, FOR_OPTIMIZER: 32 * MIB}
    assert sum(peak.by_kind.values()) == peak.total_bytes == 196 * MIB
    drawn = charts.memory_kinds(run)
    assert drawn.headline.startswith("Peak memory 196 MiB, in backward of step")
    assert cells(drawn)["total"][0] == "196 MiB"


def test_memory_that_passes_within_a_phase_is_told_as_that():
    told = lives()
    big = np.where(np.abs(told["bytes"]) == 8 * MIB, 200 * MIB * np.sign(told["bytes"]), told["bytes"])
    memory = MEMORY.rows({**told.columns, "bytes": big, "allocated_bytes": 100 * MIB + np.cumsum(big)})
    run = dataclasses.replace(made("gpu"), memory_rows=memory)
    assert memory_at_peak(run, find_steps(run), 0).by_kind == {
        BEFORE_STEP: 100 * MIB,
        FOR_BACKWARD: 64 * MIB,
        TEMPORARY: 200 * MIB,
    }


def test_the_parameters_are_told_apart_only_where_they_must_be_part_of_what_was_there_before():
    run = made("gpu")
    for count, told in ((60 * MIB, True), (400 * MIB, False), (None, False)):
        model = Model(kind="Net", bytes=count, device="cuda")
        drawn = charts.memory_kinds(dataclasses.replace(run, models=(model,)))
        assert ("parameters and buffers" in cells(drawn)) is told
    assert (
        cells(charts.memory_kinds(dataclasses.replace(run, models=(Model(kind="N", bytes=60 * MIB, device="cuda"),))))[
            "optimizer state and other, from before"
        ][0]
        == "40 MiB"
    )


def test_where_memory_ran_out_its_holders_are_drawn():
    holders = (("model", "parameter", 3), (HOSTILE, "graph", 5))
    told = [
        {"who": who, "kind": kind, "device": 0, "bytes": gib * 2**30, "tensors": 4, "largest": None}
        for who, kind, gib in holders
    ]
    failure = Failure(message="CUDA out of memory", device=0, capacity_bytes=10 * 2**30, free_bytes=2**30)
    drawn = charts.memory_kinds(dataclasses.replace(made("empty"), failure=failure, holder_rows=rows(HOLDERS, told)))
    assert re.match(r"The 10 GiB of GPU 0 .*saved for backward\(\), 5 GiB \(50 %\)", drawn.headline)
    assert cells(drawn)["free"] == ("1 GiB", "10.0 %")
    assert faults(drawn) == []


def test_memory_over_time_keeps_its_highest_moment_however_many_readings_there_are():
    run = made("large")
    drawn = charts.memory_over_time(run)
    highest = int(run.memory_rows["allocated_bytes"].max())
    line = next(each for each in drawn.axes[0].lines if each.get_label() == "allocated")
    assert max(line.get_ydata()) == highest
    assert len(line.get_ydata()) <= 2_000
    assert size(highest) in drawn.headline


def test_sensors_name_what_held_the_clocks_and_mark_it():
    drawn = charts.sensors(made("gpu"))
    assert re.match(r"Clocks .*power limit in 100 % .*: 1,400", drawn.headline)
    assert cells(drawn)["clocks throttled by the power limit"][0] == "100 % of samples"
    assert cells(drawn)["power"][3] == "300 W"
    assert len(drawn.axes) == 4


def test_a_sensor_that_did_not_answer_has_no_plot_and_no_zero():
    run = made("gpu")
    deaf = dataclasses.replace(run, gpu_rows=gpu_series(lambda n: {"util_frac": 0.5}))
    drawn = charts.sensors(deaf)
    assert len(drawn.axes) == 1
    assert "power" not in cells(drawn)


def test_without_a_gpu_the_sensors_are_the_hosts():
    drawn = charts.sensors(made("cpu"))
    assert re.search(r"all cores 50 %.* 477 MiB", drawn.headline)


# The head of a report as a picture.


@pytest.mark.parametrize("kind", first_tier(["empty", "cpu", "gpu", "virtual", "hostile"], ["gpu"]))
def test_the_head_of_a_report_is_a_readable_picture(kind):
    diagnosis = diagnose(made(kind))
    drawn = report_chart(diagnosis)
    assert faults(drawn) == []
    wide, tall = pixels(report_png(diagnosis))
    assert wide == 864
    assert 60 <= tall <= 1200
    assert drawn.source in drawn.alt


def test_the_head_of_a_report_says_verdict_evidence_gain_ledger_and_source():
    diagnosis = diagnose(made("gpu"))
    words = (
        " ".join(text.get_text() for text, _ in texts(report_chart(diagnosis)))
        .replace("\n", " ")
        .replace("\N{NO-BREAK SPACE}", " ")
    )
    assert diagnosis.verdict.rstrip(".") in words
    assert diagnosis.first.evidence[0] in words
    assert re.search(r"Upper bound: [\d.]+x \(assumes", words)
    assert "bound (" in words
    assert "remaining (" in words
    assert "waiting for data 40.0 %" in words
    assert "leaves the GPU idle" in words
    assert "Steps" in words
    assert f"Source: {made('gpu').source}" in words


def test_the_head_of_a_report_of_a_recorded_run_is_readable(recorded):
    diagnosis = diagnose(gpulab.load(recorded("v100_resnet50_workers0.json.gz")))
    assert faults(report_chart(diagnosis)) == []
