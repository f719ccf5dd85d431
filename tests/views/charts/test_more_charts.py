"""Charts of batch sweep, idle time, queue, copies, workers, GPUs, predictions, ranks: true, legible, never empty."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import comparison, trace
from gpulab.analysis.copies.copy_table import copy_table
from gpulab.analysis.copies.host_to_device import copy_rate
from gpulab.analysis.data.workers import worker_activity
from gpulab.analysis.host.launch_delays import launch_delays
from gpulab.analysis.machine.link import best_link_bytes_per_s
from gpulab.analysis.ranks.stragglers import find_straggler
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.replay.history import MeasuredPrediction
from gpulab.run import Gpu, Loader, Machine, Run
from gpulab.tables import WORKER_SAMPLES, EventKind
from gpulab.views.charts.copies.copy_rates import MAX_MARKS, copy_rates
from gpulab.views.charts.data.batch_times import find_batch_times, mean_load, worker_samples
from gpulab.views.charts.data.loader_workers import loader_workers
from gpulab.views.charts.drawing.chart import single_plot as chart_of
from gpulab.views.charts.host.idle_flame import idle_flame
from gpulab.views.charts.host.idle_tree import idle_parts
from gpulab.views.charts.host.queue_depth import queue_depth
from gpulab.views.charts.host.queue_depth_values import queue_depths
from gpulab.views.charts.kernels.batch_sweep import batch_sweep
from gpulab.views.charts.machine.gpus import gpu_comparison
from gpulab.views.charts.ranks import rank_skew as skew
from gpulab.views.charts.ranks.rank_skew import rank_skew
from gpulab.views.charts.steps.predicted import predicted
from gpulab.views.sheet.sheet import TableBlock
from gpulab.views.virtual_gpu import compare_gpus
from tests.support.front_end.chart_checks import HOSTILE, check, crowded, drawn_texts
from tests.support.runs.cases import case_module
from tests.support.runs.made_loading_runs import from_main, from_workers
from tests.support.runs.made_runs import MS, event, launched_kernel, loader_call, mark, on_gpu, rows, run_of, stepped
from tests.support.tiers import examples, tiered_product
from tests.support.virtual.memory_programs import SPEEDS, on, training

MINE = (batch_sweep, idle_flame, queue_depth, copy_rates, loader_workers, gpu_comparison, predicted, rank_skew)
RECORDED = ("v100_resnet50_workers0", "a100_ddp_8ranks_rank", "h100_timesformer_inference", "mi300_resnet_checkpoint")
HTOD, DTOH = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)"


JOB = case_module("straggler")


def cpu_only():
    return run_of(
        stepped(lambda at: [loader_call(at, 40), event(EventKind.OP, "aten::mm", at + 41, 50)]),
        loaders=[Loader(workers=0, batch_size=32)],
        marks=[mark(100 * number, 40) for number in range(6)],
    )


def cells(chart):
    return [row.cells for row in chart.table.rows]


@cache
def read(path):
    return trace.read(path)


@pytest.fixture(scope="module")
def million() -> Run:
    return crowded()


# Every chart, of every run.


@pytest.mark.parametrize("chart", MINE, ids=lambda chart: chart.__name__)
def test_an_empty_run_gives_what_is_missing_and_what_to_do_and_no_empty_frame(chart):
    made = chart(run_of())
    check(made)
    assert "not measured" in made.headline
    assert drawn_texts(made)


@pytest.mark.parametrize("chart", MINE, ids=lambda chart: chart.__name__)
def test_a_run_of_a_cpu_gives_a_legible_chart(chart):
    check(chart(cpu_only()))


@pytest.mark.parametrize(("chart", "name"), tiered_product(MINE, RECORDED, strength=1))
def test_a_recorded_run_of_a_gpu_gives_a_legible_chart(chart, name, recorded):
    check(chart(read(recorded(f"{name}.json.gz"))))


@pytest.mark.full
@pytest.mark.parametrize("chart", MINE, ids=lambda chart: chart.__name__)
def test_a_run_of_a_million_events_gives_a_legible_chart_of_few_marks(chart, million):
    made = chart(million)
    check(made)
    marks = sum(len(each.get_offsets()) for axes in made.axes for each in axes.collections)
    assert marks + sum(len(axes.patches) for axes in made.axes) < 2500
    assert len(made.png()) < 200_000


@pytest.mark.full
def test_names_from_a_trace_are_text_in_every_form():
    def step(at):
        for place, name in enumerate(HOSTILE):
            number, start = int(at) * 10 + place, at + 12 * place
            yield event(EventKind.OP, name, start, 6)
            yield event(EventKind.LAUNCH, "cudaLaunchKernel", start + 3, 1, correlation=number)
            yield event(EventKind.MEMCPY, name, start + 7, 2, correlation=number, size=1 << 20)

    run = run_of(stepped(step), name=HOSTILE[0], loaders=[Loader(workers=0)])
    for chart in MINE:
        made = chart(run)
        check(made)
        page = made._repr_html_()
        assert "<script" not in page
        assert "\u202e" not in page
    for name in HOSTILE:
        check(rank_skew(replace(run, name=name)))


def test_hostile_names_of_runs_and_ranks_are_text_where_several_runs_are_shown():
    def called(*runs):
        return [replace(run, name=name) for run, name in zip(runs, HOSTILE * 2, strict=False)]

    job = called(*JOB.provoked_by_one_rank_that_has_more_to_compute())
    slow, fast = called(one_size(32, 100), one_size(64, 120))
    for made in (rank_skew(job), batch_sweep(slow, fast), predicted(slow, fast)):
        check(made)
        assert "<script" not in made._repr_html_()


# What the checks themselves find.


PLANTED = {
    "texts on one another": lambda axes: [axes.text(0.5, 0.5, "one"), axes.text(0.505, 0.5, "other")],
    "outside the figure": lambda axes: axes.text(1.2, 0.5, "gone", transform=axes.transAxes),
    "too small": lambda axes: axes.text(0.5, 0.5, "tiny", fontsize=7),
    "too little contrast": lambda axes: axes.text(0.5, 0.5, "faint", color="#888888", fontsize=20),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_the_check_of_pictures_finds_a_planted_fault(fault):
    def draw(axes):
        PLANTED[fault](axes)
        for text in axes.texts:
            text.set_in_layout(False)

    made = chart_of("One true sentence", draw, source="made", alt="words", table=TableBlock(header=("",), rows=()))
    with pytest.raises(AssertionError, match=fault):
        check(made)


# Idle time.


@given(st.data())
@examples(40)
def test_the_flame_takes_idle_time_apart_as_a_walk_through_every_instant_does(data):
    """Operators of one thread that nest, kernels anywhere: each idle instant belongs to the innermost operator."""
    instants, names = 120, "abcd"
    events = [event(EventKind.STEP, f"ProfilerStep#{step}", 30 * step, 30) for step in range(4)]
    spans = data.draw(st.lists(st.tuples(st.integers(0, 119), st.integers(1, 25), st.sampled_from(names)), max_size=12))
    ops = []
    for start, dur, name in spans:
        end = min(start + dur, instants)
        nests = all(end <= a or start >= b or (a <= start and end <= b) or (start <= a and b <= end) for a, b, _ in ops)
        if nests and (start, end) not in [(a, b) for a, b, _ in ops]:
            ops.append((start, end, name))
    kernels = data.draw(st.lists(st.tuples(st.integers(0, 119), st.integers(1, 20)), min_size=1, max_size=8))
    events += [event(EventKind.OP, name, start, end - start) for start, end, name in ops]
    events += [event(EventKind.KERNEL, "k", start, min(dur, instants - start)) for start, dur in kernels]
    run = run_of(sorted(events, key=lambda each: (each["start_ns"], -each["dur_ns"])))
    accounts = build_ledger(run, find_steps(run))
    expected: dict[str | None, int] = {}
    for at in range(30, 90):
        if any(start <= at < start + dur for start, dur in kernels):
            continue
        around = [(b - a, name) for a, b, name in ops if a <= at < b]
        name = min(around)[1] if around else None
        expected[name] = expected.get(name, 0) + MS
    figures: dict[str | None, int] = {}
    for each in idle_parts(run, accounts):
        assert sum(held.ns for held in each.operators) == each.ns == accounts.sum_ns(each.part.key).sum()
        for held in each.operators:
            if held.others:
                expected = {None: sum(expected.values())}  # small ones are told together: then only the sum is
            figures[held.name] = figures.get(held.name, 0) + held.ns
    assert sum(figures.values()) == sum(expected.values())
    if not any(held.others for each in idle_parts(run, accounts) for held in each.operators):
        assert figures == expected


def synchronising():
    def step(at):
        return [
            event(EventKind.OP, "aten::item", at, 60),
            event(EventKind.OP, "aten::_local_scalar_dense", at + 5, 50),
            event(EventKind.SYNC, "cudaStreamSynchronize", at + 10, 40),
            event(EventKind.PYTHON, "train.py(7): step", at, 95),
            event(EventKind.KERNEL, "gemm", at + 60, 40),
        ]

    return run_of(stepped(step))


def test_the_flame_names_part_operator_and_line_with_the_ledger_s_own_figures():
    made = idle_flame(synchronising())
    assert re.match(r"GPU idle 60 % of 4 .*synchronising calls: 40\.0 of 60\.0 ms", made.headline)
    figures = {name: (line, ms) for name, line, ms, _ in cells(made)}
    assert figures["synchronising calls"] == ("", "160.0")
    assert figures["idle"] == ("", "240.0")
    assert cells(made)[1][:3] == ("aten::_local_scalar_dense", "train.py(7): step, 100 % of it", "160.0")
    words = [each.words for each in drawn_texts(made)]
    assert {"idle", "part", "operator", "line"} <= set(words)
    assert "synchronising calls" in words


def test_a_gpu_that_never_idles_is_told_so_and_not_called_unmeasured():
    made = idle_flame(run_of(stepped(lambda at: [event(EventKind.KERNEL, "gemm", at, 100)])))
    check(made)
    assert made.headline.startswith("No idle time: GPU busy")


# The queue.


@given(st.lists(st.tuples(st.integers(0, 55), st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=14))
@examples(40)
def test_the_depth_of_the_queue_is_what_counting_at_every_instant_gives(pieces):
    """Work that is called for at `at`, begins `wait` later and takes `dur`: counted one instant after the other."""
    events = [event(EventKind.STEP, f"ProfilerStep#{step}", 20 * step, 20) for step in range(4)]
    for number, (at, wait, dur) in enumerate(pieces):
        events.append(event(EventKind.LAUNCH, "cudaLaunchKernel", at, 0.5, correlation=number))
        events.append(event(EventKind.KERNEL, "k", at + wait, dur, correlation=number))
    run = run_of(sorted(events, key=lambda each: each["start_ns"]))
    found = find_steps(run)
    seen = queue_depths(run, found, launch_delays(run), 0)
    held = np.array([sum(at <= now < at + wait + dur for at, wait, dur in pieces) for now in range(20, 60)])
    assert seen.empty.total_ns == MS * (held == 0).sum()
    start = np.arange(20, 60) * MS
    assert seen.deepest(start, start + MS).tolist() == held.tolist()
    assert seen.mean(start, start + MS) == pytest.approx(held)
    assert seen.median == np.sort(held)[(len(held) - 1) // 2]


def test_the_queue_s_chart_says_how_long_it_is_empty():
    def step(at):
        return launched_kernel("gemm", at + 30, 20, number=1 + int(at), called_ms=at + 10)

    made = queue_depth(on_gpu(stepped(step)))
    check(made)
    assert re.search(r"queue is empty 60 % of 4 .*: 60 of 100 ms", made.headline)
    assert cells(made)[0] == ("1", "100", "60", "60.0 %", "0.4", "1")


def test_a_queue_that_holds_work_all_the_time_is_said_never_to_run_dry():
    def step(at):
        return launched_kernel("gemm", at + 10, 100, number=1 + int(at), called_ms=at)

    made = queue_depth(on_gpu(stepped(step)))
    assert re.search(r"queue is never empty in 4 .*median depth", made.headline)


def test_work_without_a_recorded_call_is_told_and_is_no_idle_time():
    def step(at):
        return [*launched_kernel("gemm", at, 50, number=1 + int(at)), event(EventKind.KERNEL, "alone", at + 50, 50)]

    made = queue_depth(on_gpu(stepped(step)))
    assert "never empty" in made.headline
    assert "6 kernels or copies without a recorded launch" in made.alt


def test_work_whose_calls_were_not_recorded_gives_no_curve():
    made = queue_depth(run_of(stepped(lambda at: [event(EventKind.KERNEL, "gemm", at, 50)])))
    assert "does not link GPU work" in made.alt


# Copies.


def copying(count=6, memory=HTOD, size=4 << 20, dur=1.0, machine=None):
    def step(at):
        return [event(EventKind.MEMCPY, memory, at + 10 * number, dur, size=size) for number in range(count)]

    machine = machine or Machine(cores_allowed=8.0)
    return run_of(stepped(step), machine=machine)


def test_the_rate_of_copies_is_that_of_the_table_of_copies(recorded):
    run = read(recorded("a100_ddp_8ranks_rank.json.gz"))
    made = copy_rates(run)
    table = copy_table(run).select(copy_table(run)["rate_bytes_per_s"] > 0)
    figures = {name: each for name, *_, each, _ in cells(made)}
    for direction, memory, per_s in zip(
        table.text("direction").to_list(), table.text("host_memory").to_list(), table["rate_bytes_per_s"], strict=True
    ):
        if direction == "fill":
            continue
        name = {"HtoD": "host to GPU", "DtoH": "GPU to host", "DtoD": "within the GPU"}[direction]
        number, unit = figures[f"{name}, {memory}" if memory else name].split()
        assert float(number.replace(",", "")) * {"GB/s": 1e9, "MB/s": 1e6}[unit] == pytest.approx(per_s, rel=0.01)


def test_copies_stand_beside_what_the_link_can_give_where_that_is_told():
    linked = Machine(gpus=(Gpu(index=0, name="V100", link_generation_max=3, link_width_max=16),))
    run = copying(machine=linked)
    made = copy_rates(run)
    reached = copy_rate(run.event_rows.of_kind(EventKind.MEMCPY))
    best = best_link_bytes_per_s(run)
    share = re.search(r"(\d+) % of the practical link rate", made.headline)
    assert int(share[1]) == round(100 * reached / best)
    assert "pageable host memory to the GPU reach 4.19 GB/s" in made.headline
    assert any("large pinned copy on this link: 12 GB/s" in each.words for each in drawn_texts(made))
    assert "link" not in copy_rates(copying()).headline
    assert "rate of the link is unknown" in copy_rates(copying()).alt


def test_many_copies_share_marks_and_none_is_lost(million):
    made = copy_rates(million)
    count = int((million.event_rows["kind"] == EventKind.MEMCPY).sum())
    (marks,) = made.axes[0].collections
    assert count > MAX_MARKS >= len(marks.get_offsets())
    areas = marks.get_sizes()
    assert round(float((2 ** ((areas - 22) / 14)).sum())) == count
    assert cells(made)[0][1] == f"{count:,}"
    copies = million.event_rows.of_kind(EventKind.MEMCPY)
    for drawn, real in zip(
        marks.get_offsets().T, (copies["bytes"], copies["bytes"] * 1e9 / copies["dur_ns"]), strict=True
    ):
        assert real.min() * 0.999 <= drawn.min() <= drawn.max() <= real.max() * 1.001


def test_a_few_copies_are_drawn_one_by_one_where_their_size_and_rate_are():
    made = copy_rates(
        run_of([event(EventKind.MEMCPY, HTOD, 0, 2, size=1 << 20), event(EventKind.MEMCPY, HTOD, 5, 1, size=1 << 10)])
    )
    (marks,) = made.axes[0].collections
    assert sorted(map(tuple, marks.get_offsets().tolist())) == [(1024, 1.024e6), (1048576, 524.288e6)]


def test_copies_without_a_size_are_not_called_slow():
    made = copy_rates(copying(size=-1))
    assert made.headline == "Rates of copies: not measured"
    assert "no size" in made.alt
    mixed = run_of([event(EventKind.MEMCPY, DTOH, 0, 1, size=1 << 20), event(EventKind.MEMCPY, DTOH, 2, 1)])
    assert "1 of them without a size or a time" in copy_rates(mixed).alt


def test_direction_and_memory_are_told_by_marker_and_fill_not_by_colour_alone():
    both = [event(EventKind.MEMCPY, HTOD, 0, 1, size=1 << 20), event(EventKind.MEMCPY, DTOH, 2, 1, size=1 << 20)]
    made = copy_rates(run_of(both))
    pageable, pinned = made.axes[0].collections
    assert pageable.get_paths()[0].vertices.shape != pinned.get_paths()[0].vertices.shape
    assert len(pageable.get_facecolor()) == 0
    assert np.allclose(pinned.get_facecolor()[0, :3], pinned.get_edgecolor()[0, :3])


# Workers.


def test_the_load_of_workers_is_the_analysis_own_figure():
    run = from_workers(cpu_ms=150.0, blocked=0.3)
    found = find_steps(run)
    figures = worker_activity(run, found, build_ledger(run, found))
    assert mean_load(list(worker_samples(run))) == pytest.approx(figures.busy_frac)
    made = loader_workers(run)
    check(made)
    assert made.headline == "2 workers compute 75 % of the time, and the loop waits for data 40 % of the time"
    assert [row[2] for row in cells(made)] == ["75 %", "75 %"]


def test_waits_and_uses_of_batches_are_those_of_the_marks():
    figures = find_batch_times(from_workers(wait_ms=40.0))
    assert len(figures) == 10
    assert set(figures.wait_ns.tolist()) == {40 * MS}
    assert figures.use_ns.tolist() == [60 * MS] * 9 + [-1]
    assert figures.wait_frac == pytest.approx(0.4)


def test_without_marks_the_calls_in_the_trace_tell_the_same():
    with_marks = from_workers(wait_ms=40.0)
    without = run_of(
        stepped(lambda at: [loader_call(at, 40.0, workers=2), event(EventKind.KERNEL, "k", at + 40, 60)], count=10),
        loaders=[Loader()],
    )
    assert find_batch_times(without).wait_ns.tolist() == find_batch_times(with_marks).wait_ns.tolist()
    check(loader_workers(without))


def test_a_loop_that_builds_its_batches_itself_is_told_so():
    made = loader_workers(from_main())
    check(made)
    assert made.headline.startswith("No workers (num_workers=0): the loop waits for data 4")
    assert "No worker process" in made.alt


def test_what_workers_did_not_tell_is_absent_and_not_drawn_as_idle():
    run = from_workers()
    blind = {name: run.worker_rows[name] for name in (each.name for each in WORKER_SAMPLES.columns)}
    blind |= {"cpu_s": np.full(len(run.worker_rows), np.nan), "blocked": np.full(len(run.worker_rows), np.nan)}
    made = loader_workers(replace(run, worker_rows=WORKER_SAMPLES.rows(blind)))
    check(made)
    assert [row[2:] for row in cells(made)] == [("not measured", "not measured")] * 2
    assert "compute" not in made.headline
    assert any(each.words == "load unknown" for each in drawn_texts(made))


def test_a_thousand_batches_and_forty_workers_are_drawn_as_few_marks():
    marks = [mark(10 * number, 4) for number in range(2000)]
    looks = [
        {"at_ns": at * MS, "worker": worker, "cpu_s": at / 2e3, "blocked": 0.0, "read_bytes": 0.0, "threads": 1.0}
        for at in range(0, 20_000, 200)
        for worker in range(40)
    ]
    made = loader_workers(run_of(marks=marks, loaders=[Loader(workers=40)], worker_rows=rows(WORKER_SAMPLES, looks)))
    check(made)
    assert "8 more workers are not drawn" in made.alt
    assert len(made.table.rows) == 40


# GPUs side by side.


def test_the_comparison_of_gpus_shows_the_figures_of_compare_gpus(gpu):
    view = compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 100, {"h100": 2.5, "t4": 0.3}, runner=gpu)
    made = gpu_comparison(view)
    check(made)
    first = view.comparison.candidates[0]
    assert first.estimate.spec.name in made.headline
    assert f"{first.estimate.per_s:,.0f}" in made.headline
    assert "cheapest" in made.headline
    bars = sorted(patch.get_width() for patch in made.axes[0].patches)
    figures = [each.estimate.per_s_range for each in view.comparison.candidates]
    assert bars == pytest.approx(sorted([low for low, _ in figures] + [high - low for low, high in figures]))
    assert "virtual T4, estimated" in made.source


@pytest.mark.full
def test_without_prices_energy_stands_in_place_of_cost(gpu):
    made = gpu_comparison(compare_gpus.compare_gpus(on(gpu, SPEEDS), ["t4", "h100"], 200, runner=gpu).comparison)
    check(made)
    assert "costs" not in made.headline
    assert "kJ for 1,000 samples" in made.table.header


@pytest.mark.full
def test_a_gpu_on_which_it_does_not_fit_has_words_and_no_bar(gpu):
    made = gpu_comparison(
        compare_gpus.compare_gpus(training(gpu, model=1200, sample=200), ["t4", "h100"], 64, runner=gpu)
    )
    check(made)
    assert [each.words for each in drawn_texts(made)].count("does not fit") == 3
    assert "It does not fit on T4" in made.alt
    none = gpu_comparison(compare_gpus.compare_gpus(training(gpu, model=1200, sample=200), ["t4"], 64, runner=gpu))
    check(none)
    assert none.headline.startswith("The step fits on none of these GPUs: it needs ")


# The batch sweep.


def one_size(batch, step_ms, *, name=None, workers=0):
    def step(at):
        return [loader_call(at, 0.4 * step_ms), event(EventKind.KERNEL, "gemm", at + 0.4 * step_ms, 0.6 * step_ms)]

    setup = [Loader(workers=workers, batch_size=batch)] if batch else [Loader()]
    return run_of(stepped(step, step_ms=step_ms, count=8), loaders=setup, name=name or f"batch {batch}")


def test_the_knee_is_the_smallest_batch_with_nine_tenths_of_the_best_rate():
    runs = [one_size(8, 10), one_size(16, 12), one_size(32, 20), one_size(64, 38), one_size(128, 76)]
    made = batch_sweep(*runs)
    check(made)
    assert re.match(r"Knee at a batch of 32: 1,600 samples/s, 95 % .*\(1,684\)", made.headline)
    assert [row[:2] for row in cells(made)] == [
        ("8", "800"), ("16", "1,333"), ("32", "1,600"), ("64", "1,684"), ("128", "1,684"),
    ]  # fmt: skip
    assert any(each.words == "knee: 32" for each in drawn_texts(made))


def test_a_rate_that_grows_to_the_last_has_no_knee():
    made = batch_sweep(one_size(8, 10), one_size(64, 10))
    check(made)
    assert re.match(r"No knee .*64: .*6,400 samples/s", made.headline)
    assert not any(each.words.startswith("knee") for each in drawn_texts(made))


def test_runs_may_be_given_by_their_batch_size_in_any_order():
    small, large = one_size(None, 10), one_size(None, 11)
    assert cells(batch_sweep({64: large, 32: small})) == cells(batch_sweep({32: small, 64: large}))
    assert "batch size of 2 of 2 runs" in batch_sweep(small, large).alt
    assert "same batch size" in batch_sweep(one_size(8, 10), one_size(8, 11)).alt


@pytest.mark.full
def test_the_knee_of_a_virtual_gpu_is_the_one_that_max_batch_names(gpu):
    view = compare_gpus.max_batch(training(gpu, sample=500), "h100", runner=gpu)
    made = batch_sweep(view)
    check(made)
    assert view.max_batch.smallest_at_full_throughput is not None
    assert f"a batch of {view.max_batch.smallest_at_full_throughput.samples:,}" in made.headline
    assert made.source == f"virtual {view.max_batch.spec.name}, estimated"
    assert f"{view.max_batch.smallest_failing:,}" in [row[0] for row in cells(made) if row[-1] == "does not fit"]
    assert any(each.words == "does not fit" for each in drawn_texts(made))


def test_a_gpu_without_room_for_one_sample_is_told_so(gpu):
    made = batch_sweep(compare_gpus.max_batch(training(gpu, model=6000), "t4", runner=gpu))
    check(made)
    assert made.headline.startswith("Not even a batch of 1 ")


# Predicted against measured.


@pytest.mark.full
def test_predicted_and_measured_are_those_of_the_comparison(recorded):
    before, after = (read(recorded(f"v100_resnet50_workers{count}.json.gz")) for count in (0, 4))
    compared = comparison.compare(before, after)
    made = predicted(compared)
    check(made)
    gain = compared.predicted
    assert f"Predicted {gain.best_ns / 1e6:.0f}-{gain.worst_ns / 1e6:.0f} ms" in made.headline
    assert f"measured {compared.measured_ns / 1e6:.0f} ms: inside the range" in made.headline
    assert compared.in_predicted_range
    figures = {name.split(":")[0]: figure for name, figure, _ in cells(made)}
    assert figures["before"] == f"{gain.step_ns / 1e6:.0f}"
    assert figures["bound"] == f"{gain.floor_ns / 1e6:.0f}"
    assert gain.basis in made.alt
    bars = [(bar.get_x(), bar.get_width()) for bar in made.axes[0].patches]
    best, worst = gain.best_ns / 1e6, gain.worst_ns / 1e6
    expected = [(0, gain.step_ns / 1e6), (0, best), (best, worst - best), (0, compared.measured_ns / 1e6)]
    assert bars == [pytest.approx(each) for each in expected]


def test_earlier_predictions_are_counted_by_whether_they_came_out_in_range():
    before, after = from_main(fetch_ms=40.0), from_main(fetch_ms=4.0)
    past = [MeasuredPrediction("workers", 100, 60, 50, 70, taken, "x", "2026-01-01") for taken in (55, 66, 75, 58)]
    made = predicted(before, after, history=past)
    check(made)
    assert "Of 4 earlier predictions, 3 " in made.alt
    assert len([row for row in cells(made) if row[0].startswith("earlier")]) == 4


def test_what_cannot_be_compared_says_why_and_does_not_raise():
    made = predicted(run_of(name="one"), run_of(name="other"))
    check(made)
    assert made.headline == "Predicted against measured: not measured"
    assert "no complete step" in made.alt


def test_a_comparison_without_a_prediction_shows_both_steps_and_says_so():
    busy = stepped(lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at, 100)])
    made = predicted(run_of(busy, name="a"), run_of(busy, name="b"))
    check(made)
    assert made.headline.startswith("No prediction; measured 100 to 100 ms")


# Ranks.


def test_the_waits_of_ranks_are_those_of_the_analysis():
    job = JOB.provoked_by_one_rank_that_has_more_to_compute()
    arrived = find_straggler(job)
    made = rank_skew(job)
    check(made)
    assert re.match(f"Rank {JOB.LATE} .*all 4 steps: the other 7 .*25 of 100 ms", made.headline)
    assert [float(row[2]) for row in cells(made)] == [wait / 1e6 for wait in arrived.waits_ns]
    assert [row[0] for row in cells(made) if row[-1] == "arrives last"] == [str(JOB.LATE)]
    assert cells(rank_skew(*job)) == cells(made)
    works, waits = ([bar.get_height() for bar in bars] for bars in made.axes[0].containers)
    assert waits == pytest.approx([wait / 1e6 for wait in arrived.waits_ns])
    assert np.add(works, waits) == pytest.approx(100)


def test_sixty_four_ranks_are_drawn_and_the_late_one_stays_in_the_table():
    job = JOB.provoked_by_one_rank_that_has_more_to_compute()
    late = find_straggler(job)
    many = replace(late, ranks=late.ranks * 8, waits_ns=late.waits_ns * 8, index=59)
    assert len(skew._table(many, [100 * MS] * 64).rows) == 40
    assert any(row.cells[-1] == "arrives last" for row in skew._table(many, [100 * MS] * 64).rows)


def test_ranks_that_cannot_be_matched_say_why(recorded):
    job = JOB.provoked_by_one_rank_that_has_more_to_compute()
    assert "1 of 2 runs have no collectives" in rank_skew(job[0], cpu_only()).alt
    check(rank_skew(job[0], cpu_only()))
    assert "only one rank" in rank_skew(job[0]).alt.lower()
