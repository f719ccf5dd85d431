"""Runs side by side: the ratio, the noise, the prediction kept or missed and why, several runs a side, a story."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.kernels.matching import (
    ADDED,
    CHANGED,
    OTHER_SIZES,
    REMOVED,
    SAME,
    match_tallies,
    match_work,
    tally,
)
from gpulab.comparison import Comparison, Story, compare, measured_prediction
from gpulab.comparison.comparison import _noise_of_other_programs
from gpulab.comparison.interval import Ratio
from gpulab.errors import RunError
from gpulab.files.ranks import Ranks
from gpulab.rules import Gain, diagnose
from gpulab.run import Gpu, Loader, Machine, Source
from gpulab.tables import ALLOCATOR, HOST_SAMPLES, STALLS, EventKind, StallKind
from tests.support.runs.made_runs import (
    MS,
    NO_WORKERS,
    awaited,
    event,
    gpu_series,
    host_sample,
    launched_kernel,
    loader_call,
    mark,
    on_gpu,
    run_of,
    stall,
    stepped,
)
from tests.support.runs.made_runs import rows as table_rows
from tests.support.tiers import examples


def recorded(wait_ms, loader=NO_WORKERS, jitter=0.0, work_ms=60, seed=3, **more):
    random = np.random.default_rng(seed)
    events, marks, at = [], [], 0.0
    for _ in range(60):
        step_ms = wait_ms + work_ms + float(random.uniform(-jitter, jitter))
        events.append(loader_call(at, wait_ms, workers=loader.workers))
        events += awaited("ampere_sgemm", at + wait_ms, step_ms - wait_ms, number=len(events))
        marks.append(mark(at, wait_ms))
        at += step_ms
    return run_of(events, marks=marks, loaders=[loader], windows=[(at * 0.4, at * 0.9)], **more)


def test_a_fixed_loader_is_resolved_and_in_the_predicted_range():
    result = compare(recorded(40, jitter=2), recorded(4, loader=Loader(workers=3), jitter=2))
    assert [finding.rule for finding in result.resolved] == ["no_workers"]
    assert [finding.rule for finding in result.new] == ["device_bound"]
    assert result.remaining == ()
    assert result.above_noise
    assert result.ratio == pytest.approx(100 / 64, rel=0.05)
    assert result.ratio_low < result.ratio < result.ratio_high
    assert result.in_predicted_range is True
    assert result.why == ""


@pytest.mark.parametrize("outcome", ["ValueError", "killed"])
def test_a_run_that_crashed_resolves_no_finding(outcome):
    crashed = recorded(0.5, outcome=outcome)
    result = compare(recorded(40), crashed)
    assert result.resolved == ()
    assert [finding.rule for finding in result.undecided] == ["no_workers"]
    assert not result.prediction.is_of_change
    assert compare(crashed, recorded(40)).new == ()


@pytest.mark.parametrize("outcome", ["ok", "KeyboardInterrupt"])
def test_a_run_that_completed_or_that_the_user_stopped_resolves_findings(outcome):
    result = compare(recorded(40), recorded(0.5, outcome=outcome))
    assert [finding.rule for finding in result.resolved] == ["no_workers"]
    assert result.undecided == ()


def test_a_run_that_crashed_before_its_first_step_names_the_error():
    crashed = dataclasses.replace(run_of([]), outcome="ValueError")
    with pytest.raises(RunError, match="no steps to compare") as error:
        compare(recorded(40), crashed)
    assert error.value.why == "it crashed (ValueError) before its first complete step"


def test_a_loop_that_still_waits_for_data_with_too_few_workers_has_the_same_cause_as_without_workers():
    result = compare(recorded(40), recorded(20, loader=Loader(workers=2)))
    assert result.resolved == ()
    assert [finding.rule for finding in result.remaining] == ["too_few_workers"]
    assert result.before_of(result.remaining[0]).rule == "no_workers"


def test_differences_of_parts_sum_to_the_difference_of_steps():
    result = compare(recorded(40), recorded(4))
    assert sum(part.difference_ns for part in result.parts) == -36 * MS


def test_a_run_compared_with_itself_has_no_difference_above_the_noise():
    result = compare(recorded(40, jitter=5), recorded(40, jitter=5))
    assert result.ratio == 1
    assert not result.above_noise
    assert "noise" in result.why


def test_a_missed_prediction_has_reasons():
    result = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3)), "no_workers")
    assert result.in_predicted_range is False
    assert (result.reasons[0].kind, result.reasons[0].effect_ns) == ("other_part_grew", 30 * MS)
    other_batch = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3, batch_size=64)), "no_workers")
    assert other_batch.reasons[0].kind == "batch_size"


def test_recorded_steps_are_compared_if_unprofiled_ones_are_missing():
    one = run_of(stepped(lambda at: [event(EventKind.KERNEL, "k", at, 90)]))
    assert compare(one, one).profiled


def test_comparing_a_run_without_steps_raises_an_error_with_a_fix():
    with pytest.raises(RunError, match="twelve steps"):
        compare(recorded(40), run_of(windows=[]))


# Whole nanoseconds.


@examples(10)
@given(st.lists(st.floats(0.1, 90), min_size=2, max_size=4), st.integers(0, 10**6))
def test_the_parts_sum_to_the_compared_step_times(waits_ms, seed):
    runs = [recorded(wait, jitter=3, seed=seed) for wait in waits_ms]
    before, after = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    result = compare(before, after)
    assert sum(part.before_ns for part in result.parts) == result.before_ns
    assert sum(part.after_ns for part in result.parts) == result.after_ns


@examples(10)
@given(st.lists(st.floats(0.1, 90), min_size=3, max_size=5))
def test_the_changes_of_a_story_sum_to_the_total_change(waits_ms):
    story = compare(*(recorded(wait, jitter=2) for wait in waits_ms))
    assert isinstance(story, Story)
    differences = [after - before for before, after in zip(story.step_ns, story.step_ns[1:], strict=False)]
    assert sum(differences) == story.step_ns[-1] - story.step_ns[0] == story.overall.after_ns - story.overall.before_ns
    assert [(each.before_ns, each.after_ns) for each in story.changes] == list(
        zip(story.step_ns, story.step_ns[1:], strict=False)
    )


def test_a_story_lists_the_parts_that_each_change_shortened():
    story = compare(recorded(40), recorded(4), recorded(4, work_ms=30))
    assert [story.shortened_parts(change)[0].key for change in (0, 1)] == ["loader", "matmul"]
    assert story.changes[1].ratio == pytest.approx(64 / 34, rel=0.01)
    assert story.overall.ratio == pytest.approx(100 / 34, rel=0.01)


# Repeated runs.


def repeated(wait_ms, levels_ms, **more):
    return [
        recorded(wait_ms, jitter=2, work_ms=60 + level, seed=place, name=f"side {place + 1}", **more)
        for place, level in enumerate(levels_ms)
    ]


def test_the_typical_step_of_repeated_runs_is_the_mean_of_medians():
    result = compare(repeated(0, [0, 10, 20]), repeated(0, [0, 0, 0]))
    assert result.before_ns == pytest.approx(70 * MS, rel=0.01)
    assert result.after_ns == pytest.approx(60 * MS, rel=0.01)
    assert [side.name for side in result.sides] == ["side (1)", "side (2)"]
    assert len(result.sides[0].runs) == 3


def test_varying_repeated_runs_do_not_prove_a_difference():
    levels = [-6, 7, -8, 9, 0]
    result = compare(repeated(0, levels), repeated(0, [level + 5 for level in levels]))
    together = compare(repeated(0, [0] * 5), repeated(0, [5] * 5))
    assert not result.above_noise
    assert together.above_noise
    assert together.ratio_high - together.ratio_low < (result.ratio_high - result.ratio_low) / 2


def test_more_repeats_narrow_the_interval():
    few, many = (compare(repeated(0, [0] * count), repeated(0, [5] * count)) for count in (1, 5))
    assert many.ratio_high - many.ratio_low < 0.7 * (few.ratio_high - few.ratio_low)


def test_alternating_runs_are_recognised_by_start_times():
    levels = [0, 8, 16, 24, 32]
    one, other = repeated(0, levels), repeated(0, [level + 6 for level in levels])
    separate = compare(one, other)
    turns = [
        [dataclasses.replace(run, began_ns=(2 * place + which) * 10**9) for place, run in enumerate(side)]
        for which, side in enumerate((one, other))
    ]
    in_turn = compare(*turns)
    assert not separate.above_noise
    assert in_turn.above_noise
    assert in_turn.ratio == separate.ratio


def test_a_finding_of_most_runs_is_a_finding_of_the_side():
    fixed, starved = [recorded(4, loader=Loader(workers=3)) for _ in range(2)], recorded(40)
    assert "no_workers" in {each.rule for each in compare([starved, starved, fixed[0]], fixed).resolved}
    assert "no_workers" not in {each.rule for each in compare([starved, *fixed], fixed).resolved}


def test_the_ranks_of_a_job_are_one_side_and_not_repeats():
    ranks = Ranks(tuple(dataclasses.replace(recorded(40, name=f"rank{rank}"), rank=rank) for rank in range(2)))
    assert [len(side.runs) for side in compare(ranks, list(ranks)).sides] == [1, 1]


def test_invalid_arguments_raise_run_error():
    with pytest.raises(RunError, match="diagnose"):
        compare(recorded(40), [])
    with pytest.raises(RunError, match="3 runs"):
        compare(recorded(40), recorded(4), "no_workers", recorded(4))


# Other programs.


def sensed(run, others, cores=2.0, **columns):
    """The same run, with other programs that use so many cores by the time in ms; `told` by the time as well."""
    cpu_s, samples = 0.0, []
    for at in range(0, int(run.span_ns / MS) + 100, 100):
        load = min(1.0, (1 + others(at)) / cores)
        more = {name: value(at) for name, value in columns.items()}
        samples.append(host_sample(at, process_cpu_s=cpu_s, main_cpu_s=cpu_s, cpu_frac=load, **more))
        cpu_s += 0.1 * min(1.0, cores - others(at))
    machine = Machine(cores=int(cores), cores_allowed=cores)
    return dataclasses.replace(run, host_rows=table_rows(HOST_SAMPLES, samples), machine=machine)


def test_steps_disturbed_by_other_programs_are_excluded_and_counted():
    half = recorded(0).span_ns / MS / 2
    quiet = sensed(recorded(0), lambda _: 0.02)
    noisy = sensed(recorded(0), lambda at: 1.0 if at > half else 0.02)
    result = compare(quiet, noisy)
    disturbed, total = result.disturbed_steps[1]
    assert result.disturbed_steps[0][0] == 0
    assert 0.1 * total < disturbed < 0.9 * total


def test_a_difference_explained_by_other_programs_does_not_count():
    quiet, noisy = sensed(recorded(0), lambda _: 0.02), sensed(recorded(0, work_ms=90), lambda _: 1.0)
    result = compare(quiet, noisy)
    assert not result.above_noise
    assert "other programs" in result.why
    assert re.findall(r"\d+", result.why) == ["0", "1"]
    assert "contention" in {reason.kind for reason in result.circumstances}


def test_other_programs_do_not_hide_that_the_devices_differ():
    quiet, noisy = sensed(recorded(0), lambda _: 0.02), sensed(recorded(0, work_ms=90), lambda _: 1.0)
    elsewhere = dataclasses.replace(noisy, source=dataclasses.replace(noisy.source, device="another GPU"))
    why = compare(quiet, elsewhere).why
    assert "different devices" in why
    assert "other programs" in why


def test_a_run_that_is_faster_despite_other_programs_is_faster():
    quiet, noisy = sensed(recorded(0, work_ms=240), lambda _: 0.02), sensed(recorded(0), lambda _: 0.5)
    assert compare(quiet, noisy).above_noise


def test_other_programs_on_free_cores_do_not_disturb():
    quiet, noisy = sensed(recorded(0), lambda _: 0.0, cores=8), sensed(recorded(0, work_ms=90), lambda _: 3.0, cores=8)
    assert compare(quiet, noisy).above_noise


def test_other_programs_do_not_disturb_a_thread_that_never_waited():
    busy = recorded(0)
    assert compare(sensed(busy, lambda _: 1.0, main_delayed_s=lambda at: 0.0), busy).disturbed_steps[0][0] == 0
    waited = sensed(busy, lambda _: 1.0, main_delayed_s=lambda at: 0.3 * at / 1e3)
    quiet = sensed(busy, lambda _: 0.0)
    slower = sensed(recorded(0, work_ms=90), lambda _: 1.0, main_delayed_s=lambda at: 0.3 * at / 1e3)
    assert compare(waited, waited).above_noise is False
    assert compare(quiet, slower).conclusive is False


def test_other_programs_that_slow_the_workers_disturb_the_main_thread():
    columns = {"main_delayed_s": lambda at: 0.0, "workers": lambda at: 2.0}
    quiet, noisy = (
        sensed(recorded(0, work_ms=work), lambda _, n=n: n, **columns) for work, n in ((60, 0.0), (90, 1.0))
    )
    assert compare(quiet, noisy).conclusive is False


# Why a prediction missed.

MISSED = Gain(step_ns=100 * MS, best_ns=60 * MS, worst_ns=65 * MS, floor_ns=60 * MS, basis="made up")


def kinds(before, after, predicted=MISSED, rule=None):
    return [reason.kind for reason in compare(before, after, rule, predicted=predicted).reasons]


def test_a_correct_prediction_has_no_reasons():
    assert kinds(recorded(40), recorded(3)) == []
    assert compare(recorded(40), recorded(3), predicted=MISSED).in_predicted_range is True


def test_contention_is_a_reason():
    before, after = sensed(recorded(40), lambda _: 0.02), sensed(recorded(20), lambda _: 1.0)
    assert kinds(before, after)[0] == "contention"


def test_a_batch_size_that_changed_is_a_reason():
    assert kinds(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3, batch_size=64)))[0] == "batch_size"


def test_recompiling_is_a_reason():
    stalls = [stall(100 * number, 30, "forward", StallKind.COMPILE) for number in range(8, 58, 2)]
    after = recorded(20, stall_rows=table_rows(STALLS, stalls))
    result = compare(recorded(40), after, predicted=MISSED)
    recompiles = next(reason for reason in result.reasons if reason.kind == "recompiles")
    assert re.findall(r"\d+ time", recompiles.text)[0] == "0 time"
    assert recompiles.effect_ns > 5 * MS


def clocked(run, mhz, bits=0):
    gpu = Gpu(index=0, name="Made GPU", sm_clock_max_mhz=1980)
    gpu_rows = gpu_series(
        lambda _: {"util_frac": 1.0, "sm_clock_mhz": mhz, "throttle_bits": bits}, count=80, every_ms=50
    )
    return dataclasses.replace(run, gpu_rows=gpu_rows, machine=Machine(gpus=(gpu,), cores_allowed=8.0))


def test_lower_clocks_are_a_reason_with_the_throttle_cause():
    result = compare(clocked(recorded(40), 1980), clocked(recorded(10, work_ms=75), 1500, bits=0x4), predicted=MISSED)
    clocks = next(reason for reason in result.reasons if reason.kind == "clocks")
    assert re.findall(r"[\d,]+ (?:MHz|%)", clocks.text) == ["1,980 MHz", "1,500 MHz", "100 %"]
    assert "power limit" in clocks.text
    assert clocks.effect_ns == pytest.approx(75 * MS * (1980 / 1500 - 1) * 1500 / 1980, rel=0.6)


def test_another_device_is_a_reason():
    other = dataclasses.replace(recorded(20), source=Source(how="recorded", device="Other GPU"))
    assert "devices" in kinds(recorded(40), other)


def test_a_reduced_cause_is_a_reason_with_the_remaining_time():
    result = compare(recorded(60), recorded(25), "no_workers")
    assert [reason.kind for reason in result.reasons][:1] == ["cause_remains"]
    assert re.findall(r"\d+ ms", result.reasons[0].text) == ["25 ms", "60 ms"]


def test_higher_profiler_overhead_on_one_side_is_a_reason():
    def heavy(wait_ms, traced):
        run = recorded(wait_ms)
        diagnosis = diagnose(run)
        assert diagnosis.steps.profiler_overhead == pytest.approx(1.0, abs=0.05)
        return slowed_while_recorded(wait_ms, traced)

    assert "profiler" in kinds(heavy(40, 1.0), heavy(20, 1.6))


def slowed_while_recorded(wait_ms, times):
    events, marks, at = [], [], 0.0
    bounds = []
    for number in range(60):
        step_ms = (wait_ms + 60) * (times if 24 <= number < 54 else 1)
        bounds.append(at)
        events.append(loader_call(at, wait_ms))
        events += awaited("ampere_sgemm", at + wait_ms, step_ms - wait_ms, number=len(events))
        marks.append(mark(at, wait_ms))
        at += step_ms
    return run_of(events, marks=marks, loaders=[NO_WORKERS], windows=[(bounds[24], bounds[54])])


def test_a_part_that_grew_is_a_reason_and_the_largest_effect_comes_first():
    result = compare(recorded(40), recorded(10, work_ms=90), "no_workers")
    effects = [abs(reason.effect_ns) for reason in result.reasons]
    assert "other_part_grew" in [reason.kind for reason in result.reasons]
    assert effects == sorted(effects, reverse=True)


def test_a_faster_step_than_predicted_is_not_explained_by_slowdowns():
    slow = Gain(step_ns=100 * MS, best_ns=90 * MS, worst_ns=95 * MS, floor_ns=60 * MS, basis="made up")
    result = compare(recorded(40), recorded(4, work_ms=30), predicted=slow)
    assert result.in_predicted_range is False
    assert all(reason.effect_ns < 0 for reason in result.reasons)


# Predictions of others, and what is kept of them.


def test_a_prediction_of_the_caller_replaces_that_of_the_finding():
    result = compare(recorded(40), recorded(4), predicted=MISSED)
    assert result.predicted is MISSED
    assert result.acted_on is None


def test_an_outcome_has_prediction_and_measurement_on_one_scale():
    result = compare(recorded(40), recorded(4), predicted=MISSED)
    prediction = measured_prediction(result, "workers+pin_memory")
    assert prediction == measured_prediction(result, "workers+pin_memory")
    assert (prediction.kind, prediction.step_ns, prediction.best_ns, prediction.worst_ns) == (
        "workers+pin_memory",
        100 * MS,
        60 * MS,
        65 * MS,
    )
    assert prediction.predicted_ns == 62.5 * MS
    assert prediction.measured_ns == pytest.approx(64 * MS, rel=0.01)
    assert result.in_predicted_range is True
    assert prediction.device == "Made GPU"
    assert measured_prediction(compare(recorded(40), recorded(4), "no_workers")).kind == "no_workers"


def test_a_comparison_without_prediction_or_across_devices_has_no_outcome():
    healthy = run_of(stepped(lambda at: [event(EventKind.KERNEL, "ampere_sgemm", at, 100)]))
    compared = compare(healthy, healthy)
    assert isinstance(compared, Comparison)
    assert compared.predicted is None
    assert measured_prediction(compared) is None
    other = dataclasses.replace(recorded(4), source=Source(how="recorded", device="Other GPU"))
    assert measured_prediction(compare(recorded(40), other)) is None


def test_a_disturbed_measurement_has_no_outcome():
    quiet, noisy = sensed(recorded(0), lambda _: 0.02), sensed(recorded(0, work_ms=90), lambda _: 1.0)
    assert measured_prediction(compare(quiet, noisy, predicted=MISSED)) is None


# Kernels and operators.


def kernels(*steps_of):
    """A run whose every step has these kernels: name, ms, sizes."""
    return on_gpu(kernels_of(*steps_of))


def kernels_of(*steps_of, count=6):
    """The events of such a run."""

    def step(at):
        events = []
        for place, (name, dur_ms, *sizes) in enumerate(steps_of):
            number = round(at * 10) + place + 1
            shapes = {"op": "aten::mm", "shapes": sizes[0], "dtypes": ["float"]} if sizes else {}
            events += launched_kernel(
                name, at + 1 + 20 * place, dur_ms, number=number, called_ms=at + 20 * place, **shapes
            )
        return events

    return stepped(step, count=count)


def work(before, after):
    diagnoses = (diagnose(run) for run in (before, after))
    return match_work(*([(each.run, each.steps, each.ledger)] for each in diagnoses))


def statuses(changes):
    return {(match.name, match.sizes): match.status for match in changes.matches}


def test_kernels_are_added_removed_changed_or_the_same():
    before = kernels(("gemm", 10), ("relu", 5), ("norm", 5))
    after = kernels(("gemm", 10), ("relu", 2), ("fused", 4))
    changes = work(before, after)
    assert {name: status for (name, _), status in statuses(changes).items()} == {
        "gemm": SAME,
        "relu": CHANGED,
        "norm": REMOVED,
        "fused": ADDED,
    }
    assert (changes.before_ns, changes.after_ns) == (20 * MS, 16 * MS)
    assert sum(match.difference_ns for match in changes.matches) == -4 * MS


def test_a_kernel_at_two_sizes_is_two_rows_and_other_sizes_match_by_name():
    before = kernels(("gemm", 10, [[8, 8], [8, 8]]), ("gemm", 4, [[2, 2], [2, 2]]))
    after = kernels(("gemm", 10, [[8, 8], [8, 8]]), ("gemm", 2, [[1, 2], [2, 2]]))
    assert statuses(work(before, after)) == {
        ("gemm", "[[8, 8], [8, 8]]"): SAME,
        ("gemm", OTHER_SIZES): CHANGED,
    }


def test_a_different_kernel_count_is_a_change():
    changes = work(kernels(("gemm", 10)), kernels(("gemm", 5), ("gemm", 5)))
    (match,) = changes.matches
    assert (match.status, match.before_count, match.after_count, match.difference_ns) == (CHANGED, 1, 2, 0)


def with_copies(*began_ms, called_ms=lambda step: 100 * step + 1, count=6):
    """A kernel in each step, and copies that each step calls for one of and that begin when they can."""
    events = kernels_of(("gemm", 10), count=count)
    for step, at in enumerate(began_ms):
        events.append(event(EventKind.COPY_CALL, "cudaMemcpyAsync", called_ms(step), 0.01, correlation=9000 + step))
        events.append(event(EventKind.MEMCPY, "Memcpy HtoD", at, 2, correlation=9000 + step, stream=13))
    return on_gpu(events)


def test_copies_that_run_ahead_count_in_the_step_that_launched_them():
    """Five begin within the four interior steps of one run, four in the other's; each step asks for one."""
    in_time = with_copies(*(100 * step + 2 for step in range(6)))
    ahead = with_copies(3, 101, 199, 297, 395, 499.5, called_ms=lambda step: 99.5 * step)
    (copies,) = [match for match in work(in_time, ahead).matches if match.name == "Memcpy HtoD"]
    assert (copies.before_count, copies.after_count, copies.status) == (1, 1, SAME)


def test_rare_work_outside_the_interior_steps_is_no_change():
    never = with_copies(count=12)
    once = with_copies(552, called_ms=lambda step: 551, count=12)
    twice = with_copies(552, 653, called_ms=lambda step: 551 + 100 * step, count=12)
    for before, after in ((never, once), (once, never), (once, twice)):
        assert [match.status for match in work(before, after).matches] == [SAME, SAME]


def test_one_more_kernel_in_every_step_is_a_change_with_few_steps():
    one, two = {("copy", ""): (1.0, 5.0)}, {("copy", ""): (2.0, 5.0)}
    assert [match.status for match in match_tallies(one, two, slack=0.5).matches] == [CHANGED]
    assert [match.status for match in match_tallies({}, one, slack=0.5).matches] == [ADDED]


def test_cpu_operators_are_matched_by_self_time():
    def run(inner_ms):
        return run_of(
            stepped(
                lambda at: [
                    event(EventKind.OP, "aten::linear", at, 60),
                    event(EventKind.OP, "aten::addmm", at + 5, inner_ms),
                ]
            )
        )

    changes = work(run(40), run(20))
    assert changes.unit == "operators"
    times = {match.name: (match.before_ns, match.after_ns) for match in changes.matches}
    assert times == {"aten::linear": (20 * MS, 40 * MS), "aten::addmm": (40 * MS, 20 * MS)}


def test_a_gpu_run_and_a_cpu_run_have_no_kernels_to_match():
    cpu = run_of(stepped(lambda at: [event(EventKind.OP, "aten::addmm", at, 60)]))
    assert work(kernels(("gemm", 10)), cpu) is None


TALLIES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "1", "2"])),
    st.tuples(st.integers(1, 9).map(float), st.integers(0, 10**9).map(float)),
    max_size=6,
)


@given(TALLIES, TALLIES)
def test_every_kernel_is_in_exactly_one_match(before, after):
    changes = match_tallies(before, after)
    assert changes.before_ns == sum(ns for _, ns in before.values())
    assert changes.after_ns == sum(ns for _, ns in after.values())
    assert sum(match.before_count for match in changes.matches) == sum(count for count, _ in before.values())
    assert {match.status for match in match_tallies(before, before).matches} <= {SAME}


def test_a_tally_is_per_step():
    diagnosis = diagnose(kernels(("gemm", 10), ("relu", 5)))
    assert tally(diagnosis.run, diagnosis.steps, diagnosis.ledger) == {
        ("gemm", ""): (1.0, 10 * MS),
        ("relu", ""): (1.0, 5 * MS),
    }


# Memory and energy.


def allocator(*peaks, at_ms=50):
    names = [column.name for column in ALLOCATOR.columns]
    rows = [
        dict.fromkeys(names, 0) | {"at_ns": at_ms * n * MS, "peak_allocated_bytes": peak}
        for n, peak in enumerate(peaks)
    ]
    return table_rows(ALLOCATOR, rows)


def test_energy_per_step_comes_from_the_counter_else_from_power():
    def measured(**columns):
        samples = gpu_series(
            lambda number: {name: value(number) for name, value in columns.items()}, count=100, every_ms=50
        )
        return dataclasses.replace(recorded(40), gpu_rows=samples)

    counted, read = measured(energy_j=lambda n: 1000 + 20.0 * n), measured(power_w=lambda _: 200.0)
    one, other = compare(counted, read).usage
    assert one.power_w == pytest.approx(400)
    assert other.power_w == pytest.approx(200)
    assert one.step_j == pytest.approx(400 * 0.1, rel=0.01)


def test_unmeasured_figures_are_not_zero():
    one, other = compare(recorded(40), recorded(4)).usage
    assert one == other
    assert set(dataclasses.asdict(one).values()) == {None}


def test_a_memory_peak_of_an_earlier_cell_does_not_count():
    grew, inherited = (
        dataclasses.replace(recorded(40), allocator_rows=allocator(*peaks)) for peaks in ((5, 9), (9, 9))
    )
    before, after = compare(grew, inherited).usage
    assert before.allocated_bytes == 9
    assert after.allocated_bytes is None


@pytest.mark.parametrize(("cores", "words"), [(1.0, "1 core at"), (1.04, "1 core at"), (1.3, "1.3 cores at")])
def test_one_core_of_other_programs_is_singular(cores, words):
    uncertain = Ratio(value=1.1, low=0.9, high=1.3, sure_low=0.8, sure_high=1.4, between_runs_frac=0.01)
    assert words in _noise_of_other_programs(uncertain, cores)
