"""Lesson 01: a meter that reads now and then, the load of a run, a card that warms up, and the eight cards."""

import itertools
import math
import re

import numpy as np
import pytest
import torch

import gpulab
from gpulab.errors import RunError
from gpulab.intervals import union
from gpulab.lessons.course.machine.n01_what_is_utilisation import CARDS, LESSON, check_cards, check_interval
from gpulab.lessons.labs.machine import hot_card, sampling, utilisation
from gpulab.lessons.labs.machine.hot_card import HEAT, POWER, simulate_card
from gpulab.lessons.labs.machine.sampling import SECOND_NS, WINDOW_NS, BusyTimeline, periodic_job
from gpulab.tables import EventKind
from tests.support.runs.made_runs import MS, event, launched_kernel, on_gpu, run_of, stepped


def by_the_microsecond(spans, begin_us, end_us):
    """How many microseconds of a window are covered, counted one by one."""
    covered = np.zeros(end_us, bool)
    for start, end in spans:
        covered[start:end] = True
    return int(covered[begin_us:end_us].sum())


# The meter.


def test_a_reading_is_the_busy_share_of_its_window_counted_one_by_one():
    generator = np.random.default_rng(1)
    edges = np.sort(generator.choice(4000, 40, replace=False)).reshape(-1, 2)
    job = BusyTimeline(union(edges[:, 0] * 1000, edges[:, 1] * 1000), 0, 4_000_000)
    at_us = generator.integers(500, 4000, 30)
    read = job.readings(at_us * 1000, window_ns=400_000)
    expected = [by_the_microsecond(edges, at - 400, at) / 400 for at in at_us]
    assert read == pytest.approx(expected, abs=1e-12)


def test_whoever_keeps_step_with_the_job_sees_one_part_of_it_only():
    job = periodic_job(1000, 700, 20)
    assert job.busy_frac == 0.7
    assert set(job.sample(1, offset_ns=0)) == {0.0}
    assert set(job.sample(1, offset_ns=SECOND_NS // 2)) == {1.0}
    assert job.worst_error(1) == pytest.approx(0.7)


def test_windows_that_tile_the_period_are_exact_whenever_one_begins():
    job = BusyTimeline(periodic_job(1000, 700, 61).spans, 0, 60 * SECOND_NS)
    every_ns = SECOND_NS + SECOND_NS // 6
    for begin_ns in range(0, SECOND_NS, 37_000_000):
        at = WINDOW_NS + begin_ns + every_ns * np.arange(6)
        assert job.readings(at).mean() == pytest.approx(0.7, abs=1e-6)


def test_more_looks_a_second_are_never_far_off_and_a_job_without_a_rhythm_needs_few():
    job = periodic_job(1000, 700, 20)
    assert job.worst_error(20) < 0.01
    assert periodic_job(20, 14, 1000).worst_error(1) < 0.03, "steps far shorter than the window are averaged within it"


def test_a_job_shorter_than_the_window_gives_no_reading():
    job = periodic_job(100, 70, 1)
    assert len(job.sample(1)) == 0
    assert math.isnan(job.worst_error(1))


def test_how_many_readings_a_plan_takes():
    job = periodic_job(1000, 700, 60)
    assert sampling.readings_needed(1000, job) is None
    assert sampling.readings_needed(500, job) is None
    assert sampling.readings_needed(1333, job) == LESSON.target("plan").value
    assert sampling.readings_needed(50, job) == 19
    assert sampling.readings_needed(70_000, job) is None, "the job is over before the second reading"
    counts = [sampling.readings_needed(plan, job) for plan in range(100, 3000, 1)]
    assert min(count for count in counts if count) == LESSON.target("plan").value


def test_a_sampling_plan_is_described_with_its_error_and_readings():
    job = periodic_job(1000, 700, 60)
    assert not re.search(r"\d", sampling.describe_plan(None, job))
    assert re.findall(r"\d+", sampling.describe_plan(1000, job)) == ["1000", "59", "70", "5"]
    assert "even after" in sampling.describe_plan(1000, job)
    assert sampling.describe_plan(1333, job).startswith("every 1333 ms: after 3 readings ")
    assert "after 19 readings" in sampling.describe_plan(50, job)
    assert "before the first" in sampling.describe_plan(10, periodic_job(100, 70, 1))
    assert "after 1 reading the" in sampling.describe_plan(59_000, job)


@pytest.mark.parametrize("plan", ["1333", -5, float("nan"), float("inf"), [1333]])
def test_what_is_not_an_interval_is_not_a_plan(plan):
    job = periodic_job(1000, 700, 60)
    assert sampling.readings_needed(plan, job) is None
    assert "give a positive number of milliseconds" in sampling.describe_plan(plan, job)


def test_a_slow_item_is_its_index_and_the_length_is_fixed():
    assert list(sampling.SlowDataset(3, wait_s=0.0)) == [0, 1, 2]


# What a run tells.


def products(at):
    shapes = {"shapes": [[1024, 1024], [1024, 1024]], "dtypes": ["c10::BFloat16", "c10::BFloat16"]}
    return launched_kernel("sm90_xmma_gemm_bf16", at + 1, 50, number=int(at) + 1, op="aten::mm", grid=264, **shapes)


def narrow(at):
    return launched_kernel("cunn_SoftMaxForward", at + 1, 98, number=int(at) + 1, op="aten::_softmax", grid=1)


def on_h100(make_step):
    return on_gpu(stepped(make_step, count=8))


def test_a_load_is_counted_from_sizes_blocks_and_times():
    load = utilisation.gpu_load(on_h100(products))
    assert load.busy_frac == pytest.approx(0.5)
    assert load.filled_frac == 1
    assert load.flops == 2 * 1024**3
    assert load.bytes == 3 * 2 * 1024**2
    assert load.mfu_frac == pytest.approx(2 * 1024**3 / 0.1 / 989e12)
    assert load.traffic_frac == pytest.approx(6 * 1024**2 / 0.1 / 3.35e12)


def test_one_block_fills_one_multiprocessor_however_busy_the_gpu_is():
    load = utilisation.gpu_load(on_h100(narrow))
    assert load.busy_frac == pytest.approx(0.98)
    assert load.filled_frac == pytest.approx(1 / 132)
    assert load.flops is None
    assert load.mfu_frac is None


def test_unknown_values_are_a_dash_and_not_zero():
    table = utilisation.utilisation_table(utilisation.gpu_load(on_h100(narrow)))
    assert table.loc["made", "MFU"] == "-"
    assert table.loc["made", "filled"] == "0.758 %"


def test_a_run_without_gpu_work_is_refused():
    run = run_of(stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 50)]))
    with pytest.raises(RunError, match=run.name):
        utilisation.gpu_load(run)
    with pytest.raises(RunError, match=run.name):
        sampling.busy_timeline(run)


def test_the_trace_counted_event_by_event_is_the_trace_merged():
    def overlapping(at):
        spans = ((0, 30), (10, 5), (25, 20), (60, 10), (60, 20))
        return [
            event(EventKind.KERNEL, "k", at + begin, length, stream=7 + n) for n, (begin, length) in enumerate(spans)
        ]

    run = on_h100(overlapping)
    timeline = sampling.busy_timeline(run)
    assert sampling.busy_ns_by_events(run, timeline.start_ns, timeline.end_ns) == round(
        timeline.busy_frac * (timeline.end_ns - timeline.start_ns)
    )
    assert timeline.busy_frac == pytest.approx(0.65)
    assert sampling.busy_ns_by_events(run, 0, 28 * MS) == 28 * MS


def test_as_many_products_as_fill_a_time_on_a_virtual_gpu():
    with gpulab.virtual_gpu("h100", "repeated"):
        matrix = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        many = utilisation.matmul_repeats(matrix, milliseconds=40)
        for _ in range(6):
            for _ in range(many):
                matrix @ matrix
            torch.cuda.synchronize()
            gpulab.step()
    load = utilisation.gpu_load(gpulab.runs["repeated"])
    assert load.step_ns * load.busy_frac == pytest.approx(40e6, rel=0.05)


def traffic(network, batch):
    with gpulab.virtual_gpu("h100", "networks"):
        step = network(batch)
        for _ in range(6):
            step(None)
            torch.cuda.synchronize()
            gpulab.step()
    return utilisation.gpu_load(gpulab.runs["networks"]).traffic_frac


@pytest.mark.full
def test_a_larger_batch_raises_the_traffic_of_one_network_and_lowers_that_of_the_other():
    assert traffic(utilisation.image_training_step, 256) > 2 * traffic(utilisation.image_training_step, 8)
    assert traffic(utilisation.large_layers_step, 4096) < 0.5 * traffic(utilisation.large_layers_step, 1)


def test_memory_used_is_the_allocated_fraction():
    with gpulab.virtual_gpu("h100", "held"):
        before = utilisation.memory_used_frac()
        block = torch.empty(1 << 33, dtype=torch.uint8, device="cuda")
        assert utilisation.memory_used_frac() - before == pytest.approx(
            len(block) / torch.cuda.mem_get_info()[1], rel=0.01
        )


def test_the_anonymous_job_is_busy_full_and_slow_and_leaves_the_setting_as_it_was():
    usual = torch.backends.cuda.matmul.allow_tf32
    with gpulab.virtual_gpu("h100", "anonymous"):
        utilisation.unknown_job(6)
    load = utilisation.gpu_load(gpulab.runs["anonymous"])
    assert load.busy_frac > 0.95
    assert load.filled_frac > 0.95
    assert load.mfu_frac < 0.1
    assert load.traffic_frac < 0.1
    assert torch.backends.cuda.matmul.allow_tf32 == usual


# The card.


def test_a_card_settles_where_heat_in_is_heat_out():
    card = hot_card.CardModel(thermal_c_per_w=0.07)
    for _ in range(3000):
        card.tick(1.0)
    assert card.temperature_c == pytest.approx(hot_card.AMBIENT_C + 0.07 * card.watts(1.0), abs=0.01)
    assert (card.clock_mhz, card.reason) == (hot_card.FULL_MHZ, 0)


def test_heat_holds_down_a_dusty_card_and_power_a_capped_one_and_a_clean_one_is_free():
    healthy, dusty = simulate_card(name="healthy"), simulate_card(name="dusty", thermal_c_per_w=0.12)
    capped = simulate_card(name="capped", power_limit_w=400)
    assert [hot_card.throttled_interval(healthy, each) for each in (HEAT, POWER)] == [None, None]
    assert hot_card.throttled_interval(dusty, POWER) is None
    assert hot_card.throttled_interval(capped, HEAT) is None
    assert gpulab.diagnose(healthy).first is None
    assert "too hot" in gpulab.diagnose(dusty).first.claim
    assert "from 700 W to 400 W" in gpulab.diagnose(capped).first.claim
    assert dusty.gpu_samples["temperature_c"].max() < hot_card.HOT_C + 3
    loaded = capped.gpu_samples["power_w"][20:60]
    assert loaded.max() <= 400


def test_the_throttled_interval_matches_the_throttle_counter_at_every_sampling_rate():
    for every_s in (0.1, 0.5, 1.0):
        run = simulate_card(name="dusty", thermal_c_per_w=0.12, every_s=every_s)
        start_s, ended = hot_card.throttled_interval(run, HEAT)
        counted = run.gpu_samples["thermal_held_s"].iloc[-1]
        assert abs(ended - start_s - counted) <= every_s + 1


def test_a_slower_clock_is_fewer_steps_at_the_same_utilisation():
    healthy, dusty = simulate_card(name="healthy"), simulate_card(name="dusty", thermal_c_per_w=0.12)
    assert len(dusty.marks) < len(healthy.marks)
    assert (dusty.gpu_samples["util_frac"] == healthy.gpu_samples["util_frac"]).all()


def test_compared_cards_have_seconds_as_rows():
    table = hot_card.readings_table(simulate_card(name="a"), simulate_card(name="b", power_limit_w=400), at_s=(0, 30))
    assert list(table.index) == [0, 30]
    assert table["a"]["MHz"].tolist() == [1980, 1980]
    assert table["a"]["util, %"].tolist() == [20, 100]
    assert table["b"]["reason"].tolist() == ["-", "power"]


def test_an_interval_is_right_within_two_seconds_and_the_feedback_names_the_wrong_end():
    card = simulate_card(name="dusty", thermal_c_per_w=hot_card.DUSTY_THERMAL_C_PER_W)
    start_s, end_s = hot_card.throttled_interval(card, HEAT)
    assert check_interval((start_s, end_s)) is None
    assert check_interval([start_s - 2, end_s + 2]) is None
    assert "start at second 10:" in check_interval((10, end_s))
    assert "start at second nan" in check_interval((float("nan"), end_s))
    assert f"start at second {start_s + 3:g}:" in check_interval((start_s + 3, end_s))
    assert f"end at second {end_s - 3:g}:" in check_interval((start_s, end_s - 3))
    assert f"end at second {end_s + 3:g}:" in check_interval((start_s, end_s + 3))
    for other in (42, (1, 2, 3), "ab", ("a", "b"), (None, 3)):
        assert "two numbers" in check_interval(other)


# The eight definitions.


def test_eight_of_eight_are_right_and_anything_else_is_told_what_to_look_at():
    right = {name: letter for name, (letter, _) in CARDS.items()}
    assert len(right) == len(set(right.values())) == len(LESSON.find_question("cards").choices) == 8
    assert check_cards(right) is None
    assert "each of" in check_cards("c")
    assert "MFU" in check_cards({name: letter for name, letter in right.items() if name != "MFU"})
    assert check_cards(right | {"occupancy": ""}) == "there is no letter yet for occupancy"
    for one, other in itertools.combinations(right, 2):
        swapped = right | {one: right[other], other: right[one]}
        assert "6 of 8" in check_cards(swapped)
        assert one in check_cards(swapped)


def test_every_question_of_the_lesson_has_hints_and_a_reason():
    for question in LESSON.questions:
        assert question.hints is not None
        assert question.explanation
        assert question.find_problem or all(choice.feedback for choice in question.choices)
