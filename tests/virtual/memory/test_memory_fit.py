"""Tests of fits, max_batch and compare_gpus, on a stand-in whose program states its own time and memory."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
from hypothesis import Phase as Phase_
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.errors import RunError
from gpulab.hardware.lookup import resolve
from gpulab.tables import EventKind, MarkKind
from gpulab.virtual.memory_fit import host_work
from gpulab.virtual.memory_fit.allocation_trace import AllocationTrace, predict_allocations, predict_from_steps
from gpulab.virtual.memory_fit.batch_search import MAX_RUNS
from gpulab.virtual.memory_fit.fitting import MAX_SMALL_SIZES, GpuCandidate, MaxBatch, compare_gpus, fits, max_batch
from gpulab.virtual.memory_fit.host_work import HostWork, sum_host_work
from gpulab.virtual.memory_fit.memory_peaks import OutOfGpuMemory, SimulatedMemory, non_torch_memory
from gpulab.virtual.memory_fit.step_estimate import (
    BOTTLENECKS,
    StepEstimate,
    bottleneck_shares,
    estimate_memory,
    estimate_step,
    trace_allocations,
)
from gpulab.virtual.op_log.ops import Copy, CopyDirection, HostOp, Phase, Role
from tests.support.runs.made_runs import event, mark, run_of
from tests.support.tiers import examples
from tests.support.virtual.memory_programs import (
    GIB,
    MIB,
    MS,
    SPEEDS,
    StandIn,
    anew,
    fragmented,
    on,
    training,
)

# One step.


def test_the_estimate_is_of_the_second_step_with_optimizer_state(gpu):
    estimate = estimate_step(training(gpu), "h100", 8, gpu_factory=gpu)
    assert {role: held // MIB for role, held in estimate.peak.by_role.items()} == {
        Role.PARAMETER: 100, Role.GRADIENT: 100, Role.OPTIMIZER: 200, Role.ACTIVATION: 768,
    }  # fmt: skip
    assert estimate.peak.phase is Phase.BACKWARD
    assert {use.phase: use.bytes // MIB for use in estimate.phases} == {
        Phase.FORWARD: 1068, Phase.BACKWARD: 1168, Phase.OPTIMIZER: 400,
    }  # fmt: skip
    assert estimate.step_ns == 13 * MS
    assert estimate.step_range_ns == pytest.approx((10.4 * MS, 16.9 * MS))
    assert estimate.per_s_range == pytest.approx((8 / 0.0169, 8 / 0.0104))
    assert estimate.per_s == pytest.approx(8 / 0.013)
    assert estimate.assumptions == StandIn.assumptions


def test_a_step_that_rebuilds_its_model_needs_as_much_as_one_that_keeps_it(gpu):
    kept = estimate_step(training(gpu), "h100", 8, gpu_factory=gpu)
    estimate = estimate_step(anew(gpu), "h100", 8, gpu_factory=gpu)
    assert (estimate.rebuilds_model, kept.rebuilds_model) == (True, False)
    assert estimate.peak.by_role == kept.peak.by_role
    assert estimate.added_state_bytes == 200 * MIB
    assert estimate.reserved_bytes >= estimate.peak.bytes


def test_a_step_without_a_batch_size_counts_as_one_sample(gpu):
    estimate = estimate_step(
        functools.partial(training(gpu)(), 4) if gpu.last else lambda: None, "h100", gpu_factory=gpu
    )
    assert estimate.batch is None
    assert estimate.samples == 1


def test_a_step_without_parameters_or_with_a_default_batch_is_called_without_a_batch(gpu):
    called = []

    def usual(batch=5):
        called.append(batch)
        gpu.last.now_ns += 1e6

    estimate_step(usual, "h100", gpu_factory=gpu)
    estimate_step(usual, "h100", 7, gpu_factory=gpu)
    assert called == [5, 5, 7, 7]


def test_a_step_with_a_required_batch_needs_a_batch(gpu):
    with pytest.raises(RunError, match="batch size") as error:
        estimate_step(anew(gpu), "h100", gpu_factory=gpu)
    assert "batch=32" in error.value.fix


def test_an_exception_in_the_step_propagates(gpu):
    def broken():
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        estimate_step(broken, "h100", gpu_factory=gpu)
    assert gpu.last.ended == "abandoned"


def test_the_gpu_is_always_stopped_and_builds_a_run_only_on_request(gpu):
    estimate_step(training(gpu), "h100", 8, gpu_factory=gpu)
    assert gpu.last.ended == "stopped"
    quick, _ = estimate_memory(training(gpu), resolve("h100"), 8, gpu_factory=gpu)
    assert gpu.last.ended == "abandoned"
    assert (quick.step_range_ns, quick.bottleneck, quick.joules_range, quick.busy_frac) == (None, None, None, None)


def test_the_shares_of_the_last_step_are_by_bottleneck():
    events = [
        event(EventKind.KERNEL, "ampere_sgemm_128x64_nn", 0.0, 10.0),  # a first step, all of it arithmetic
        event(EventKind.OP, "aten::mm", 10.0, 2.0),
        event(EventKind.KERNEL, "ampere_sgemm_128x64_nn", 12.0, 5.0),
        event(EventKind.KERNEL, "vectorized_elementwise_kernel", 17.0, 3.0),
    ]
    ends = [mark(at, 0.0, kind=MarkKind.USER) for at in (0.0, 10.0, 20.0)]
    step_shares = bottleneck_shares(run_of(events, marks=ends))
    assert step_shares == {"arithmetic": 0.5, "memory bandwidth": 0.3, "copies": 0.0, "data": 0.0, "host": 0.2}
    assert set(step_shares) == set(BOTTLENECKS)
    assert bottleneck_shares(run_of([event(EventKind.OP, "aten::mm", 0.0, 2.0)])) == {}


# Does it fit?


@pytest.mark.parametrize(
    ("batch", "verdict"), [(8, "fits"), (680, "fits"), (770, "tight"), (825, "tight"), (840, "does not fit")]
)
def test_a_step_that_uses_more_than_nine_tenths_of_the_gpu_is_tight(gpu, batch, verdict):
    """79.1 GiB less 664 MiB of allowances hold 832 samples of 96 MiB beside 400 MiB."""
    fit = fits(training(gpu), "h100", batch, gpu_factory=gpu)
    assert fit.verdict == verdict
    assert fit.estimate.needed_bytes == pytest.approx((400 + 96 * batch + 664) * MIB, rel=0.01, abs=200 * MIB)


def test_a_step_that_fits_gets_no_advice(gpu):
    assert fits(training(gpu), "h100", 8, gpu_factory=gpu).savings == ()


def test_a_step_that_does_not_fit_lists_savings_largest_first_and_a_larger_gpu(gpu):
    told = fits(training(gpu, model=2048, sample=500), "a10", 60, gpu_factory=gpu)
    assert told.verdict == "does not fit"
    assert [each.key for each in told.savings] == ["checkpoint", "batch", "autocast"]
    assert [each.freed_bytes / MIB for each in told.savings] == [30000, 15000, 15000]
    assert told.larger_gpu.usable_bytes == min(resolve(name).usable_bytes for name in ("a100-80", "h100"))


def test_a_model_that_is_mostly_optimizer_state_is_advised_to_reduce_it(gpu):
    fit = fits(training(gpu, model=8000, sample=10, state=2), "v100", 1, gpu_factory=gpu)
    assert [each.key for each in fit.savings][:2] == ["optimizer", "parameters"]


def test_a_step_that_fits_on_no_gpu_names_no_larger_gpu(gpu):
    assert fits(training(gpu, sample=3000), "b200", 100, gpu_factory=gpu).larger_gpu is None


def test_a_step_that_fits_only_after_the_cache_is_released_is_tight(gpu):
    fit = fits(fragmented(gpu), "h100", gpu_factory=gpu)
    assert fit.estimate.used_frac < 0.9
    assert (fit.verdict, fit.estimate.fits_only_with_retries, fit.estimate.oom_count) == ("tight", True, 0)


def test_one_allocation_that_fails_means_that_the_step_does_not_fit(gpu):
    estimate = estimate_step(training(gpu), "h100", 8, gpu_factory=gpu)
    assert (estimate.verdict, replace(estimate, oom_count=1, retries=1).verdict) == ("fits", "does not fit")
    assert not replace(estimate, oom_count=1, retries=1).fits_only_with_retries


def test_unused_cached_memory_is_a_saving(gpu):
    def step():
        keys = [gpu.last.hold(9, Phase.FORWARD) for _ in range(6000)]
        for key in keys[::2]:
            gpu.last.memory.free(key)
        gpu.last.memory.free(gpu.last.hold(40000, Phase.FORWARD))
        for key in keys[1::2]:
            gpu.last.memory.free(key)
        gpu.last.now_ns += MS

    told = fits(step, "h100", gpu_factory=gpu)
    assert told.verdict == "does not fit"
    assert told.estimate.peak.bytes < 0.85 * told.estimate.usable_bytes
    assert "segments" in {each.key for each in told.savings}


# How large a batch?


def test_the_largest_batch_fits_and_the_next_one_does_not(gpu):
    result = max_batch(training(gpu, sample=1000), "h100", gpu_factory=gpu)
    assert (result.batch, result.smallest_failing) == (79, 80)
    assert [each.batch for each in result.estimates] == sorted(each.batch for each in result.estimates)
    assert result.sample_bytes == pytest.approx(1000 * MIB, rel=0.001)
    assert result.fixed_bytes == pytest.approx(400 * MIB, rel=0.01)


@examples(12, phases=[Phase_.generate])
@given(st.integers(1, 4000), st.integers(4, 3000), st.integers(1, 64), st.sampled_from(["t4", "a100-40", "b200"]))
def test_the_largest_batch_equals_that_of_an_exhaustive_search(model, sample, start, name):
    """But for a few in a hundred: what fragments leave differs from batch to batch, and it fits here and there."""
    there = resolve(name)
    room = there.usable_bytes - sum(each.bytes for each in non_torch_memory(there))

    def play(_):
        play.last = StandIn(name)
        return play.last

    play.sizes = {}

    def goes(batch):
        play.last = StandIn(name)
        step = training(play, model=model, sample=sample)()
        try:
            step(batch)
            step(batch)
        except OutOfGpuMemory:
            return False
        return True

    result = max_batch(training(play, model=model, sample=sample), name, start, gpu_factory=play)
    assert len(result.estimates) <= MAX_SMALL_SIZES + MAX_RUNS + 1
    if result.batch is None:
        assert not goes(1)
        return
    assert goes(result.batch)
    assert result.smallest_failing == result.batch + 1
    assert not goes(result.smallest_failing)
    assert result.batch <= (room / MIB - 4 * model) / sample
    assert result.batch >= 0.85 * (room / MIB - 5 * model - 1000) / sample - 1


def test_a_model_that_does_not_fit_with_one_sample_has_no_largest_batch(gpu):
    result = max_batch(training(gpu, model=6000), "t4", gpu_factory=gpu)
    assert (
        result.batch,
        result.smallest_failing,
        result.with_headroom,
        result.aligned_sizes,
        result.smallest_at_full_throughput,
    ) == (None, 1, None, (), None)
    assert result.estimates[0].batch == 1
    assert result.estimates[0].needed_bytes > result.spec.usable_bytes


def test_a_start_that_is_far_too_large_finds_the_same_batch(gpu):
    assert max_batch(training(gpu, sample=1000), "t4", start=4096, gpu_factory=gpu).batch in (13, 14)


def test_aligned_sizes_are_a_multiple_of_8_and_a_power_of_two(gpu):
    result = max_batch(training(gpu, sample=1000), "h100", gpu_factory=gpu)
    assert result.aligned_sizes == (72, 64)
    assert result.with_headroom in (70, 71)


def test_the_search_reports_throughput_and_where_it_stops_growing(gpu):
    result = max_batch(training(gpu, sample=200, fixed_ms=8.0, sample_ms=1.0), "h100", gpu_factory=gpu)
    rates = [each.per_s for each in result.estimates if each.verdict != "does not fit"]
    assert rates == sorted(rates)
    assert result.smallest_at_full_throughput.per_s >= 0.9 * rates[-1]
    assert result.smallest_at_full_throughput.batch < result.batch / 2
    assert any(result.batch / 3 < each.batch < 0.7 * result.batch for each in result.estimates)


def test_the_search_takes_few_runs(gpu):
    result = max_batch(training(gpu, sample=37), "h100", gpu_factory=gpu)
    assert len(result.estimates) <= 6
    assert gpu.count <= 3


def alone(gpu):
    """The sizes that were played on a GPU of their own."""
    return {sizes[0] for sizes in gpu.sizes.values()}


@pytest.mark.parametrize("sample", [37, 5000, 17000])
def test_the_largest_batch_and_the_one_above_it_were_each_run_on_a_new_gpu(gpu, sample):
    result = max_batch(training(gpu, sample=sample), "h100", gpu_factory=gpu)
    assert {result.batch, result.smallest_failing} <= alone(gpu)
    assert result.smallest_failing == result.batch + 1


@pytest.mark.parametrize(("first", "start"), [(1.5, 300), (2.0, 8), (3.0, 1)])
def test_a_first_step_that_needs_more_than_later_ones_sets_the_limit(gpu, first, start):
    """As where cuDNN tries its algorithms: later steps of a GPU that has run already do not tell."""
    result = max_batch(training(gpu, sample=200, first=first), "h100", start, gpu_factory=gpu)
    assert {result.batch, result.smallest_failing} <= alone(gpu)
    for batch, fits_there in ((result.batch, True), (result.smallest_failing, False)):
        found, _ = estimate_memory(training(gpu, sample=200, first=first), resolve("h100"), batch, gpu_factory=gpu)
        assert (found.verdict != "does not fit") == fits_there
    assert result.smallest_failing <= result.batch * 1.02 + 1


def test_a_step_that_behaves_differently_at_large_batches_is_searched_without_prediction(gpu):
    result = max_batch(training(gpu, sample=200, more=250), "h100", gpu_factory=gpu)
    assert result.batch < 250 <= result.smallest_failing
    assert result.smallest_failing <= result.batch * 1.05
    assert {result.batch, result.smallest_failing} <= alone(gpu)


# What is asked of the memory, foretold.


def asked(gpu, batch, **sizes):
    return estimate_memory(training(gpu, **sizes), resolve("h100"), batch, gpu_factory=gpu)


@pytest.mark.parametrize("batch", [4, 200, 411, 415, 419, 600])
def test_the_allocations_of_two_sizes_predict_whether_another_fits(gpu, batch):
    sizes = {"sample": 190.0, "model": 300.0}
    foretold = predict_allocations(asked(gpu, 8, **sizes)[1], 8, asked(gpu, 64, **sizes)[1], 64)
    there = resolve("h100")
    outside = sum(each.bytes for each in non_torch_memory(there))
    fits_there = asked(gpu, batch, **sizes)[0].verdict != "does not fit"
    assert foretold.fits(batch, there.usable_bytes, outside) == fits_there


def test_the_edge_is_the_largest_batch_predicted_to_fit(gpu):
    foretold = predict_allocations(asked(gpu, 8)[1], 8, asked(gpu, 64)[1], 64)
    edge = foretold.largest_fitting(0, 2000, resolve("h100").usable_bytes, 0)
    assert foretold.fits(edge, resolve("h100").usable_bytes, 0)
    assert not foretold.fits(edge + 1, resolve("h100").usable_bytes, 0)


def test_steps_on_one_gpu_predict_first_steps_on_others(gpu):
    script = trace_allocations(gpu("h100"))
    step = training(gpu)()
    step(8)
    script.end_part()
    for batch in (8, 16, 64):
        step(batch)
        script.end_part()
    by_steps = predict_from_steps(script, (8, 16, 64))
    by_pair = predict_allocations(asked(gpu, 8)[1], 8, asked(gpu, 64)[1], 64)
    assert by_steps.bytes_per_sample == pytest.approx(by_pair.bytes_per_sample, abs=1)


def test_steps_that_do_not_match_give_no_prediction(gpu):
    few, many = AllocationTrace(), AllocationTrace()
    for script, count in ((few, 2), (many, 3)):
        for number in range(count):
            script.record_allocation(number, 512, 7)
    other_stream = AllocationTrace([(0, 512, 7), (1, 512, 8)])
    assert predict_allocations(few, 8, many, 16) is None
    assert predict_allocations(few, 8, other_stream, 16) is None
    assert predict_allocations(few, 8, few, 8) is None


def test_a_script_records_allocations_and_frees_in_order():
    memory = SimulatedMemory(GIB)
    script = memory.allocation_trace = AllocationTrace()
    memory.allocate(1, 3000, Phase.FORWARD)
    memory.allocate(2, 0, Phase.FORWARD)  # nothing is asked of the allocator for it
    script.end_part()
    memory.free(1)
    memory.free(2)
    memory.empty_cache()
    script.end_part()
    assert script.events == [(1, 3000, 7), (1, -1, -1), (-1, -1, -1)]
    assert script.allocations == [(3000, 7)]
    assert (script.part(0).events, script.part(1).events) == (script.events[:1], script.events[1:])


def test_a_step_whose_memory_does_not_grow_with_the_batch_is_an_error(gpu):
    build = training(gpu)

    def constant():
        step = build()
        return lambda batch: step(4)

    with pytest.raises(RunError, match="largest batch") as error:
        max_batch(constant, "h100", gpu_factory=gpu)
    assert "no more memory" in error.value.why


def test_a_step_without_a_batch_parameter_is_an_error(gpu):
    with pytest.raises(RunError) as error:
        max_batch(lambda: None, "h100", gpu_factory=gpu)
    assert "def step(batch)" in error.value.fix
    with pytest.raises(RunError, match="start=0"):
        max_batch(lambda batch: None, "h100", start=0, gpu_factory=gpu)


# Which GPU?


def test_gpus_are_sorted_by_speed_and_those_too_small_come_last(gpu):
    comparison = compare_gpus(on(gpu, {**SPEEDS, "T4": 1.0}), ["t4", "a100", "h100"], 200, gpu_factory=gpu)
    assert [each.estimate.spec.name for each in comparison.candidates] == ["H100 SXM", "A100-80 SXM", "T4"]
    assert comparison.candidates[-1].estimate.verdict == "does not fit"


def test_a_price_gives_the_cost_of_1000_samples(gpu):
    comparison = compare_gpus(on(gpu, SPEEDS), ["h100", "a100", "t4"], 100, {"H100": 3.6, "t4": 0.36}, gpu_factory=gpu)
    h100, a100, t4 = comparison.candidates
    assert h100.cost == pytest.approx(3.6 * 10 * 0.010 / 3600)
    assert h100.cost_range == (pytest.approx(0.8 * h100.cost), pytest.approx(1.3 * h100.cost))
    assert (a100.cost, a100.cost_range) == (None, None)
    assert t4.cost == pytest.approx(0.36 * 10 * 0.150 / 3600)


def test_energy_assumes_half_to_all_of_the_power_range_while_the_gpu_works(gpu):
    comparison = compare_gpus(on(gpu, SPEEDS), ["h100"], 100, gpu_factory=gpu).candidates[0]
    there = resolve("h100")
    assert comparison.estimate.shares["arithmetic"] == pytest.approx(0.75)
    low, high = comparison.joules_range
    assert low == pytest.approx(10 * 0.008 * (there.idle_w + 0.375 * (there.power_limit_w - there.idle_w)))
    assert high == pytest.approx(10 * 0.013 * (there.idle_w + 0.75 * (there.power_limit_w - there.idle_w)))


def test_a_gpu_named_twice_is_compared_once(gpu):
    assert len(compare_gpus(on(gpu, SPEEDS), ["h100", "H100 SXM"], 8, gpu_factory=gpu).candidates) == 1


def test_gpus_that_cannot_be_compared_are_named(gpu):
    with pytest.raises(RunError, match="GPUs") as error:
        compare_gpus(lambda: None, ["h100"], price={"t4": 1.0}, gpu_factory=gpu)
    assert "T4" in error.value.why
    with pytest.raises(RunError, match="GPUs"):
        compare_gpus(lambda: None, [], gpu_factory=gpu)
    with pytest.raises(RunError, match="'gtx9000' is not a GPU that gpulab knows"):
        compare_gpus(lambda: None, ["gtx9000"], gpu_factory=gpu)


def test_results_are_immutable(gpu):
    comparison = compare_gpus(on(gpu, SPEEDS), ["h100"], 8, gpu_factory=gpu)
    for value in (comparison, comparison.candidates[0], comparison.candidates[0].estimate):
        with pytest.raises(AttributeError):
            value.batch = 1
    assert isinstance(comparison.candidates[0], GpuCandidate)
    assert isinstance(replace(comparison.candidates[0].estimate, batch=1), StepEstimate)
    assert MaxBatch.__dataclass_params__.frozen


# What a step takes from this machine's CPU.


def test_host_work_is_copies_to_the_gpu_and_operators_on_this_cpu():
    def copied(way, size, *, pinned):
        return Copy(name="aten::copy_", direction=way, bytes=size, pinned=pinned, non_blocking=False)

    made = HostOp(name="aten::randn", inputs=(), elapsed_ns=5 * 10**6)
    records = [
        made,
        copied(CopyDirection.HOST_TO_DEVICE, 6 * 10**6, pinned=False),
        copied(CopyDirection.DEVICE_TO_HOST, 4, pinned=False),
    ]
    work = sum_host_work(records, resolve("h100"))
    assert (work.bytes, work.pageable, work.cpu_ns) == (6 * 10**6, True, 5 * MS)
    assert work.copy_ns == pytest.approx(6 * MS / 7, rel=0.01)  # pageable memory: 7 GB/s
    pinned = sum_host_work([copied(CopyDirection.HOST_TO_DEVICE, 6 * 10**6, pinned=True)], resolve("h100"))
    assert not pinned.pageable
    assert pinned.copy_ns < work.copy_ns / 5


def test_a_step_time_with_notable_copies_or_cpu_work_says_so(gpu, monkeypatch):
    assert "CPU" not in str(max_batch_view(gpu))
    work = HostWork(bytes=32 * MIB, pageable=True, copy_ns=40 * MS, cpu_ns=0.5 * MS)
    monkeypatch.setattr(StandIn, "host_work", work)
    text = " ".join(str(max_batch_view(gpu)).split())
    assert "copies of 32 MiB from pageable CPU memory (40 ms)" in text
    monkeypatch.setattr(StandIn, "host_work", HostWork(cpu_ns=40 * MS))
    assert "the CPU of this machine (40 ms)" in " ".join(str(max_batch_view(gpu)).split())


def max_batch_view(gpu):
    return gpulab.virtual.max_batch(training(gpu, sample=1000), "h100", runner=gpu)


def test_a_batch_that_exceeds_the_memory_of_this_machine_is_not_run(gpu, monkeypatch):
    monkeypatch.setattr(StandIn, "host_work", HostWork(bytes=8 * MIB))
    monkeypatch.setattr(host_work, "allocatable_bytes", lambda: 40 * MIB)
    with pytest.raises(RunError, match="CPU memory") as error:
        max_batch(training(gpu, sample=1), "h100", gpu_factory=gpu)
    assert 'device="cuda"' in error.value.fix
    assert max(batch for sizes in gpu.sizes.values() for batch in sizes) <= 32, "8 MiB a step, 40 MiB free"


def test_an_estimate_becomes_a_run_only_if_it_is_given_a_name():
    torch = pytest.importorskip("torch")
    before = set(gpulab.runs)

    def step(batch):
        torch.nn.Linear(8, 8).cuda()(torch.ones(batch, 8, device="cuda")).sum().backward()

    gpulab.virtual.fits(step, "l4", 4)
    gpulab.virtual.compare_gpus(step, ["l4"], 4)
    assert set(gpulab.runs) == before
    gpulab.virtual.fits(step, "l4", 4, name="the step")
    assert set(gpulab.runs) - before == {"the step"}
    assert str(gpulab.runs["the step"].source) == "virtual L4, estimated"
