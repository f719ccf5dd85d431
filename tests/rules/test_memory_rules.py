"""Rules about memory: the laws of the trend they stand on, and what they say beyond being there."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.events.trend import trend
from gpulab.analysis.memory.growth import growths
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.analysis.steps.detection import steps
from gpulab.rules import diagnose
from gpulab.tables import MEMORY, Kind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS, event, rows, run_of, stepped

GIB = 2**30


OOM, GROWTH, THRASH = case_module("out_of_memory"), case_module("memory_growth"), case_module("allocator_thrash")


def finding(run, rule):
    return next(each for each in diagnose(run).findings if each.rule == rule)


# The trend.


@given(st.floats(-100, 100), st.floats(-1e6, 1e6), st.integers(5, 40))
def test_the_trend_of_a_line_is_its_slope(slope, start, count):
    x = np.arange(count)
    found = trend(x, start + slope * x)
    assert found.slope == pytest.approx(slope, abs=1e-6)
    assert found.low <= found.slope <= found.high


@given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=40))
def test_turning_the_values_round_turns_the_trend_round(values):
    x = np.arange(len(values))
    up, down = trend(x, values), trend(x, [-value for value in values])
    assert up.slope == pytest.approx(-down.slope)
    assert up.low <= up.slope <= up.high


def test_a_few_wild_values_do_not_move_the_trend():
    x = np.arange(60)
    y = 2.0 * x
    y[[5, 17, 40, 58]] = 1e9
    assert trend(x, y).slope == pytest.approx(2.0)
    assert trend(x, y).rises


def test_noise_without_a_trend_rises_in_one_run_of_forty_and_no_more_often():
    chance = np.random.default_rng(0)
    rises = sum(trend(np.arange(40), chance.normal(0, 1, 40)).rises for _ in range(400))
    assert rises <= 20  # 2.5 % of 400 are 10


def test_too_few_points_or_points_at_one_place_have_no_trend():
    assert trend([1, 2, 3], [1, 2, 3]) is None
    assert trend([1] * 20, range(20)) is None
    assert trend(range(20), [np.nan] * 20) is None


# Growth.


def test_the_growth_of_each_step_and_the_steps_left_are_as_planted():
    run = GROWTH.on_gpu(lambda step: 1000 + 2 * step, capacity_mib=10_000)
    (found,) = growths(run, steps(run))
    assert found.per_step.slope == pytest.approx(2 * 2**20)
    # Full when all that is held, less what is kept for later, fills it: 10,000 - (1000 + 2 * 199) MiB at 2 each.
    assert found.steps_left == pytest.approx((10_000 - 1398) / 2)


def test_growth_that_ends_soon_is_urgent_and_other_growth_is_not():
    assert finding(GROWTH.provoked_by_growth_that_ends_soon(), "memory_growth").urgent
    assert not finding(GROWTH.provoked_by_graphs_kept_on_the_gpu(), "memory_growth").urgent


def test_the_list_that_grew_is_named_in_claim_and_fix():
    told = finding(GROWTH.provoked_by_graphs_kept_on_the_gpu(), "memory_growth")
    assert "losses keeps graphs" in told.claim
    assert told.fix.startswith("losses.append(loss.item())")


@pytest.mark.parametrize("make", [GROWTH.spared_as_inputs_grow_on_the_gpu, GROWTH.spared_as_inputs_grow_on_the_cpu])
def test_where_inputs_grow_the_rule_says_that_it_cannot_tell(make):
    unjudged = {each.rule: each.why for each in diagnose(make()).unjudged}
    assert "the inputs seem to grow" in unjudged["memory_growth"]


# Asking for memory.


def test_a_library_that_asks_beside_pytorch_is_not_called_pytorchs():
    unjudged = {
        each.rule: each.why for each in diagnose(THRASH.spared_as_a_library_asks_and_pytorch_does_not()).unjudged
    }
    assert "not by PyTorch's allocator" in unjudged["allocator_thrash"]


def test_only_on_a_full_gpu_is_a_setting_the_fix():
    assert "expandable_segments" in finding(THRASH.provoked_by_a_gpu_that_is_full(), "allocator_thrash").fix
    emptied = finding(THRASH.provoked_by_emptying_the_cache_in_the_loop(), "allocator_thrash")
    assert not emptied.fix
    assert "empty_cache()" in emptied.advice


# Running out of it.


def test_remedies_come_cheapest_first_and_only_where_the_figures_call_for_them():
    kept = OOM.ended(
        OOM.failure(reserved_bytes=70 * GIB),
        OOM.holder("Out[3]", "output", 20),
        OOM.holder("sys.last_traceback", "traceback", 20),
        OOM.holder("losses", "graph", 20),
        OOM.holder("losses", "variable", 0.1, tensors=9),
        OOM.holder("the step under way", "graph", 30),
    )
    told = finding(kept, "out_of_memory")
    places = [told.fix.index(part) for part in ("reset", "last_traceback", "losses.clear()", "torch.autocast")]
    assert places == sorted(places)
    assert "30 GiB" not in told.fix
    assert "2 parts" in told.advice, "more than four pieces of code are told and not pasted"
    fix = told.fix
    assert "expandable" not in fix
    plain = finding(OOM.provoked_by_a_batch_that_is_too_large(), "out_of_memory").fix
    assert "reset" not in plain
    assert "losses" not in plain


def test_half_precision_comes_before_parts():
    fix = finding(OOM.provoked_by_a_batch_that_is_too_large(), "out_of_memory").fix
    assert 0 < fix.index("torch.autocast") < fix.index("parts = ")


def test_where_a_leak_fills_the_memory_nothing_else_is_a_remedy():
    told = finding(OOM.provoked_by_a_list_of_graphs(), "out_of_memory")
    assert "losses.clear()" in told.fix
    assert "loss.item()" in told.fix
    for no_help in ("parts", "autocast", "checkpoint"):
        assert no_help not in told.fix + told.advice


def test_parts_are_as_many_as_the_missing_bytes_call_for_and_no_more_than_samples():
    def parts(needed, batch=64):
        run = OOM.ended(OOM.failure(needed_bytes=needed * GIB), OOM.holder("the step under way", "graph", 60))
        run = replace(run, loaders=(replace(run.loaders[0], batch_size=batch),))
        fix = finding(run, "out_of_memory").fix
        return int(fix[fix.index("parts = ") + 8 :].split()[0])

    assert parts(4) == 2
    assert parts(20) == 4
    assert parts(28) == 16
    assert parts(79) == 64
    assert parts(79, batch=4) == 4


def test_what_no_freeing_can_make_room_for_is_said():
    run = OOM.ended(OOM.failure(needed_bytes=200 * GIB), OOM.holder("model", "parameter", 1))
    assert any("more than all there is" in line for line in finding(run, "out_of_memory").evidence)


def test_other_processes_that_hold_most_are_the_claim():
    claim = finding(OOM.provoked_by_other_processes(), "out_of_memory").claim
    assert claim == "Out of GPU memory: 4 GiB more was wanted, 1 GiB was free, and 70 GiB is held by other processes."


def test_growth_is_not_told_beside_the_failure_it_led_to():
    run = replace(GROWTH.provoked_by_growth_that_ends_soon(), failure=OOM.failure(), outcome="OutOfMemoryError")
    diagnosis = diagnose(run)
    assert diagnosis.first.rule == "out_of_memory"
    assert ("memory_growth", "out_of_memory") in [(each.finding.rule, each.by) for each in diagnosis.masked]


def test_the_most_of_each_phase_comes_from_the_recorded_memory():
    def step(at):
        return [
            event(Kind.ANNOTATION, "Optimizer.step#Adam.step", at + 80, 15),
            event(Kind.OP, "autograd::engine::evaluate_function: MmBackward0", at + 40, 30, thread=1),
        ]

    given = {10: 5, 30: 9, 50: 12, 60: 11, 85: 4, 99: 2}
    memory = [
        {
            "at_ns": round((100 * number + at) * MS),
            "thread": 0,
            "device": 0,
            "bytes": 1,
            "address": -1,
            "allocated_bytes": gib * GIB,
            "reserved_bytes": -1,
        }
        for number in range(6)
        for at, gib in given.items()
    ]
    run = replace(run_of(stepped(step)), memory_rows=rows(MEMORY, memory))
    assert phase_peaks(run, steps(run), 0) == {"forward": 9 * GIB, "backward": 12 * GIB, "optimizer": 4 * GIB}
    assert phase_peaks(run, steps(run), 1) == {}
    failed = replace(run, failure=OOM.failure(), outcome="OutOfMemoryError")
    assert any("backward 12 GiB" in line for line in finding(failed, "out_of_memory").evidence)


# Recorded traces.


def test_no_recorded_trace_has_a_memory_fault(recorded):
    from gpulab import trace

    mine = {"out_of_memory", "allocator_thrash", "fragmentation", "memory_growth", "unused_gpu_memory"}
    for name in ("b200_eager", "v100_resnet50_workers0", "mi300_compiled_triton", "cuda_event_sync_multi_stream"):
        told = {each.rule for each in diagnose(trace.read(recorded(f"{name}.json.gz"))).findings}
        assert not told & mine, name
