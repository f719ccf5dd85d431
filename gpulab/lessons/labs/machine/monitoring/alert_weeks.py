"""A simulated week of GPU readings with planted idle times, and how well an alert finds them.

The week is drawn with a fixed seed. Jobs pause for validation, for checkpoints, and to load their data when they begin:
no reason to wake anybody. Planted are jobs that hang for half an hour or more, with a short peak now and then, and a
job whose utilisation stays near 30 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
PERIOD_S = 10
DAY_S, WEEK_S = 86_400, 7 * 86_400
LOOK_S = 9 * 3600  # of a day: somebody looks at the monitor
MIN_S = 60
PARTS = 5  # of a window, as in gpulab's alerts


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadingsWeek:
    """Readings every `PERIOD_S`: `at_s` from Monday 0:00, `util_frac`, and `is_held`, whether a process holds memory.

    `planted`: begin and end of each idle time that an alert should report, in seconds.
    """

    at_s: Reals
    util_frac: Reals
    is_held: NDArray[np.bool_]
    planted: tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class AlertScore:
    """Alarms of a rule: those outside all planted times, repeated ones within one, delays, and missed times."""

    alarms: int
    false_alarms: int
    repeated: int
    missed: int
    delays_min: tuple[float, ...]

    @property
    def worst_delay_min(self) -> float:
        """The longest time from the begin of a planted time to its alarm, in minutes; NaN if none was found."""
        return max(self.delays_min, default=math.nan)

    @property
    def cells(self) -> tuple[str, ...]:
        """The score as cells of a table."""
        delay = f"{self.worst_delay_min:.0f}" if self.delays_min else "-"
        return (f"{self.alarms}", f"{self.false_alarms}", f"{self.repeated}", f"{self.missed}", delay)


HEADER = ("rule", "alarms in a week", "false", "repeated", "missed of 7", "worst delay, min")


@cache
def readings_week(seed: int = 2) -> ReadingsWeek:
    """Return the week: eight jobs, seven planted idle times."""
    generator = np.random.default_rng(seed)
    at_s = np.arange(0, WEEK_S, PERIOD_S, dtype=np.float64)
    util, occupied, planted = np.zeros(len(at_s)), np.zeros(len(at_s), bool), []
    for job in range(8):
        begin = int((job * 20.6 + generator.uniform(0.2, 1.0)) * 3600 / PERIOD_S)
        length = int(generator.uniform(17, 19) * 3600 / PERIOD_S)
        span = slice(begin, min(begin + length, len(at_s)))
        util[span], occupied[span] = _job_readings(generator, span.stop - span.start), True
        if job < 7:
            hang = begin + int(generator.uniform(0.3, 0.7) * length)
            stop = hang + int(generator.uniform(40, 180) * MIN_S / PERIOD_S)
            util[hang:stop] = _starved(generator, stop - hang) if job == 4 else _hanging(generator, stop - hang)
            planted.append((float(at_s[hang]), float(at_s[stop])))
    return ReadingsWeek(at_s=at_s, util_frac=util, is_held=occupied, planted=tuple(planted))


def _job_readings(generator: np.random.Generator, count: int) -> Reals:
    """Return the utilisation of a job that works, with its ordinary pauses."""
    util = np.clip(generator.normal(0.85, 0.06, count), 0, 1)
    for every_min, low_s, high_s, level in ((20, 15, 45, 0.0), (55, 60, 200, 0.12), (300, 300, 390, 0.05)):
        starts = np.arange(
            int(generator.uniform(20, 20 + every_min) * MIN_S / PERIOD_S), count, every_min * MIN_S // PERIOD_S
        )
        for start in starts.tolist():
            stop = start + int(generator.uniform(low_s, high_s) / PERIOD_S) + 1
            util[start:stop] = np.clip(generator.normal(level, 0.03, max(0, min(stop, count) - start)), 0, 1)
    first = int(generator.uniform(5.5, 7) * MIN_S / PERIOD_S)  # loads its data
    util[:first] = 0.0
    return util


def _hanging(generator: np.random.Generator, count: int) -> Reals:
    """Return the utilisation of a job that hangs: a peak in one reading of forty."""
    util = np.clip(generator.normal(0.01, 0.01, count), 0, 1)
    util[generator.random(count) < 1 / 40] = 0.7
    return util


def _starved(generator: np.random.Generator, count: int) -> Reals:
    """Return the utilisation of a job that waits for data most of the time, and wanders around 30 %."""
    slow = np.convolve(generator.normal(0, 1, count + 59), np.ones(60) / math.sqrt(60), "valid")
    util = np.clip(0.29 + 0.05 * slow + generator.normal(0, 0.03, count), 0, 1)
    util[: 4 * MIN_S // PERIOD_S] = 0.2
    return np.asarray(util, np.float64)


def window_means(week: ReadingsWeek, window_s: float) -> Reals:
    """Return the mean utilisation of the `window_s` before each reading; NaN unless memory was held all the time."""
    count = max(1, round(window_s / PERIOD_S))
    values = np.where(week.is_held, week.util_frac, np.nan)
    means = np.full(len(values), np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(values, count)
    means[count - 1 :] = windows.mean(axis=1)
    return means


def window_fifths(week: ReadingsWeek, window_s: float) -> Reals:
    """Return the highest mean of five equal parts of the `window_s` before each reading; NaN as in window_means."""
    means = window_means(week, window_s / PARTS)
    count = max(1, round(window_s / PARTS / PERIOD_S))
    highest = means.copy()
    for part in range(1, PARTS):
        shifted = np.full(len(means), np.nan)
        shifted[part * count :] = means[: -part * count]
        highest = np.maximum(highest, shifted)
    return highest


def score_alarms(week: ReadingsWeek, alarms_s: Iterable[float]) -> AlertScore:
    """Count the alarms, given the time at which each begins."""
    times = sorted(alarms_s)
    inside = [[at_s for at_s in times if begin <= at_s < end] for begin, end in week.planted]
    reported = sum(len(each) for each in inside)
    delays = [(each[0] - begin) / MIN_S for each, (begin, _) in zip(inside, week.planted, strict=True) if each]
    return AlertScore(
        alarms=len(times),
        false_alarms=len(times) - reported,
        repeated=reported - len(delays),
        missed=len(week.planted) - len(delays),
        delays_min=tuple(delays),
    )


def morning_looks(week: ReadingsWeek) -> list[float]:
    """Return the mornings on which somebody who looks at the monitor sees a GPU that is held and idle."""
    looks = np.arange(LOOK_S, WEEK_S, DAY_S) // PERIOD_S
    return [float(week.at_s[look]) for look in looks if week.is_held[look] and week.util_frac[look] < 0.3]


def engine_alarms(week: ReadingsWeek, *rules: str) -> list[float]:
    """Return when gpulab's alerts begin in a week, given in plain words; the engine is that of `gpulab watch`."""
    from gpulab.watch.alerts import parse_alert
    from gpulab.watch.alerts.engine import AlertEngine, SubjectMeasures
    from gpulab.watch.alerts.measures import Measure

    engine, begins = AlertEngine([parse_alert(rule) for rule in rules], period_s=PERIOD_S), []
    for at_s, util, occupied in zip(week.at_s.tolist(), week.util_frac.tolist(), week.is_held.tolist(), strict=True):
        facts = SubjectMeasures(subject="GPU 0", values={Measure.UTILISATION: util}, is_held=occupied)
        begins += [firing.at_s for firing in engine.update(at_s, facts) if not firing.ended]
    return begins


def alert_target(score: AlertScore | None) -> int | None:
    """Return the worst delay in whole minutes; None if a planted time is missed, or anybody is woken for nothing."""
    if score is None or score.missed or score.false_alarms or score.repeated:
        return None
    return math.ceil(score.worst_delay_min)


def score_table(scores: Sequence[tuple[str, AlertScore]]) -> list[tuple[str, ...]]:
    """Return the lines of a table, one for each rule."""
    return [(name, *score.cells) for name, score in scores]
