"""What earlier predictions on this machine taught: how far each kind was off."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHRUNK = 5.0  # so many predictions without any error are believed before the first was measured


@dataclass(frozen=True)
class Past:
    """One prediction and what came of it, in ns of a step."""

    kind: str  # the names of its rewrites, sorted and joined by "+"
    step_ns: int
    predicted_ns: int
    measured_ns: int
    device: str
    date: str


@dataclass(frozen=True)
class Learned:
    """How a kind of prediction is to be mended."""

    bias: float = 1.0  # measured over predicted, shrunk towards 1
    spread: float = 0.0  # half-width as a share of the prediction
    count: int = 0


@dataclass(frozen=True)
class History:
    """Predictions that were measured."""

    past: tuple[Past, ...] = ()

    def of(self, kind: str) -> Learned:
        """What is known of this kind; nothing where none was measured yet."""
        ratios = [np.log(each.measured_ns / each.predicted_ns) for each in self.past if each.kind == kind]
        if not ratios:
            return Learned()
        count = len(ratios)
        mean = float(np.sum(ratios) / (count + SHRUNK))
        around = float(np.sqrt(np.sum((np.array(ratios) - mean) ** 2) / count))
        return Learned(float(np.exp(mean)), 1.28 * around * count / (count + SHRUNK), count)


NO_HISTORY = History()
