"""Rules about memory: properties of the trend estimate, and the content of the findings."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.events.trend import fit_trend
from gpulab.analysis.memory.growth import memory_growths
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.analysis.steps.detection import find_steps
from gpulab.files.datasets import datasets_folder
from gpulab.rules import diagnose
from gpulab.tables import MEMORY, EventKind
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
    line_trend = fit_trend(x, start + slope * x)
    assert line_trend.slope == pytest.approx(slope, abs=1e-6)
    assert line_trend.low <= line_trend.slope <= line_trend.high


@given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=40))
def test_negated_values_have_the_negated_trend(values):
    x = np.arange(len(values))
    up, down = fit_trend(x, values), fit_trend(x, [-value for value in values])
    assert up.slope == pytest.approx(-down.slope)
    assert up.low <= up.slope <= up.high


def test_a_few_wild_values_do_not_move_the_trend():
    x = np.arange(60)
    y = 2.0 * x
    y[[5, 17, 40, 58]] = 1e9
    assert fit_trend(x, y).slope == pytest.approx(2.0)
    assert fit_trend(x, y).rises


def test_noise_rises_in_about_one_of_forty_runs():
    generator = np.random.default_rng(0)
    rises = sum(fit_trend(np.arange(40), generator.normal(0, 1, 40)).rises for _ in range(400))
    assert rises <= 20  # 2.5 % of 400 are 10


def test_too_few_points_or_points_at_one_place_have_no_trend():
    assert fit_trend([1, 2, 3], [1, 2, 3]) is None
    assert fit_trend([1] * 20, range(20)) is None
    assert fit_trend(range(20), [np.nan] * 20) is None


# Growth.


def test_the_growth_of_each_step_and_the_steps_left_are_as_planted():
    run = GROWTH.on_gpu(lambda step: 1000 + 2 * step, capacity_mib=10_000)
    (growth,) = memory_growths(run, find_steps(run))
    assert growth.per_step.slope == pytest.approx(2 * 2**20)
    # Full when all that is held, less what is kept for later, fills it: 10,000 - (1000 + 2 * 199) MiB at 2 each.
    assert growth.steps_left == pytest.approx((10_000 - 1398) / 2)


def test_growth_that_soon_fills_the_memory_and_lists_of_graphs_are_urgent():
    assert finding(GROWTH.provoked_by_growth_that_ends_soon(), "memory_growth").urgent
    assert finding(GROWTH.provoked_by_graphs_kept_on_the_gpu(), "memory_growth").urgent
    assert not finding(GROWTH.provoked_in_host_memory(), "memory_growth").urgent


def test_the_list_that_grew_is_named_in_claim_and_fix():
    result = finding(GROWTH.provoked_by_graphs_kept_on_the_gpu(), "memory_growth")
    assert "losses" in result.claim
    assert result.fix.startswith("losses.append(loss.item())")


def test_a_list_of_losses_in_large_buffers_is_said_to_be_that():
    result = finding(GROWTH.provoked_by_losses_that_hold_large_buffers(), "memory_growth")
    assert "graph" not in f"{result.claim} {result.advice}"
    assert "loss.detach().clone()" in result.advice
    assert result.urgent


@pytest.mark.parametrize("make", [GROWTH.spared_as_inputs_grow_on_the_gpu, GROWTH.spared_as_inputs_grow_on_the_cpu])
def test_growing_inputs_make_the_rule_unjudged(make):
    unjudged = {each.rule: each.reason for each in diagnose(make()).unjudged}
    assert "the inputs seem to grow" in unjudged["memory_growth"]


# Asking for memory.


def test_allocations_of_a_library_are_not_attributed_to_pytorch():
    unjudged = {
        each.rule: each.reason for each in diagnose(THRASH.spared_as_a_library_asks_and_pytorch_does_not()).unjudged
    }
    assert "not by PyTorch's allocator" in unjudged["allocator_thrash"]


def test_expandable_segments_are_the_fix_only_on_a_full_gpu():
    assert "expandable_segments" in finding(THRASH.provoked_by_a_gpu_that_is_full(), "allocator_thrash").fix
    emptied = finding(THRASH.provoked_by_emptying_the_cache_in_the_loop(), "allocator_thrash")
    assert not emptied.fix
    assert "empty_cache()" in emptied.advice


# Running out of it.


def test_fixes_are_ordered_by_cost_and_only_those_that_apply():
    run = OOM.ended(
        OOM.failure(reserved_bytes=70 * GIB),
        OOM.holder("Out[3]", "output", 20),
        OOM.holder("sys.last_traceback", "traceback", 20),
        OOM.holder("losses", "graph", 20),
        OOM.holder("losses", "variable", 0.1, tensors=9),
        OOM.holder("the step under way", "graph", 30),
    )
    result = finding(run, "out_of_memory")
    positions = [result.fix.index(part) for part in ("reset", "last_traceback", "losses.clear()", "torch.autocast")]
    assert positions == sorted(positions)
    assert "30 GiB" not in result.fix
    assert "2 micro-batches" in result.advice, "fixes beyond the fourth are advice, not code"
    fix = result.fix
    assert "expandable" not in fix
    other_fix = finding(OOM.provoked_by_a_batch_that_is_too_large(), "out_of_memory").fix
    assert "reset" not in other_fix
    assert "losses" not in other_fix


def test_half_precision_comes_before_micro_batches():
    fix = finding(OOM.provoked_by_a_batch_that_is_too_large(), "out_of_memory").fix
    assert 0 < fix.index("torch.autocast") < fix.index("parts = ")


def test_a_leak_that_fills_the_memory_is_the_only_fix():
    result = finding(OOM.provoked_by_a_list_of_graphs(), "out_of_memory")
    assert "losses.clear()" in result.fix
    assert "loss.item()" in result.fix
    for no_help in ("parts", "autocast", "checkpoint"):
        assert no_help not in result.fix + result.advice


def test_the_number_of_micro_batches_follows_from_the_missing_bytes():
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


def test_an_allocation_larger_than_the_memory_is_reported_as_such():
    run = OOM.ended(OOM.failure(needed_bytes=200 * GIB), OOM.holder("model", "parameter", 1))
    larger, smaller = (finding(each, "out_of_memory").evidence for each in (run, OOM.provoked_by_a_list_of_graphs()))
    assert any("larger than the whole memory" in line for line in larger)
    assert not any("larger than the whole memory" in line for line in smaller)


def test_other_processes_with_most_memory_are_in_the_claim():
    claim = finding(OOM.provoked_by_other_processes(), "out_of_memory").claim
    assert re.findall(r"\d+ GiB", claim) == ["4 GiB", "1 GiB", "70 GiB"]
    assert "other processes" in claim


def test_out_of_memory_masks_memory_growth():
    run = replace(GROWTH.provoked_by_growth_that_ends_soon(), failure=OOM.failure(), outcome="OutOfMemoryError")
    diagnosis = diagnose(run)
    assert diagnosis.first.rule == "out_of_memory"
    assert ("memory_growth", "out_of_memory") in [(each.finding.rule, each.explained_by) for each in diagnosis.masked]


def test_peaks_by_phase_come_from_the_recorded_memory():
    def step(at):
        return [
            event(EventKind.ANNOTATION, "Optimizer.step#Adam.step", at + 80, 15),
            event(EventKind.OP, "autograd::engine::evaluate_function: MmBackward0", at + 40, 30, thread=1),
        ]

    gib_by_time = {10: 5, 30: 9, 50: 12, 60: 11, 85: 4, 99: 2}
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
        for at, gib in gib_by_time.items()
    ]
    run = replace(run_of(stepped(step)), memory_rows=rows(MEMORY, memory))
    assert phase_peaks(run, find_steps(run), 0) == {"forward": 9 * GIB, "backward": 12 * GIB, "optimizer": 4 * GIB}
    assert phase_peaks(run, find_steps(run), 1) == {}
    failed = replace(run, failure=OOM.failure(), outcome="OutOfMemoryError")
    assert any("backward 12 GiB" in line for line in finding(failed, "out_of_memory").evidence)


def test_memory_freed_between_two_operators_of_the_backward_pass_belongs_to_it():
    def step(at):
        backward = [
            event(EventKind.OP, "autograd::engine::evaluate_function: MmBackward0", at + start, 10, thread=1)
            for start in (40, 50.2)
        ]
        return [event(EventKind.OP, "aten::mm", at + 10, 20), *backward]

    def peaks(freed_at):
        memory = [
            {
                "at_ns": round((100 * number + at) * MS),
                "thread": 0,
                "device": 0,
                "bytes": size,
                "address": -1,
                "allocated_bytes": gib * GIB,
                "reserved_bytes": -1,
            }
            for number in range(6)
            for at, size, gib in ((15, GIB, 5), (45, GIB, 12), (freed_at, -GIB, 11))
        ]
        run = replace(run_of(stepped(step)), memory_rows=rows(MEMORY, memory))
        return phase_peaks(run, find_steps(run), 0)

    assert peaks(freed_at=50.05) == {"forward": 5 * GIB, "backward": 12 * GIB}
    assert peaks(freed_at=32) == {"forward": 11 * GIB, "backward": 12 * GIB}, "after an operator of the forward pass"


def test_a_gpu_whose_memory_ran_out_has_no_unused_memory():
    rules = [each.rule for each in diagnose(gpulab.load(datasets_folder() / "memory2" / "run.gpulab")).findings]
    assert "out_of_memory" in rules
    assert "unused_gpu_memory" not in rules


# Recorded traces.


def test_no_recorded_trace_has_a_memory_fault(recorded):
    from gpulab import trace

    memory_rules = {"out_of_memory", "allocator_thrash", "fragmentation", "memory_growth", "unused_gpu_memory"}
    for name in ("b200_eager", "v100_resnet50_workers0", "mi300_compiled_triton", "cuda_event_sync_multi_stream"):
        rules = {each.rule for each in diagnose(trace.read(recorded(f"{name}.json.gz"))).findings}
        assert not rules & memory_rules, name
