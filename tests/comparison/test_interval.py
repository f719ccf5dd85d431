"""How sure a ratio of step times is: coverage by simulation, with step times of which the truth is known."""

import numpy as np
import pytest

from gpulab.comparison import MIN_DIFFERENCE_FRAC, interval
from gpulab.comparison.interval import Statistic, block_length, steadiest_statistic, step_time_ratio

MS = 1_000_000
TRUE = 1.1


def drifting(random, count, correlation, spread):
    """Noise in which neighbours are correlation: a first-order autoregression of this spread."""
    shocks = random.normal(0, spread * np.sqrt(1 - correlation**2), count)
    values = [random.normal(0, spread)]
    for shock in shocks[1:]:
        values.append(correlation * values[-1] + shock)
    return np.array(values)


def side(random, runs, typical_ms, *, count=80, correlation=0.0, spread=0.05, between=0.0):
    levels = random.normal(0, between, runs)
    return [
        (typical_ms * MS * np.exp(level + drifting(random, count, correlation, spread))).astype(np.int64)
        for level in levels
    ]


@pytest.fixture
def covered(monkeypatch):
    monkeypatch.setattr(interval, "RESAMPLES", 400)
    return coverage


def coverage(runs, seeds=80, **noise):
    hits = 0
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        result = step_time_ratio(side(random, runs, 100 * TRUE, **noise), side(random, runs, 100, **noise))
        hits += result.low <= TRUE <= result.high
    return hits / seeds


@pytest.mark.full
@pytest.mark.parametrize("between", [0.02, 0.05])
@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_interval_of_repeated_runs_has_its_nominal_coverage(covered, correlation, between):
    # 95 % of 80 are 76, give or take 6 by chance; it may be careful, not careless.
    assert covered(5, correlation=correlation, between=between) >= 0.875


def test_the_interval_of_single_runs_includes_variance_between_runs(covered):
    assert covered(1, correlation=0.8) >= 0.9


def test_the_interval_of_quiet_repeated_runs_is_narrow():
    random = np.random.default_rng(1)
    quiet = step_time_ratio(side(random, 5, 110, spread=0.01), side(random, 5, 100, spread=0.01))
    assert quiet.high / quiet.low < 1.05
    assert quiet.significant


def test_a_constant_program_has_an_interval_of_the_assumed_width():
    steps = np.full(40, 100 * MS)
    result = step_time_ratio([steps], [steps])
    assert result.value == 1
    assert 0.95 < result.low < 1 < result.high < 1.05
    assert not result.significant


def test_the_interval_is_deterministic():
    steps = np.array([10, 12, 11, 15]) * MS
    assert step_time_ratio([steps], [steps // 2]) == step_time_ratio([steps], [steps // 2])


def test_the_99_percent_interval_contains_the_95_percent_interval():
    random = np.random.default_rng(2)
    result = step_time_ratio(side(random, 2, 110), side(random, 2, 100))
    assert result.sure_low < result.low < result.value < result.high < result.sure_high


def test_swapping_the_sides_inverts_the_ratio():
    random = np.random.default_rng(3)
    one, other = side(random, 3, 110), side(random, 3, 100)
    forward, backward = step_time_ratio(one, other), step_time_ratio(other, one)
    assert forward.value == pytest.approx(1 / backward.value)
    assert forward.low == pytest.approx(1 / backward.high, rel=0.01)


def test_activity_of_other_programs_widens_the_interval():
    random = np.random.default_rng(4)
    one, other = side(random, 2, 110), side(random, 2, 100)
    calm, crowded = step_time_ratio(one, other), step_time_ratio(one, other, extra_frac=(0.0, 0.2))
    assert crowded.high / crowded.low > 1.5 * calm.high / calm.low


def test_drift_cancels_for_alternating_runs():
    random = np.random.default_rng(6)
    drift = np.cumsum(random.normal(0, 0.05, 8))
    one, other = (
        [side(random, 1, typical * np.exp(level), spread=0.02)[0] for level in drift] for typical in (110, 100)
    )
    separate, alternating = step_time_ratio(one, other), step_time_ratio(one, other, alternating=True)
    assert alternating.significant
    assert alternating.high / alternating.low < 0.5 * (separate.high / separate.low - 1) + 1
    assert alternating.low < TRUE < alternating.high


def test_rare_slow_steps_change_the_mean_and_not_the_median():
    often = np.full(100, 100 * MS)
    rare = often.copy()
    rare[::10] = 600 * MS
    assert step_time_ratio([rare], [often]).value == 1
    assert step_time_ratio([rare], [often], statistic=Statistic.MEAN).value == pytest.approx(1.5)


def disturbed(random, runs, typical_ms, steps=60):
    """Runs of a shared machine: in each another share of the steps is made longer by what else runs, none shorter."""
    sides = []
    for share in random.uniform(0.1, 0.8, runs):
        longer = np.where(random.random(steps) < share, random.uniform(1.1, 1.5, steps), 1.0)
        sides.append((typical_ms * MS * random.normal(1, 0.01, steps) * longer).astype(np.int64))
    return sides


def test_repeated_runs_on_a_disturbed_machine_are_compared_by_their_fastest_steps():
    significant = {Statistic.MEDIAN: 0, Statistic.FASTEST: 0}
    for seed in range(20):
        random = np.random.default_rng(seed)
        one, other = disturbed(random, 5, 110), disturbed(random, 5, 100)
        assert steadiest_statistic([one, other], in_turn=True) is Statistic.FASTEST
        ratios = {centre: step_time_ratio(one, other, statistic=centre, alternating=True) for centre in significant}
        for centre, result in ratios.items():
            significant[centre] += result.significant
        assert ratios[Statistic.FASTEST].low < TRUE < ratios[Statistic.FASTEST].high
    assert significant[Statistic.FASTEST] == 20
    assert significant[Statistic.MEDIAN] < 10


def test_the_choice_of_statistic_does_not_depend_on_the_difference():
    for seed in range(20):
        random = np.random.default_rng(seed)
        one, other = disturbed(random, 5, 100), disturbed(random, 5, 100)
        slower = [(steps * 1.3).astype(np.int64) for steps in other]
        for in_turn in (True, False):
            assert steadiest_statistic([one, other], in_turn) is steadiest_statistic([one, slower], in_turn)


def test_few_runs_and_short_ones_are_compared_by_their_medians():
    random = np.random.default_rng(7)
    assert (
        steadiest_statistic([disturbed(random, 2, 110), disturbed(random, 2, 100)], in_turn=False) is Statistic.MEDIAN
    )
    short = [disturbed(random, 7, typical, steps=12) for typical in (110, 100)]
    assert steadiest_statistic(short, in_turn=True) is Statistic.MEDIAN


def test_blocks_are_longer_with_stronger_correlation():
    random = np.random.default_rng(5)
    lengths = [block_length(np.exp(drifting(random, 400, correlation, 0.1))) for correlation in (0.0, 0.6, 0.95)]
    assert lengths[0] <= 3 < lengths[1] < lengths[2] <= 100
    assert block_length(np.full(50, 7.0)) == 1


def test_a_single_step_has_an_interval_too():
    one = np.array([100 * MS])
    assert step_time_ratio([one], [one]).low < 1


@pytest.mark.full
@pytest.mark.parametrize(("longer", "expected"), [(1.0, False), (1.1, True)], ids=["nothing", "a tenth"])
@pytest.mark.parametrize(("runs", "min_detected", "min_quiet"), [(5, 36, 39), (7, 38, 39), (9, 39, 39)])
def test_alternating_runs_detect_ten_percent_and_no_false_difference(
    monkeypatch, longer, expected, runs, min_detected, min_quiet
):
    # The noise of a shared machine of two cores: steps differ by 10 %, runs by 2 %, and it drifts by 2 % a run.
    monkeypatch.setattr(interval, "RESAMPLES", 400)
    right = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        drift = np.cumsum(random.normal(0, 0.02, 2 * runs))
        levels = [100 * np.exp(level) for level in drift]
        noise = {"count": 60, "correlation": 0.5, "spread": 0.1, "between": 0.02}
        before = [side(random, 1, level, **noise)[0] for level in levels[::2]]
        after = [side(random, 1, level * longer, **noise)[0] for level in levels[1::2]]
        result = step_time_ratio(before, after, alternating=True)
        is_significant = result.significant and abs(1 - result.value) >= MIN_DIFFERENCE_FRAC
        right += is_significant == expected and (not is_significant or result.value < 1)
    assert right >= (min_detected if expected else min_quiet)
