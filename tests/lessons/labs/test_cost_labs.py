"""Lesson 19: prices and plans, power limits, measured epochs and waits, CO2 and checkpoints."""

import itertools
import math
import statistics

import numpy as np
import pytest

from gpulab.lessons.labs.machine.cost import epoch_meter, power_caps, rental, when_to_run
from gpulab.virtual.memory_fit.fitting import GpuComparison

# Prices and plans.


def second_gpu_pays(speedup, gpu, other):
    return speedup > (2 * gpu + other) / (gpu + other)


def test_second_gpu_condition_agrees_with_all_costs():
    result = rental.check_condition(second_gpu_pays)
    assert (result.cases, result.wrong) == (237, 0)
    assert 0.3 < result.paying / result.cases < 0.7  # neither answer is right by default


@pytest.mark.parametrize(
    "wrong",
    [
        lambda speedup, gpu, other: True,
        lambda speedup, gpu, other: False,
        lambda speedup, gpu, other: speedup > 1.5,
        lambda speedup, gpu, other: speedup >= 2,
    ],
)
def test_popular_conditions_are_wrong(wrong):
    assert rental.check_condition(wrong).wrong > 20


def test_job_cost_by_hand():
    assert rental.job_cost(2, 1.6, 1.5, 1.0, 8) == pytest.approx(20)  # 4 dollars an hour for 5 hours


def test_no_plan_in_time_is_cheaper_than_the_target():
    plans = [
        rental.TrainingPlan(gpu=gpu, gpus=gpus, workers=workers, decode_once=decode_once)
        for gpu in rental.PRICES_PER_H
        for gpus in (1, 2, 3, 4, 6, 8, 16)
        for workers in (1, 2, 4, 8, 16)
        for decode_once in (False, True)
    ]
    cheapest = min((plan for plan in plans if plan.in_time), key=lambda plan: plan.cost)
    assert (cheapest.gpu, cheapest.gpus, cheapest.decode_once) == ("rtx4090", 2, True)
    assert math.ceil(cheapest.cost) == 24


def test_plan_is_as_slow_as_its_slowest_part():
    assert rental.TrainingPlan(gpu="b200", workers=4).epoch_s == 10_000 / 4
    assert rental.TrainingPlan(gpu="b200", workers=100).epoch_s == 10_000 / 8  # no more workers than cores
    assert rental.TrainingPlan(gpu="b200", workers=8, decode_once=True).epoch_s == 304
    assert rental.TrainingPlan(gpu="b200", gpus=4, workers=8, decode_once=True).epoch_s == pytest.approx(
        304 / (4 * 0.81)
    )


def test_ranking_of_no_gpus_is_empty():
    assert rental.rank_gpus(GpuComparison(batch=1, candidates=()), lambda per_s, price: price) == ()


# Power limits.


def model_w(clock):
    idle, full = power_caps.IDLE_W, power_caps.FULL_W
    return idle + (full - idle) * clock * power_caps.voltage(clock) ** 2


def test_recorded_sweeps():
    joules = {reading.cap_w: reading.joules for reading in power_caps.RESNET50}
    assert min(joules, key=joules.get) == 150
    assert joules[250] - joules[150] == pytest.approx(0.0484 * 3.6e6, rel=0.01)  # as the lesson says
    for sweep in (power_caps.RESNET50, power_caps.SHUFFLENET):
        assert [reading.cap_w for reading in sweep] == list(range(100, 251, 25))
        assert all(reading.mean_w < reading.cap_w for reading in sweep)


def test_model_agrees_with_the_recorded_sweep_and_a_linear_one_does_not():
    assert power_caps.largest_error(model_w) < 0.015
    assert power_caps.largest_error(lambda clock: 42.5 + 177.75 * clock) > 0.2


def test_best_clock_by_calculus():
    # Above the knee, voltage = 0.25 + 0.75 * clock: power / clock grows if its derivative is positive.
    slope = -power_caps.IDLE_W / 0.8**2 + (power_caps.FULL_W - power_caps.IDLE_W) * 2 * 0.85 * 0.75
    assert slope > 0
    best = power_caps.best_clock(model_w, lambda clock: clock)
    assert best.clock == 0.8  # and below it, the voltage is constant, and a higher clock shares the idle power
    assert best.gain == pytest.approx(0.8 * 220.25 / (42.5 + 177.75 * 0.8 * 0.85**2))


def test_rate_of_a_kernel_that_waits_for_memory():
    assert power_caps.memory_bound_rate(0.7) == power_caps.memory_bound_rate(1.0) == 1
    assert power_caps.memory_bound_rate(0.3) == pytest.approx(0.5)
    assert power_caps.model_rate(0.5, 0.0) == 0.5
    assert power_caps.model_rate(0.5, 1.0) == 1


# Epochs and waits.


def test_periodic_epoch_has_its_declared_times():
    epoch = epoch_meter.periodic_epoch(wait_s=0.01, step_s=0.005, steps=6)
    assert epoch.busy_s == pytest.approx(0.03)
    assert epoch.wall_s >= 0.09
    assert epoch.busy_frac == pytest.approx(epoch.busy_s / epoch.wall_s)


def test_fastest_epoch_runs_each_time_from_the_start():
    starts = []

    class Batches:
        def __iter__(self):
            starts.append(len(starts))
            return iter(range(2))

    epoch_meter.fastest_epoch(Batches(), 0.0, repeats=4)
    assert starts == [0, 1, 2, 3]


def test_blocking_needs_hardly_any_cpu_time():
    def poll(signal):
        while not signal.query():
            pass

    polled = epoch_meter.measure_wait(poll, 0.2)
    blocked = epoch_meter.measure_wait(lambda signal: signal.wait(), 0.2)
    assert min(polled.wall_s, blocked.wall_s) >= 0.19
    assert blocked.core_frac < 0.1 < polled.core_frac + 0.05


# When to run.


def test_co2_of_a_whole_day_is_its_mean_and_wraps_around():
    mean = statistics.mean(when_to_run.CARBON_G_PER_KWH)
    assert all(when_to_run.co2_g(start, 24, 2.0) == pytest.approx(48 * mean) for start in (0, 7, 23))
    assert when_to_run.co2_g(23, 2, 1.0) == when_to_run.CARBON_G_PER_KWH[23] + when_to_run.CARBON_G_PER_KWH[0]


def expected_overhead(interval, checkpoint, failure, restart):
    """Daly's complete model: each segment takes (M + R) * (exp(length / M) - 1) on average."""
    length = interval + checkpoint
    return (failure + restart) * math.expm1(length / failure) / interval - 1


@pytest.mark.parametrize(
    ("interval", "checkpoint", "failure", "restart"), [(31, 2, 240, 5), (10, 1, 60, 0), (200, 5, 240, 20)]
)
def test_simulated_overhead_agrees_with_the_closed_form(interval, checkpoint, failure, restart):
    simulated = when_to_run.overhead(interval, checkpoint, failure, restart)
    assert simulated == pytest.approx(expected_overhead(interval, checkpoint, failure, restart), rel=0.02)


def test_simulated_overhead_agrees_with_an_event_by_event_simulation():
    generator = np.random.default_rng(1)
    interval, checkpoint, failure, restart = 30.0, 2.0, 100.0, 5.0
    clock, segments = 0.0, 20_000
    next_failure = generator.exponential(failure)
    for _ in range(segments):
        while next_failure < clock + interval + checkpoint:
            clock = next_failure + restart
            next_failure = clock + generator.exponential(failure)
        clock += interval + checkpoint
    assert when_to_run.overhead(interval, checkpoint, failure, restart) == pytest.approx(
        clock / (segments * interval) - 1, rel=0.05
    )


def test_young_is_near_the_simulated_optimum():
    for checkpoint, failure in itertools.product((1, 3), (120, 480)):
        young = math.sqrt(2 * checkpoint * failure)
        tried = [young * 1.1**power for power in range(-10, 11)]
        overheads = {each: when_to_run.overhead(each, checkpoint, failure, 5) for each in tried}
        best = min(overheads, key=overheads.get)
        assert abs(young / best - 1) < 0.2
        assert overheads[young] - overheads[best] < 0.005  # the minimum is flat


def test_a_plan_names_the_gpus_it_knows():
    with pytest.raises(ValueError, match="rtx4090"):
        rental.TrainingPlan(gpu="RTX 4090")
    with pytest.raises(ValueError, match="at least one"):
        rental.TrainingPlan(workers=0)
    with pytest.raises(ValueError, match="whole numbers"):
        rental.TrainingPlan(gpus=1.5)
