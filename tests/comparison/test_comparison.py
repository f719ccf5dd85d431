"""Runs side by side: the ratio, the noise, the prediction kept or missed and why, several runs a side, a story."""

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulab.analysis.kernels.matching import ADDED, CHANGED, OTHER_SIZES, REMOVED, SAME, matched, paired, tally
from gpulab.comparison import Comparison, Story, compare, outcome
from gpulab.errors import RunError
from gpulab.files.ranks import Ranks
from gpulab.rules import Gain, diagnose
from gpulab.run import Gpu, Loader, Machine, Source
from gpulab.tables import ALLOCATOR, HOST_SAMPLES, STALLS, Kind, StallKind
from tests.support.runs.made_runs import (
    MS,
    NO_WORKERS,
    awaited,
    event,
    gpu_series,
    host_sample,
    launched,
    loader_call,
    mark,
    on_gpu,
    run_of,
    stall,
    stepped,
)
from tests.support.runs.made_runs import rows as table_rows


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


def test_a_mended_loader_is_resolved_faster_and_inside_the_prediction():
    seen = compare(recorded(40, jitter=2), recorded(4, loader=Loader(workers=3), jitter=2))
    assert [finding.rule for finding in seen.resolved] == ["no_workers"]
    assert [finding.rule for finding in seen.new] == ["device_bound"]
    assert seen.remaining == ()
    assert seen.above_noise
    assert seen.ratio == pytest.approx(100 / 64, rel=0.05)
    assert seen.ratio_low < seen.ratio < seen.ratio_high
    assert seen.inside is True
    assert seen.why == ""


def test_the_parts_differ_by_as_much_as_the_steps():
    seen = compare(recorded(40), recorded(4))
    assert sum(part.difference_ns for part in seen.parts) == -36 * MS


def test_a_run_compared_with_itself_has_no_difference_above_the_noise():
    seen = compare(recorded(40, jitter=5), recorded(40, jitter=5))
    assert seen.ratio == 1
    assert not seen.above_noise
    assert "noise" in seen.why


def test_a_missed_prediction_says_what_else_happened():
    seen = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3)))
    assert seen.inside is False
    assert "matrix kernels grew by 30 ms" in seen.why
    other_batch = compare(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3, batch_size=64)))
    assert "batch size changed" in other_batch.why


def test_recorded_steps_are_compared_where_unprofiled_ones_are_missing():
    one = run_of(stepped(lambda at: [event(Kind.KERNEL, "k", at, 90)]))
    assert compare(one, one).profiled


def test_a_run_without_steps_cannot_be_compared_and_says_what_to_do():
    with pytest.raises(RunError, match="let it run for at least six steps"):
        compare(recorded(40), run_of(windows=[]))


# Whole nanoseconds.


def mean_ns(runs):
    means = [np.diff(run.mark_rows["start_ns"])[diagnose(run).steps.interior].mean() for run in runs]
    return round(float(np.mean(means)))


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.1, 90), min_size=2, max_size=4), st.integers(0, 10**6))
def test_the_differences_of_the_parts_sum_to_that_of_the_mean_steps(waits_ms, seed):
    runs = [recorded(wait, jitter=3, seed=seed) for wait in waits_ms]
    before, after = runs[: len(runs) // 2], runs[len(runs) // 2 :]
    parts = compare(before, after).parts
    assert sum(part.before_ns for part in parts) == mean_ns(before)
    assert sum(part.after_ns for part in parts) == mean_ns(after)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.floats(0.1, 90), min_size=3, max_size=5))
def test_the_changes_of_a_story_sum_to_what_all_of_them_gave(waits_ms):
    told = compare(*(recorded(wait, jitter=2) for wait in waits_ms))
    assert isinstance(told, Story)
    moved = [after - before for before, after in zip(told.step_ns, told.step_ns[1:], strict=False)]
    assert sum(moved) == told.step_ns[-1] - told.step_ns[0] == told.whole.after_ns - told.whole.before_ns
    assert [(each.before_ns, each.after_ns) for each in told.changes] == list(
        zip(told.step_ns, told.step_ns[1:], strict=False)
    )


def test_a_story_tells_what_each_change_made_shorter():
    told = compare(recorded(40), recorded(4), recorded(4, work_ms=30))
    assert [told.shrunk(change)[0].key for change in (0, 1)] == ["loader", "matmul"]
    assert told.changes[1].ratio == pytest.approx(64 / 34, rel=0.01)
    assert told.whole.ratio == pytest.approx(100 / 34, rel=0.01)


# Repeated runs.


def repeated(wait_ms, levels_ms, **more):
    return [
        recorded(wait_ms, jitter=2, work_ms=60 + level, seed=place, name=f"side {place + 1}", **more)
        for place, level in enumerate(levels_ms)
    ]


def test_of_repeated_runs_the_typical_step_is_the_mean_of_their_medians():
    seen = compare(repeated(0, [0, 10, 20]), repeated(0, [0, 0, 0]))
    assert seen.before_ns == pytest.approx(70 * MS, rel=0.01)
    assert seen.after_ns == pytest.approx(60 * MS, rel=0.01)
    assert [side.name for side in seen.sides] == ["side (1)", "side (2)"]
    assert len(seen.sides[0].runs) == 3


def test_runs_that_differ_among_themselves_are_no_proof_of_a_difference():
    levels = [-6, 7, -8, 9, 0]
    apart = compare(repeated(0, levels), repeated(0, [level + 5 for level in levels]))
    together = compare(repeated(0, [0] * 5), repeated(0, [5] * 5))
    assert not apart.above_noise
    assert together.above_noise
    assert together.ratio_high - together.ratio_low < (apart.ratio_high - apart.ratio_low) / 2


def test_more_repeats_make_an_interval_narrower():
    few, many = (compare(repeated(0, [0] * count), repeated(0, [5] * count)) for count in (1, 5))
    assert many.ratio_high - many.ratio_low < 0.7 * (few.ratio_high - few.ratio_low)


def test_runs_recorded_in_turn_are_known_by_when_they_began():
    levels = [0, 8, 16, 24, 32]
    one, other = repeated(0, levels), repeated(0, [level + 6 for level in levels])
    apart = compare(one, other)
    turns = [
        [dataclasses.replace(run, began_ns=(2 * place + which) * 10**9) for place, run in enumerate(side)]
        for which, side in enumerate((one, other))
    ]
    in_turn = compare(*turns)
    assert not apart.above_noise
    assert in_turn.above_noise
    assert in_turn.ratio == apart.ratio


def test_a_finding_of_most_runs_of_a_side_is_one_of_the_side():
    mended, starved = [recorded(4, loader=Loader(workers=3)) for _ in range(2)], recorded(40)
    assert "no_workers" in {each.rule for each in compare([starved, starved, mended[0]], mended).resolved}
    assert "no_workers" not in {each.rule for each in compare([starved, *mended], mended).resolved}


def test_the_ranks_of_a_job_are_one_side_and_not_repeats():
    ranks = Ranks(tuple(dataclasses.replace(recorded(40, name=f"rank{rank}"), rank=rank) for rank in range(2)))
    assert [len(side.runs) for side in compare(ranks, list(ranks)).sides] == [1, 1]


def test_what_is_no_run_is_refused():
    with pytest.raises(RunError, match="no run to diagnose"):
        compare(recorded(40), [])
    with pytest.raises(RunError, match="fix of one rule lies between two runs"):
        compare(recorded(40), recorded(4), "no_workers", recorded(4))


# Other programs.


def sensed(run, others, cores=2.0, **told):
    """The same run, with other programs that use so many cores by the time in ms; `told` by the time as well."""
    own, samples = 0.0, []
    for at in range(0, int(run.span_ns / MS) + 100, 100):
        load = min(1.0, (1 + others(at)) / cores)
        more = {name: value(at) for name, value in told.items()}
        samples.append(host_sample(at, process_cpu_s=own, main_cpu_s=own, cpu_frac=load, **more))
        own += 0.1 * min(1.0, cores - others(at))
    machine = Machine(cores=int(cores), cores_allowed=cores)
    return dataclasses.replace(run, host_rows=table_rows(HOST_SAMPLES, samples), machine=machine)


def test_steps_that_others_disturbed_are_left_out_and_counted():
    half = recorded(0).span_ns / MS / 2
    quiet = sensed(recorded(0), lambda _: 0.02)
    noisy = sensed(recorded(0), lambda at: 1.0 if at > half else 0.02)
    seen = compare(quiet, noisy)
    left_out, every = seen.left_out[1]
    assert seen.left_out[0][0] == 0
    assert 0.1 * every < left_out < 0.9 * every


def test_a_difference_that_others_may_have_made_is_not_called_one():
    quiet, noisy = sensed(recorded(0), lambda _: 0.02), sensed(recorded(0, work_ms=90), lambda _: 1.0)
    seen = compare(quiet, noisy)
    assert not seen.above_noise
    assert "other programs" in seen.why
    assert re.findall(r"\d+", seen.why) == ["0", "1"]
    assert "contention" in {reason.kind for reason in seen.circumstances}


def test_a_run_that_is_faster_beside_others_is_faster():
    quiet, noisy = sensed(recorded(0, work_ms=240), lambda _: 0.02), sensed(recorded(0), lambda _: 0.5)
    assert compare(quiet, noisy).above_noise


def test_others_on_cores_that_are_to_spare_disturb_nobody():
    quiet, noisy = sensed(recorded(0), lambda _: 0.0, cores=8), sensed(recorded(0, work_ms=90), lambda _: 3.0, cores=8)
    assert compare(quiet, noisy).above_noise


def test_others_beside_which_the_thread_never_waited_disturbed_nobody():
    busy = recorded(0)
    assert compare(sensed(busy, lambda _: 1.0, main_delayed_s=lambda at: 0.0), busy).left_out[0][0] == 0
    waited = sensed(busy, lambda _: 1.0, main_delayed_s=lambda at: 0.3 * at / 1e3)
    quiet = sensed(busy, lambda _: 0.0)
    slower = sensed(recorded(0, work_ms=90), lambda _: 1.0, main_delayed_s=lambda at: 0.3 * at / 1e3)
    assert compare(waited, waited).above_noise is False
    assert compare(quiet, slower).judged is False


def test_others_that_hold_up_the_workers_disturb_a_thread_that_only_waits_for_these():
    told = {"main_delayed_s": lambda at: 0.0, "workers": lambda at: 2.0}
    quiet, noisy = (sensed(recorded(0, work_ms=work), lambda _, n=n: n, **told) for work, n in ((60, 0.0), (90, 1.0)))
    assert compare(quiet, noisy).judged is False


# Why a prediction missed.

MISSED = Gain(step_ns=100 * MS, best_ns=60 * MS, worst_ns=65 * MS, floor_ns=60 * MS, basis="made up")


def kinds(before, after, predicted=MISSED, rule=None):
    return [reason.kind for reason in compare(before, after, rule, predicted=predicted).reasons]


def test_a_prediction_that_held_needs_no_reason():
    assert kinds(recorded(40), recorded(3)) == []
    assert compare(recorded(40), recorded(3), predicted=MISSED).inside is True


def test_contention_is_a_reason():
    before, after = sensed(recorded(40), lambda _: 0.02), sensed(recorded(20), lambda _: 1.0)
    assert kinds(before, after)[0] == "contention"


def test_a_batch_size_that_changed_is_a_reason():
    assert kinds(recorded(40), recorded(4, work_ms=90, loader=Loader(workers=3, batch_size=64)))[0] == "batch_size"


def test_recompiling_is_a_reason():
    stalls = [stall(100 * number, 30, "forward", StallKind.COMPILE) for number in range(8, 58, 2)]
    after = recorded(20, stall_rows=table_rows(STALLS, stalls))
    seen = compare(recorded(40), after, predicted=MISSED)
    told = next(reason for reason in seen.reasons if reason.kind == "recompiles")
    assert "0 times before, " in told.text
    assert told.effect_ns > 5 * MS


def clocked(run, mhz, bits=0):
    gpu = Gpu(index=0, name="Made GPU", sm_clock_max_mhz=1980)
    told = gpu_series(lambda _: {"util_frac": 1.0, "sm_clock_mhz": mhz, "throttle_bits": bits}, count=80, every_ms=50)
    return dataclasses.replace(run, gpu_rows=told, machine=Machine(gpus=(gpu,), cores_allowed=8.0))


def test_lower_clocks_are_a_reason_with_what_held_them_down():
    seen = compare(clocked(recorded(40), 1980), clocked(recorded(10, work_ms=75), 1500, bits=0x4), predicted=MISSED)
    told = next(reason for reason in seen.reasons if reason.kind == "clocks")
    assert re.findall(r"[\d,]+ (?:MHz|%)", told.text) == ["1,980 MHz", "1,500 MHz", "100 %"]
    assert "power limit" in told.text
    assert told.effect_ns == pytest.approx(75 * MS * (1980 / 1500 - 1) * 1500 / 1980, rel=0.6)


def test_another_device_is_a_reason():
    other = dataclasses.replace(recorded(20), source=Source(how="recorded", device="Other GPU"))
    assert "devices" in kinds(recorded(40), other)


def test_a_cause_that_was_lessened_is_a_reason_with_what_is_left():
    seen = compare(recorded(60), recorded(25))
    assert [reason.kind for reason in seen.reasons][:1] == ["lessened"]
    assert "25 ms a step are left of 60 ms" in seen.reasons[0].text


def test_recording_that_costs_more_on_one_side_is_a_reason():
    def heavy(wait_ms, traced):
        run = recorded(wait_ms)
        diagnosis = diagnose(run)
        assert diagnosis.steps.inflation == pytest.approx(1.0, abs=0.05)
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


def test_another_part_that_grew_is_a_reason_and_the_largest_effect_comes_first():
    seen = compare(recorded(40), recorded(10, work_ms=90))
    effects = [abs(reason.effect_ns) for reason in seen.reasons]
    assert "grown" in [reason.kind for reason in seen.reasons]
    assert effects == sorted(effects, reverse=True)


def test_a_step_shorter_than_predicted_is_not_explained_by_what_makes_it_longer():
    slow = Gain(step_ns=100 * MS, best_ns=90 * MS, worst_ns=95 * MS, floor_ns=60 * MS, basis="made up")
    seen = compare(recorded(40), recorded(4, work_ms=30), predicted=slow)
    assert seen.inside is False
    assert all(reason.effect_ns < 0 for reason in seen.reasons)


# Predictions of others, and what is kept of them.


def test_a_prediction_of_the_callers_own_takes_the_place_of_the_findings():
    seen = compare(recorded(40), recorded(4), predicted=MISSED)
    assert seen.predicted is MISSED
    assert seen.acted_on is None


def test_an_outcome_is_the_prediction_beside_the_measured_step_on_one_scale():
    seen = compare(recorded(40), recorded(4), predicted=MISSED)
    kept = outcome(seen, "workers+pin_memory")
    assert kept == outcome(seen, "workers+pin_memory")
    assert (kept.kind, kept.step_ns, kept.best_ns, kept.worst_ns) == ("workers+pin_memory", 100 * MS, 60 * MS, 65 * MS)
    assert kept.predicted_ns == 62.5 * MS
    assert kept.measured_ns == pytest.approx(64 * MS, rel=0.01)
    assert seen.inside is True
    assert kept.device == "Made GPU"
    assert outcome(compare(recorded(40), recorded(4))).kind == "no_workers"


def test_nothing_is_kept_of_a_comparison_without_a_prediction_or_across_devices():
    healthy = run_of(stepped(lambda at: [event(Kind.KERNEL, "ampere_sgemm", at, 100)]))
    compared = compare(healthy, healthy)
    assert isinstance(compared, Comparison)
    assert compared.predicted is None
    assert outcome(compared) is None
    other = dataclasses.replace(recorded(4), source=Source(how="recorded", device="Other GPU"))
    assert outcome(compare(recorded(40), other)) is None


def test_nothing_is_kept_of_a_measurement_that_others_disturbed():
    quiet, noisy = sensed(recorded(0), lambda _: 0.02), sensed(recorded(0, work_ms=90), lambda _: 1.0)
    assert outcome(compare(quiet, noisy, predicted=MISSED)) is None


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
            events += launched(name, at + 1 + 20 * place, dur_ms, number=number, called_ms=at + 20 * place, **shapes)
        return events

    return stepped(step, count=count)


def work(before, after):
    found = (diagnose(run) for run in (before, after))
    return matched(*([(each.run, each.steps, each.ledger)] for each in found))


def statuses(seen):
    return {(match.name, match.sizes): match.status for match in seen.matches}


def test_kernels_are_added_removed_changed_or_the_same():
    before = kernels(("gemm", 10), ("relu", 5), ("norm", 5))
    after = kernels(("gemm", 10), ("relu", 2), ("fused", 4))
    seen = work(before, after)
    assert {name: status for (name, _), status in statuses(seen).items()} == {
        "gemm": SAME,
        "relu": CHANGED,
        "norm": REMOVED,
        "fused": ADDED,
    }
    assert (seen.before_ns, seen.after_ns) == (20 * MS, 16 * MS)
    assert sum(match.difference_ns for match in seen.matches) == -4 * MS


def test_one_kernel_at_two_sizes_is_two_and_other_sizes_find_one_another():
    before = kernels(("gemm", 10, [[8, 8], [8, 8]]), ("gemm", 4, [[2, 2], [2, 2]]))
    after = kernels(("gemm", 10, [[8, 8], [8, 8]]), ("gemm", 2, [[1, 2], [2, 2]]))
    assert statuses(work(before, after)) == {
        ("gemm", "[[8, 8], [8, 8]]"): SAME,
        ("gemm", OTHER_SIZES): CHANGED,
    }


def test_how_often_a_kernel_runs_counts_as_a_change():
    seen = work(kernels(("gemm", 10)), kernels(("gemm", 5), ("gemm", 5)))
    (match,) = seen.matches
    assert (match.status, match.before_count, match.after_count, match.difference_ns) == (CHANGED, 1, 2, 0)


def with_copies(*began_ms, called_ms=lambda step: 100 * step + 1, count=6):
    """A kernel in each step, and copies that each step calls for one of and that begin when they can."""
    events = kernels_of(("gemm", 10), count=count)
    for step, at in enumerate(began_ms):
        events.append(event(Kind.COPY_CALL, "cudaMemcpyAsync", called_ms(step), 0.01, correlation=9000 + step))
        events.append(event(Kind.MEMCPY, "Memcpy HtoD", at, 2, correlation=9000 + step, stream=13))
    return on_gpu(events)


def test_copies_that_run_ahead_count_in_the_step_that_asked_for_them():
    """Five begin within the four interior steps of one run, four in the other's; each step asks for one."""
    in_time = with_copies(*(100 * step + 2 for step in range(6)))
    ahead = with_copies(3, 101, 199, 297, 395, 499.5, called_ms=lambda step: 99.5 * step)
    (copies,) = [match for match in work(in_time, ahead).matches if match.name == "Memcpy HtoD"]
    assert (copies.before_count, copies.after_count, copies.status) == (1, 1, SAME)


def test_what_happens_now_and_then_is_no_change_where_it_falls_beside_the_steps_looked_at():
    never = with_copies(count=12)
    once = with_copies(552, called_ms=lambda step: 551, count=12)
    twice = with_copies(552, 653, called_ms=lambda step: 551 + 100 * step, count=12)
    for before, after in ((never, once), (once, never), (once, twice)):
        assert [match.status for match in work(before, after).matches] == [SAME, SAME]


def test_what_comes_once_more_in_every_step_is_a_change_however_few_the_steps():
    one, two = {("copy", ""): (1.0, 5.0)}, {("copy", ""): (2.0, 5.0)}
    assert [match.status for match in paired(one, two, slack=0.5).matches] == [CHANGED]
    assert [match.status for match in paired({}, one, slack=0.5).matches] == [ADDED]


def test_operators_of_a_cpu_are_matched_by_their_own_time():
    def run(inner_ms):
        return run_of(
            stepped(
                lambda at: [
                    event(Kind.OP, "aten::linear", at, 60),
                    event(Kind.OP, "aten::addmm", at + 5, inner_ms),
                ]
            )
        )

    seen = work(run(40), run(20))
    assert seen.on == "operators"
    told = {match.name: (match.before_ns, match.after_ns) for match in seen.matches}
    assert told == {"aten::linear": (20 * MS, 40 * MS), "aten::addmm": (40 * MS, 20 * MS)}


def test_a_gpu_run_and_a_cpu_run_have_no_kernels_to_match():
    cpu = run_of(stepped(lambda at: [event(Kind.OP, "aten::addmm", at, 60)]))
    assert work(kernels(("gemm", 10)), cpu) is None


TALLIES = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "1", "2"])),
    st.tuples(st.integers(1, 9).map(float), st.integers(0, 10**9).map(float)),
    max_size=6,
)


@given(TALLIES, TALLIES)
def test_every_kernel_is_in_exactly_one_match(before, after):
    seen = paired(before, after)
    assert seen.before_ns == sum(ns for _, ns in before.values())
    assert seen.after_ns == sum(ns for _, ns in after.values())
    assert sum(match.before_count for match in seen.matches) == sum(count for count, _ in before.values())
    assert {match.status for match in paired(before, before).matches} <= {SAME}


def test_a_tally_is_of_one_step():
    found = diagnose(kernels(("gemm", 10), ("relu", 5)))
    assert tally(found.run, found.steps, found.ledger) == {("gemm", ""): (1.0, 10 * MS), ("relu", ""): (1.0, 5 * MS)}


# Memory and energy.


def allocator(*peaks, at_ms=50):
    names = [column.name for column in ALLOCATOR.columns]
    rows = [
        dict.fromkeys(names, 0) | {"at_ns": at_ms * n * MS, "peak_allocated_bytes": peak}
        for n, peak in enumerate(peaks)
    ]
    return table_rows(ALLOCATOR, rows)


def test_energy_of_a_step_is_by_the_counter_or_else_by_the_power():
    def measured(**told):
        samples = gpu_series(
            lambda number: {name: value(number) for name, value in told.items()}, count=100, every_ms=50
        )
        return dataclasses.replace(recorded(40), gpu_rows=samples)

    counted, read = measured(energy_j=lambda n: 1000 + 20.0 * n), measured(power_w=lambda _: 200.0)
    one, other = compare(counted, read).usage
    assert one.power_w == pytest.approx(400)
    assert other.power_w == pytest.approx(200)
    assert one.step_j == pytest.approx(400 * 0.1, rel=0.01)


def test_what_was_not_measured_is_not_zero():
    one, other = compare(recorded(40), recorded(4)).usage
    assert one == other
    assert set(dataclasses.asdict(one).values()) == {None}


def test_a_peak_of_an_earlier_cell_is_not_taken_for_one_of_this_run():
    grew, inherited = (
        dataclasses.replace(recorded(40), allocator_rows=allocator(*peaks)) for peaks in ((5, 9), (9, 9))
    )
    before, after = compare(grew, inherited).usage
    assert before.allocated_bytes == 9
    assert after.allocated_bytes is None
