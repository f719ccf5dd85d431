"""What else differs between two sides, and so may be why a prediction missed: each a question with its evidence.

A reason has an effect: by how much, by itself, it makes a step of the second side longer (or, below zero, shorter)
than it would have been. It is an estimate to rank reasons by, not a share of the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.host.cpu_contention import in_the_loop, rate
from gpulab.analysis.host.gc_and_compilation import Stalling, compiling
from gpulab.analysis.machine.clocks import Clocks, clocks
from gpulab.analysis.steps.ledger import Ledger
from gpulab.comparison.ledger_changes import Moved
from gpulab.comparison.sides import Basis, Side
from gpulab.rules import Diagnosis, Finding
from gpulab.wording import count, duration, number, percent, quantity

NOTABLE_FRAC = 0.02  # of a step: what is less explains nothing
GROWN_FRAC = 0.05
CORES = 0.1  # of one core: what other programs use always
DELAYED_FRAC = 0.05  # of the loop's time
INFLATION = 1.25  # recorded steps this much longer are another program in part
CLOCK_FRAC = 0.02


@dataclass(frozen=True)
class Reason:
    """Something that differs, or did not go as predicted."""

    kind: str  # the name of the question, as "contention"
    text: str  # a clause with its numbers
    effect_ns: int  # on a step of the second side, estimated


@dataclass(frozen=True, eq=False)
class Pair:
    """What the questions are asked of."""

    before: Side
    after: Side
    before_ns: int
    after_ns: int
    parts: tuple[Moved, ...]
    acted_on: Finding | None  # whose fix was applied in between
    upon: Basis
    crowds: tuple[float, float]  # cores that other programs used during the steps of each side


def circumstances(pair: Pair) -> tuple[Reason, ...]:
    """What differs beside the code: to be told whatever was found; the largest effect first."""
    return _ordered(ask(pair) for ask in CIRCUMSTANCES if ask is not profiler or pair.upon.profiled)


def misses(pair: Pair, too_slow: bool, work: float = 1.0) -> tuple[Reason, ...]:
    """Why a prediction may have missed, in the direction in which it did; the largest effect first.

    `work`: by how much more a step was predicted to do; then a larger batch is no reason.
    """
    asked = [ask for ask in (*CIRCUMSTANCES, *OUTCOMES) if ask is not batch_size or work == 1]
    found = (reason for ask in asked for reason in [ask(pair)])
    return _ordered(
        reason for reason in found if reason and (reason.kind in EITHER_WAY or (reason.effect_ns > 0) == too_slow)
    )


def _ordered(found: Iterator[Reason | None]) -> tuple[Reason, ...]:
    return tuple(sorted((each for each in found if each), key=lambda each: -abs(each.effect_ns)))


def contention(pair: Pair) -> Reason | None:
    """Other programs had more of the cores on one side, or the recorded thread waited longer for one."""
    delayed = [
        _mean([rate(in_the_loop(each.run, each.steps), "main_delayed_s") for each in side.used(pair.upon)])
        for side in (pair.before, pair.after)
    ]
    cores = max((each.run.machine.cores or 1 for each in pair.after.runs), default=1)
    share = (pair.crowds[1] - pair.crowds[0]) / cores
    told = []
    if abs(pair.crowds[1] - pair.crowds[0]) > CORES:
        before, after = (number(cores_used, 2) for cores_used in pair.crowds)
        told.append(f"other programs used {before} cores before and {after} after")
    if delayed[0] is not None and delayed[1] is not None and abs(delayed[1] - delayed[0]) > DELAYED_FRAC:
        shares = f"{percent(delayed[0])} of the time before and {percent(delayed[1])} after"
        told.append(f"the loop's thread waited for a core {shares}")
        share = max(share, delayed[1] - delayed[0], key=abs)
    effect_ns = round(share * pair.after_ns)
    if not told or abs(effect_ns) < NOTABLE_FRAC * pair.after_ns:
        return None
    return Reason("contention", " and ".join(told).replace("%", " %"), effect_ns)


def recompiles(pair: Pair) -> Reason | None:
    """Steps that were thought to be warm were compiled in."""
    one, other = (_mean([_compiling_ns(each) for each in side.runs]) for side in (pair.before, pair.after))
    if one is None or other is None or abs(other - one) < NOTABLE_FRAC * pair.after_ns:
        return None
    counts = [sum(_compilations(each) for each in side.runs) for side in (pair.before, pair.after)]
    before, after = (count(compilations, "time") for compilations in counts)
    text = f"torch.compile was at work in warm steps: {before} before, {after} after"
    return Reason("recompiles", f"{text} ({duration(one)} and {duration(other)} a step)", round(other - one))


def clock_rates(pair: Pair) -> Reason | None:
    """The GPU ran at other clocks."""
    sides = [
        [seen for each in side.runs if (seen := clocks(each.run, each.steps))] for side in (pair.before, pair.after)
    ]
    rates = [_mean([seen.clock_mhz for seen in side]) for side in sides]
    if not rates[0] or not rates[1] or abs(rates[1] / rates[0] - 1) < CLOCK_FRAC:
        return None
    busy_ns = sum(part.after_ns for part in pair.parts if part.key in ("matmul", "kernels")) or pair.after_ns
    held = _held(sides[1] if rates[1] < rates[0] else sides[0])
    when = "after" if rates[1] < rates[0] else "before"
    text = f"the GPU ran at {quantity(rates[0], 'MHz')} before and {quantity(rates[1], 'MHz')} after"
    return Reason(
        "clocks", text + (f" (held down by {held} {when})" if held else ""), round(busy_ns * (1 - rates[1] / rates[0]))
    )


def batch_size(pair: Pair) -> Reason | None:
    """A step does more, or less, than it did."""
    one, other = (leading_loader(side.typical.run) for side in (pair.before, pair.after))
    sizes = [loader.batch_size for loader in (one, other) if loader and loader.batch_size]
    if len(set(sizes)) != 2:
        return None
    text = f"the batch size changed too ({sizes[0]} to {sizes[1]})"
    return Reason("batch_size", text, round(pair.after_ns * (1 - sizes[0] / sizes[1])))


def devices(pair: Pair) -> Reason | None:
    """Nothing can be said of runs from different machines."""
    one, other = (side.typical.run.source.device for side in (pair.before, pair.after))
    if one == other:
        return None
    return Reason("devices", f"the runs are from different devices ({one} and {other})", pair.after_ns - pair.before_ns)


def profiler(pair: Pair) -> Reason | None:
    """Recording made the steps of one side longer than those of the other."""
    one, other = (_mean([each.steps.inflation for each in side.runs]) for side in (pair.before, pair.after))
    if one is None or other is None or max(one, other) < INFLATION or abs(one - other) < 0.1:
        return None
    text = f"recording made a step {number(one)} times as long before and {number(other)} times after"
    if pair.upon.profiled:
        return Reason("profiler", text, round(pair.after_ns * (1 - one / other)))
    # The steps compared are free of it; the prediction, which rests on recorded ones, is not.
    return Reason(
        "profiler", f"{text}, and predictions rest on recorded steps", round(pair.after_ns * (other - one) / one)
    )


def lessened(pair: Pair) -> Reason | None:
    """The cause that was acted on is still found."""
    cause = pair.acted_on
    if cause is None or cause.rule not in {finding.rule for finding in pair.after.findings}:
        return None
    mine = [part for part in pair.parts if part.key in cause.parts]
    left_ns, had_ns = sum(part.after_ns for part in mine), sum(part.before_ns for part in mine)
    told = f": {duration(left_ns)} a step are left of {duration(had_ns)}" if had_ns else ""
    return Reason("lessened", f"the cause was lessened, not removed{told}", max(1, left_ns))


def grown(pair: Pair) -> Reason | None:
    """Another part of the step became longer meanwhile."""
    cause = pair.acted_on.parts if pair.acted_on else ()
    most = max(
        (part for part in pair.parts if part.key not in cause), key=lambda part: part.difference_ns, default=None
    )
    if most is None or most.difference_ns <= GROWN_FRAC * pair.before_ns:
        return None
    return Reason("grown", f"{most.label} grew by {duration(most.difference_ns)} a step meanwhile", most.difference_ns)


def shrunk(pair: Pair) -> Reason | None:
    """Another part of the step became shorter as well."""
    cause = pair.acted_on.parts if pair.acted_on else ()
    least = min(
        (part for part in pair.parts if part.key not in cause), key=lambda part: part.difference_ns, default=None
    )
    if not cause or least is None or -least.difference_ns <= GROWN_FRAC * pair.before_ns:
        return None
    return Reason(
        "shrunk", f"{least.label} shrank by {duration(-least.difference_ns)} a step as well", least.difference_ns
    )


Question = Callable[[Pair], Reason | None]
CIRCUMSTANCES: tuple[Question, ...] = (contention, recompiles, clock_rates, batch_size, devices, profiler)
OUTCOMES: tuple[Question, ...] = (lessened, grown, shrunk)
EITHER_WAY = ("devices", "profiler")  # what they do to a prediction may go either way


def _mean(values: Sequence[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return fmean(told) if told else None


def _stalling(each: Diagnosis, ledger: Ledger) -> Stalling | None:
    return compiling(each.run, each.steps, ledger)


def _compiling_ns(each: Diagnosis) -> float | None:
    if each.ledger is None:
        return None
    seen = _stalling(each, each.ledger)
    return float(seen.mean_ns) if seen else 0.0


def _compilations(each: Diagnosis) -> int:
    seen = None if each.ledger is None else _stalling(each, each.ledger)
    return seen.count if seen else 0


def _held(seen: Sequence[Clocks]) -> str:
    shares = {
        "the power limit": _mean([each.power_frac for each in seen]),
        "heat": _mean([each.heat_frac for each in seen]),
        "the power brake": _mean([each.brake_frac for each in seen]),
    }
    name, share = max(shares.items(), key=lambda each: each[1] or 0.0)
    return f"{name} in {percent(share)} of the time" if share else ""
