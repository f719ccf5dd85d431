"""The typical step: the one step time of a report, by part of the ledger, without the profiler if that was measured.

The ledger has the recorded steps, which the profiler lengthens. The typical step has the parts of those of middle
length, without the time that the profiler adds; what was also measured without it (waits for data) is as measured. Its
parts sum exactly to the step time that predictions start from, so that a claim, a predicted saving and the table of a
report agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger
from gpulab.intervals import Ints, Spans, intersect

_FEWEST_TRIMMED = 3  # steps: the median is then the middle one
_LEAST_CALL_FRAC = 0.2  # of the time of calls is real: profilers add up to four times the cost of a call itself


@dataclass(frozen=True)
class TypicalStep:
    """Time of the typical step by part of the ledger, in whole ns; the parts sum exactly to `step_ns`."""

    step_ns: int
    part_ns: Mapping[str, int]
    traced_part_ns: Mapping[str, float]  # the same for a recorded step
    is_mean: bool = False  # the mean over all steps, including rare causes; otherwise of steps of middle length

    def sum_ns(self, *keys: str) -> int:
        """Return the sum of these parts; parts that this device lacks count as 0."""
        return sum(self.part_ns.get(key, 0) for key in keys)

    def frac(self, *keys: str) -> float:
        """Return the share of these parts in the step, 0-1; the shares of all parts sum to one."""
        return self.sum_ns(*keys) / max(1, self.step_ns)

    def unprofiled_frac(self, *keys: str) -> float:
        """Return these parts in relation to the recorded ones: below one by what the profiler adds; one if unknown.

        A part that hardly occurred in the recorded steps of middle length says nothing about the others: at most one,
        or as much as the step itself is longer.
        """
        recorded_ns = sum(self.traced_part_ns.get(key, 0.0) for key in keys)
        if not recorded_ns or self.is_mean:
            return 1.0
        longest = max(1.0, self.step_ns / max(1.0, sum(self.traced_part_ns.values())))
        return min(longest, self.sum_ns(*keys) / recorded_ns)

    def range_ns(self, ledger: Ledger, *keys: str) -> tuple[float, float]:
        """Return the range of these parts over the complete steps, without what the profiler adds; it has the typical.

        The typical step may come from the untraced steps; it counts as one more of the steps that the range covers.
        """
        typical_ns = float(self.sum_ns(*keys))
        low_ns, high_ns = (self.unprofiled_frac(*keys) * limit_ns for limit_ns in ledger.range_ns(*keys))
        return min(low_ns, typical_ns), max(high_ns, typical_ns)

    def scaled_ns(self, traced_ns: float, *keys: str) -> int:
        """Convert a duration that was recorded within these parts; without parts, as a share of the whole step.

        A median of the duration may exceed the parts of the steps of middle length; the result does not.
        """
        selected = keys or tuple(self.part_ns)
        recorded_ns = sum(self.traced_part_ns.get(key, 0.0) for key in selected)
        if not recorded_ns:
            return self.scaled_ns(traced_ns) if keys else 0
        return round(min(1.0, traced_ns / recorded_ns) * self.sum_ns(*selected))


def typical_step(ledger: Ledger, steps: Steps, loader_ns: int | None = None) -> TypicalStep:
    """Return the typical step of a run.

    `loader_ns`: the wait for data in it, where that is known better than from the recorded steps.
    """
    traced = _typical_parts(ledger, steps.traced_ns or int(ledger.step_ns.mean()))
    step_ns = steps.step_ns or round(sum(traced.values()))
    fixed = {} if loader_ns is None or not traced.get("loader") else {"loader": float(min(loader_ns, step_ns))}
    others = {key: part_ns for key, part_ns in traced.items() if key not in fixed}
    if fixed and not sum(others.values()):
        fixed = {"loader": float(step_ns)}
    spreads = {key: float(np.ptp(ledger.part_ns[key])) for key in others}
    rest = _without_profiler(others, step_ns - sum(fixed.values()), spreads)
    return TypicalStep(step_ns, _whole_ns({key: (fixed | rest)[key] for key in traced}), traced)


def mean_step(ledger: Ledger, step_ns: int, cause_ns: int, cause: Spans, part: str) -> TypicalStep:
    """Return the mean step of a run, for a cause that affects few steps and was measured in all of them.

    `cause_ns`: what the cause takes of the mean step of `step_ns`; it belongs to `part`. The recorded steps, without
    this cause, say how the rest of the step divides.
    """
    count = len(ledger.step_ns)
    traced = {key: float(values.sum()) / count for key, values in ledger.part_ns.items()}
    without = {key: traced[key] - intersect(ledger.spans[key], cause).total_ns / count for key in traced}
    total_ns = sum(without.values())
    if total_ns <= 0:
        without, total_ns = traced, sum(traced.values())
    parts = {key: part_ns * (step_ns - cause_ns) / total_ns for key, part_ns in without.items()}
    parts[part] += cause_ns
    return TypicalStep(step_ns, _whole_ns(parts), traced, is_mean=True)


def _typical_parts(ledger: Ledger, traced_ns: int) -> dict[str, float]:
    """Return the parts of the recorded steps of middle length, adjusted to the median step."""
    selected = _middle_steps(ledger)
    parts = {part.key: float(ledger.part_ns[part.key][selected].mean()) for part in ledger.parts}
    return _adjusted(parts, traced_ns, {key: float(np.ptp(ledger.part_ns[key])) for key in parts})


def _middle_steps(ledger: Ledger) -> Ints:
    """Return the steps without the shortest and the longest quarter; steps that come in bursts stay together."""
    burst = ledger.burst if len(ledger.step_ns) >= ledger.burst else 1
    groups = np.arange(len(ledger.step_ns) // burst * burst).reshape(-1, burst)
    order = np.argsort(ledger.step_ns[groups].sum(axis=1), kind="stable")
    trimmed = len(groups) // 4 or int(len(groups) == _FEWEST_TRIMMED)
    middle: Ints = groups[order[trimmed : len(order) - trimmed]].ravel()
    return middle


def _without_profiler(traced: Mapping[str, float], target_ns: float, spreads: Mapping[str, float]) -> dict[str, float]:
    """Shorten recorded parts to `target_ns`: the profiler lengthens calls, and little else."""
    calls_ns = sum(traced.get(key, 0.0) for key in DISPATCH_KEYS)
    added_ns = min(max(0.0, sum(traced.values()) - target_ns), (1 - _LEAST_CALL_FRAC) * calls_ns)
    real_frac = 1 - added_ns / calls_ns if calls_ns else 1.0
    parts = {key: part_ns * (real_frac if key in DISPATCH_KEYS else 1.0) for key, part_ns in traced.items()}
    return _adjusted(parts, target_ns, spreads)


def _adjusted(parts: Mapping[str, float], target_ns: float, spreads: Mapping[str, float]) -> dict[str, float]:
    """Change the parts so that they sum to `target_ns`: those that vary over the steps, in proportion to their spread.

    If that does not suffice, all parts are scaled.
    """
    missing_ns, spread_ns = target_ns - sum(parts.values()), sum(spreads.values())
    if abs(missing_ns) <= spread_ns:
        adjusted = {key: part_ns + missing_ns * spreads[key] / max(1.0, spread_ns) for key, part_ns in parts.items()}
        if min(adjusted.values(), default=0.0) >= 0:
            return adjusted
    factor = target_ns / max(1.0, sum(parts.values()))
    return {key: part_ns * factor for key, part_ns in parts.items()}


def _whole_ns(parts: Mapping[str, float]) -> dict[str, int]:
    """Round the parts so that they sum to the rounded sum."""
    edges = np.rint(np.cumsum([0.0, *parts.values()])).astype(np.int64)
    return dict(zip(parts, np.diff(edges).tolist(), strict=True))
