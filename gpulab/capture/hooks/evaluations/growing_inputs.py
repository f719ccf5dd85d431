"""What calls of modules for growing sequences cost: how often, for how many positions, what each of them adds."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpulab.run import GrowingInput

_LEAST_CALLS = 4
_MOSTLY = 0.8  # of the compared calls
_ERROR_OF_MEDIANS = (
    1.3  # standard error of the difference of two medians: 0.74 of the quartiles' distance is a deviation
)


@dataclass
class GrowingCalls:
    """The calls of one module whose input is that of its call before and one position more."""

    module: weakref.ref[Any]
    location: str | None
    positions: list[int] = field(default_factory=list)  # of each call
    call_ns: list[int] = field(default_factory=list)
    equal: int = 0  # calls whose outputs for the earlier positions are those of the call before
    unequal: int = 0
    sliding: int = 0  # calls whose input has lost its first position, too
    sliding_ns: int = 0

    def __add__(self, other: GrowingCalls) -> GrowingCalls:
        """Add the calls of the same module in another part of the run."""
        return GrowingCalls(
            self.module,
            self.location,
            [*self.positions, *other.positions],
            [*self.call_ns, *other.call_ns],
            self.equal + other.equal,
            self.unequal + other.unequal,
            self.sliding + other.sliding,
            self.sliding_ns + other.sliding_ns,
        )

    def __copy__(self) -> GrowingCalls:
        """Copy the lists, too: another thread goes on adding to them."""
        positions, call_ns = list(self.positions), list(self.call_ns)
        complete = min(len(positions), len(call_ns))
        return replace(self, positions=positions[:complete], call_ns=call_ns[:complete])

    @property
    def has_equal_outputs(self) -> bool | None:
        """Whether most outputs for earlier positions are those of the call before; None if none was compared."""
        compared = self.equal + self.unequal
        return self.equal >= _MOSTLY * compared if compared else None

    @property
    def typical_ns(self) -> float:
        """Median time of a call."""
        return float(np.median(self.call_ns)) if self.call_ns else 0.0

    def position_range_ns(self) -> tuple[float, float]:
        """Return how much longer a call takes per position: two standard errors below and above the difference.

        Medians of the shortest and of the longest third are compared: a few calls are disturbed by the profiler.
        """
        if len(self.call_ns) < _LEAST_CALLS:
            return 0.0, 0.0
        order = np.argsort(self.positions, kind="stable")
        lengths, times = np.array(self.positions)[order], np.array(self.call_ns)[order]
        most = self.typical_ns / float(np.median(lengths))  # a call costs something at any length
        third = max(1, len(order) // 3)
        distance = float(np.median(lengths[-third:]) - np.median(lengths[:third]))
        if distance <= 0:
            return 0.0, most
        slope = float(np.median(times[-third:]) - np.median(times[:third])) / distance
        low, high = np.percentile(times - slope * lengths, (25, 75))
        error = _ERROR_OF_MEDIANS * float(high - low) / third**0.5 / distance
        return min(most, max(0.0, slope - 2 * error)), min(most, max(0.0, slope + 2 * error))


def growing_inputs(
    calls: Mapping[int, GrowingCalls],
    length_ns: int,
    names: Mapping[int, str],
    samples: tuple[int, int] | None,
) -> list[GrowingInput]:
    """Describe modules that are called for growing sequences in parts of this length, those with the most time first.

    samples: of the main thread in code such as these parts, and in all; None if the parts are those of evaluations.
    """
    growing = [
        (each, module)
        for each in calls.values()
        if len(each.call_ns) + each.sliding >= _LEAST_CALLS and (module := each.module()) is not None
    ]
    inputs = [
        GrowingInput(
            kind=type(module).__name__,
            name=names.get(id(module)),
            location=each.location,
            calls=len(each.call_ns),
            least_positions=min(each.positions, default=0),
            most_positions=max(each.positions, default=0),
            call_ns=each.typical_ns,
            position_ns=each.position_range_ns(),
            sliding_calls=each.sliding,
            sliding_ns=each.sliding_ns,
            has_equal_outputs=each.has_equal_outputs,
            parts_frac=min(1.0, (sum(each.call_ns) + each.sliding_ns) / max(1, length_ns)),
            in_evaluations=samples is None,
            samples=samples[0] if samples else None,
            run_samples=samples[1] if samples else None,
        )
        for each, module in growing
    ]
    return sorted(inputs, key=lambda each: each.parts_frac, reverse=True)
