"""Reasons why a prediction may have missed: other differences between two sides, each with its evidence.

The effect of a reason is the time by which it alone makes a step of the second side longer (below zero: shorter). It is
an estimate for ranking reasons, not a share of the measured difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.host.cpu_contention import counter_rate, host_samples_in_loop
from gpulab.analysis.host.gc_and_compilation import StallCost, compilation_cost
from gpulab.analysis.machine.clocks import Clocks, clocks_under_load
from gpulab.analysis.steps.ledger import Ledger
from gpulab.comparison.ledger_changes import PartChange
from gpulab.comparison.sides import Basis, ComparedSide
from gpulab.rules import Diagnosis, Finding
from gpulab.wording import count, duration, number, percent, quantity

NOTABLE_FRAC = 0.02  # of a step: smaller effects are ignored
GROWN_FRAC = 0.05
CORES = 0.1  # cores: background load that is always there
DELAYED_FRAC = 0.05  # of the loop's time
INFLATION = 1.25  # ratio of recorded to unprofiled step time from which profiler overhead matters
CLOCK_FRAC = 0.02


@dataclass(frozen=True)
class Reason:
    """A difference between the sides, or an effect that was not as predicted."""

    kind: str  # the name of the check: "contention"
    text: str  # a clause with the measured numbers, or two with a semicolon between them
    effect_ns: int  # estimated effect on a step of the second side


@dataclass(frozen=True, eq=False)
class Pair:
    """The two sides and the figures that the checks use."""

    before: ComparedSide
    after: ComparedSide
    before_ns: int
    after_ns: int
    parts: tuple[PartChange, ...]
    acted_on: Finding | None  # the finding whose fix was applied in between
    basis: Basis
    other_cores: tuple[float, float]  # cores that other programs used during the steps of each side


def circumstances(pair: Pair, work: float = 1.0) -> tuple[Reason, ...]:
    """Return the differences other than the code, whatever the verdict; largest effect first. `work`: see below."""
    checks = [check for check in CIRCUMSTANCES if check is not profiler or pair.basis.profiled]
    return _ordered(check(pair) for check in checks if check is not batch_size or work == 1)


def miss_reasons(pair: Pair, too_slow: bool, work: float = 1.0) -> tuple[Reason, ...]:
    """Return possible reasons why a prediction missed, in the direction in which it did; largest effect first.

    `work`: the predicted ratio of work per step. If it is not 1, a different batch size is no reason.
    """
    checks = [check for check in (*CIRCUMSTANCES, *OUTCOMES) if check is not batch_size or work == 1]
    reasons = (reason for check in checks for reason in [check(pair)])
    return _ordered(
        reason for reason in reasons if reason and (reason.kind in EITHER_SIGN or (reason.effect_ns > 0) == too_slow)
    )


def _ordered(reasons: Iterator[Reason | None]) -> tuple[Reason, ...]:
    return tuple(sorted((reason for reason in reasons if reason), key=lambda reason: -abs(reason.effect_ns)))


def contention_reason(pair: Pair) -> Reason | None:
    """Other programs used more cores on one side, or the recorded thread waited longer for a core."""
    delayed = [
        _mean(
            [
                counter_rate(host_samples_in_loop(each.run, each.steps), "main_delayed_s")
                for each in side.compared_runs(pair.basis)
            ]
        )
        for side in (pair.before, pair.after)
    ]
    cores = max((each.run.machine.cores or 1 for each in pair.after.runs), default=1)
    share = (pair.other_cores[1] - pair.other_cores[0]) / cores
    clauses = []
    if abs(pair.other_cores[1] - pair.other_cores[0]) > CORES:
        before, after = (number(cores_used, 2) for cores_used in pair.other_cores)
        clauses.append(f"other programs used {before} of the cores before and {after} after")
    if delayed[0] is not None and delayed[1] is not None and abs(delayed[1] - delayed[0]) > DELAYED_FRAC:
        shares = f"{percent(delayed[0])} of the time before and {percent(delayed[1])} after"
        clauses.append(f"the main thread waited for a core for {shares}")
        share = max(share, delayed[1] - delayed[0], key=abs)
    effect_ns = round(share * pair.after_ns)
    if not clauses or abs(effect_ns) < NOTABLE_FRAC * pair.after_ns:
        return None
    return Reason("contention", "; ".join(clauses), effect_ns)


def recompiles(pair: Pair) -> Reason | None:
    """torch.compile recompiled in steps that count as warm."""
    one, other = (_mean([_compiling_ns(each) for each in side.runs]) for side in (pair.before, pair.after))
    if one is None or other is None or abs(other - one) < NOTABLE_FRAC * pair.after_ns:
        return None
    counts = [sum(_compilations(each) for each in side.runs) for side in (pair.before, pair.after)]
    before, after = (count(compilations, "time") for compilations in counts)
    text = f"torch.compile recompiled in warm steps: {before} before, {after} after"
    return Reason("recompiles", f"{text} ({duration(one)} and {duration(other)} per step)", round(other - one))


def clock_rates(pair: Pair) -> Reason | None:
    """The GPU ran at different clocks."""
    sides = [
        [gpu_clocks for each in side.runs if (gpu_clocks := clocks_under_load(each.run, each.steps))]
        for side in (pair.before, pair.after)
    ]
    rates = [_mean([gpu_clocks.clock_mhz for gpu_clocks in side]) for side in sides]
    if not rates[0] or not rates[1] or abs(rates[1] / rates[0] - 1) < CLOCK_FRAC:
        return None
    busy_ns = sum(part.after_ns for part in pair.parts if part.key in ("matmul", "kernels")) or pair.after_ns
    cause = _throttle_cause(sides[1] if rates[1] < rates[0] else sides[0])
    throttled_side = "after" if rates[1] < rates[0] else "before"
    text = f"the GPU ran at {quantity(rates[0], 'MHz')} before and {quantity(rates[1], 'MHz')} after"
    return Reason(
        "clocks",
        text + (f" (throttled by {cause} {throttled_side})" if cause else ""),
        round(busy_ns * (1 - rates[1] / rates[0])),
    )


def batch_size(pair: Pair) -> Reason | None:
    """The batch size changed, so a step does more or less work."""
    one, other = (training_loader(side.typical.run) for side in (pair.before, pair.after))
    sizes = [loader.batch_size for loader in (one, other) if loader and loader.batch_size]
    if len(set(sizes)) != 2:
        return None
    text = f"the batch size also changed ({sizes[0]} to {sizes[1]})"
    return Reason("batch_size", text, round(pair.after_ns * (1 - sizes[0] / sizes[1])))


def device_reason(pair: Pair) -> Reason | None:
    """The runs are from different devices and cannot be compared."""
    one, other = (side.typical.run.source.device for side in (pair.before, pair.after))
    if one == other:
        return None
    return Reason("devices", f"the runs are from different devices ({one} and {other})", pair.after_ns - pair.before_ns)


def profiler(pair: Pair) -> Reason | None:
    """The profiler overhead differs between the sides."""
    one, other = (_mean([each.steps.profiler_overhead for each in side.runs]) for side in (pair.before, pair.after))
    if one is None or other is None or max(one, other) < INFLATION or abs(one - other) < 0.1:
        return None
    text = f"the profiler made a step {number(one)} times as long before and {number(other)} times as long after"
    if pair.basis.profiled:
        return Reason("profiler", text, round(pair.after_ns * (1 - one / other)))
    # The compared steps are unprofiled, but the prediction is based on recorded steps.
    return Reason(
        "profiler", f"{text}, and predictions are based on recorded steps", round(pair.after_ns * (other - one) / one)
    )


def cause_remains(pair: Pair) -> Reason | None:
    """The cause that the fix addresses is still found."""
    cause = pair.acted_on
    if cause is None or cause.rule not in {finding.rule for finding in pair.after.findings}:
        return None
    parts = [part for part in pair.parts if part.key in cause.ledger_parts]
    left_ns, before_ns = sum(part.after_ns for part in parts), sum(part.before_ns for part in parts)
    remaining = f": {duration(left_ns)} per step remain of {duration(before_ns)}" if before_ns else ""
    return Reason("cause_remains", f"the cause was reduced, not removed{remaining}", max(1, left_ns))


def other_part_grew(pair: Pair) -> Reason | None:
    """Another part of the step became longer."""
    fixed_parts = pair.acted_on.ledger_parts if pair.acted_on else ()
    largest = max(
        (part for part in pair.parts if part.key not in fixed_parts), key=lambda part: part.difference_ns, default=None
    )
    if largest is None or largest.difference_ns <= GROWN_FRAC * pair.before_ns:
        return None
    return Reason(
        "other_part_grew", f"{largest.label} grew by {duration(largest.difference_ns)} per step", largest.difference_ns
    )


def other_part_shrank(pair: Pair) -> Reason | None:
    """Another part of the step also became shorter."""
    fixed_parts = pair.acted_on.ledger_parts if pair.acted_on else ()
    largest = min(
        (part for part in pair.parts if part.key not in fixed_parts), key=lambda part: part.difference_ns, default=None
    )
    if not fixed_parts or largest is None or -largest.difference_ns <= GROWN_FRAC * pair.before_ns:
        return None
    return Reason(
        "other_part_shrank",
        f"{largest.label} also shrank by {duration(-largest.difference_ns)} per step",
        largest.difference_ns,
    )


Check = Callable[[Pair], Reason | None]
CIRCUMSTANCES: tuple[Check, ...] = (contention_reason, recompiles, clock_rates, batch_size, device_reason, profiler)
OUTCOMES: tuple[Check, ...] = (cause_remains, other_part_grew, other_part_shrank)
EITHER_SIGN = ("devices", "profiler")  # their effect on a prediction may have either sign


def _mean(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return fmean(measured) if measured else None


def _compilation_cost(diagnosis: Diagnosis, ledger: Ledger) -> StallCost | None:
    return compilation_cost(diagnosis.run, diagnosis.steps, ledger)


def _compiling_ns(diagnosis: Diagnosis) -> float | None:
    if diagnosis.ledger is None:
        return None
    compilation = _compilation_cost(diagnosis, diagnosis.ledger)
    return float(compilation.mean_ns) if compilation else 0.0


def _compilations(diagnosis: Diagnosis) -> int:
    compilation = None if diagnosis.ledger is None else _compilation_cost(diagnosis, diagnosis.ledger)
    return compilation.count if compilation else 0


def _throttle_cause(clocks_of_runs: Sequence[Clocks]) -> str:
    """Return the main cause of throttling and its share of the samples; "" if there was none."""
    shares = {
        "the power limit": _mean([each.power_frac for each in clocks_of_runs]),
        "heat": _mean([each.heat_frac for each in clocks_of_runs]),
        "the power brake": _mean([each.brake_frac for each in clocks_of_runs]),
    }
    name, share = max(shares.items(), key=lambda item: item[1] or 0.0)
    return f"{name} in {percent(share)} of the time" if share else ""
