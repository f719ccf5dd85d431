"""Patterns of four weeks: what is planted is found, and nothing is found among ordinary jobs.

The weeks are drawn by tests/support/watch/weeks.py, which knows nothing of how patterns are found.
"""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.watch.history import GpuHistory
from gpulab.watch.patterns.catalogue import find_patterns
from gpulab.watch.patterns.frame import HistoryFrame
from gpulab.watch.patterns.job_patterns import regular_chain
from tests.support.tiers import every_nth
from tests.support.watch.weeks import DAY_MIN, START_S, WEEK_MIN, Card, ordinary, stay, work, write

pytestmark = pytest.mark.xdist_group("weeks")  # one process makes what its tests look at
MINUTES = 4 * WEEK_MIN
HEAT = 0x20


def patterns_of(path):
    with GpuHistory(path) as history:
        return find_patterns(HistoryFrame.load(history, START_S, START_S + 60 * MINUTES))


def hours(minutes):
    return np.arange(minutes) // 60 % 24


def idle_at_night(rng):
    use = work(rng, MINUTES, 0.8)
    night = (hours(MINUTES) >= 22) | (hours(MINUTES) < 7)
    use[night & (rng.random(MINUTES) < 0.995)] = 0.0
    return Card([stay(0, use, name="a notebook", user="bob")])


def idle_on_weekends(rng):
    use = work(rng, MINUTES, 0.85)
    use[np.arange(MINUTES) // DAY_MIN % 7 >= 5] = 0.01
    return Card([stay(0, use)])


def abandoned(rng):
    card = ordinary(rng, MINUTES - 4 * DAY_MIN)
    use = np.concatenate((work(rng, 300), np.zeros(4 * DAY_MIN - 400)))
    card.stays.append(stay(MINUTES - 4 * DAY_MIN + 50, use, 31.0, name="analysis.ipynb", user="eve"))
    return card


def unused(rng):
    return Card()


def validates_every_hour(rng):
    card = ordinary(rng, MINUTES - 3 * DAY_MIN)
    use = work(rng, 3 * DAY_MIN - 100, 0.9)
    for start in range(50, len(use) - 20, 62):
        use[start + int(rng.integers(-3, 4)) :][:8] = 0.12
    card.stays.append(stay(MINUTES - 3 * DAY_MIN + 50, use, name="pretrain.py"))
    return card


def capped_since_day_17(rng):
    card = ordinary(rng, MINUTES)
    card.clock_mhz = np.where(np.arange(MINUTES) < 17 * DAY_MIN, 1900.0, 1500.0)
    return card


def hot_in_the_afternoon(rng):
    card = Card([stay(0, work(rng, MINUTES, 0.95))])
    day = np.arange(MINUTES) // DAY_MIN
    hot = np.isin(day, [3, 4, 9, 10, 11, 18]) & (hours(MINUTES) >= 13) & (hours(MINUTES) < 17)
    card.bits = np.where(hot & (rng.random(MINUTES) < 0.8), HEAT, 0).astype(float)
    return card


def leaks_and_restarts(rng):
    card = ordinary(rng, 20 * DAY_MIN)
    at = 20 * DAY_MIN + 100
    while at < MINUTES - 300:
        length = int(rng.integers(160, 200))
        card.stays.append(stay(at, work(rng, length, 0.8), np.linspace(20, 78.5, length), name="serve.py"))
        at += length + 3
    return card


def one_gpu_of_two(rng):
    """Two cards of one job; the second computes nothing."""
    first, second = ordinary(rng, 10 * DAY_MIN), ordinary(rng, 10 * DAY_MIN)
    names = {"job": "77", "name": "ddp.py", "user": "ada"}
    length = 2 * DAY_MIN
    first.stays.append(stay(11 * DAY_MIN, work(rng, length, 0.9), pid=701, **names))
    second.stays.append(stay(11 * DAY_MIN, np.full(length, 0.01), pid=702, **names))
    return first, second


LOST = [
    (10, day * DAY_MIN + 77, "availability", "no readings: the GPU has fallen off the bus") for day in (2, 9, 9, 20)
]


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    rng = np.random.default_rng(3)
    cards = [idle_at_night(rng), idle_on_weekends(rng), abandoned(rng), unused(rng), validates_every_hour(rng),
             capped_since_day_17(rng), hot_in_the_afternoon(rng), leaks_and_restarts(rng), *one_gpu_of_two(rng),
             ordinary(rng, MINUTES)]  # fmt: skip
    path = tmp_path_factory.mktemp("weeks") / "watch.sqlite"
    write(path, cards, MINUTES, rng, LOST)
    return patterns_of(path)


PLANTED = {
    "idle_hours": (0, ("GPU 0", "22:00", "7:00")),
    "idle_weekends": (1, ("GPU 1", "weekends")),
    "abandoned": (2, ("analysis.ipynb of eve", "31 GiB", "GPU 2")),
    "unused": (3, ("GPU 3",)),
    "regular_dips": (4, ("pretrain.py", "every 62 min", "for 8 min")),
    "lower_clocks": (5, ("GPU 5", "Thu 21 May")),
    "heat": (6, ("GPU 6", "6 days", "13:00")),
    "memory_restarts": (7, ("serve.py", "GPU 7")),
    "idle_gpus_of_job": (9, ("ddp.py", "GPU 9")),
    "repeated_errors": (10, ("GPU 10", "4 times on 3 days")),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_pattern_is_found_where_it_is(planted, kind):
    card, _ = PLANTED[kind]
    assert [pattern.device for pattern in planted if pattern.kind == kind] == [card + 2]


@pytest.mark.full
@pytest.mark.parametrize("kind", PLANTED)
def test_its_claim_names_what_was_planted(planted, kind):
    claim = next(pattern.claim for pattern in planted if pattern.kind == kind)
    for part in PLANTED[kind][1]:
        assert part in claim, claim


@pytest.mark.full
def test_every_pattern_has_evidence_and_advice(planted):
    assert all(pattern.evidence and pattern.advice for pattern in planted)


@pytest.mark.parametrize("seed", every_nth(range(3), 3))
def test_nothing_is_found_in_four_ordinary_weeks(tmp_path, seed):
    rng = np.random.default_rng(100 + seed)
    path = tmp_path / "watch.sqlite"
    write(path, [ordinary(rng, MINUTES) for _ in range(4)], MINUTES, rng)
    assert [pattern.claim for pattern in patterns_of(path)] == []


@pytest.mark.full
def test_a_display_server_that_holds_a_few_mib_for_weeks_is_not_abandoned(tmp_path):
    rng = np.random.default_rng(5)
    cards = [ordinary(rng, MINUTES), ordinary(rng, MINUTES)]
    cards[0].stays.append(stay(0, np.zeros(MINUTES), 51 / 1024, name="Xorg", user="root"))
    cards[1].stays.append(stay(0, np.zeros(MINUTES), 31.0, name="analysis.ipynb", user="eve"))
    path = tmp_path / "watch.sqlite"
    write(path, cards, MINUTES, rng)
    found = [pattern for pattern in patterns_of(path) if pattern.kind == "abandoned"]
    assert ["analysis.ipynb" in pattern.claim for pattern in found] == [True]


@pytest.mark.parametrize("seed", every_nth(range(200), 10))
def test_random_events_are_not_regular(seed):
    rng = np.random.default_rng(seed)
    times_s = np.sort(rng.uniform(0, 3 * 86_400, int(rng.integers(8, 120))))
    assert regular_chain(times_s) == ()


@pytest.mark.full
@pytest.mark.parametrize("seed", every_nth(range(20), 7, pytest.mark.night))
def test_nothing_is_found_in_many_ordinary_weeks(tmp_path, seed):
    test_nothing_is_found_in_four_ordinary_weeks(tmp_path, 1000 + seed)
