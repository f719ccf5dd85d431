"""What a program asked of the memory, in order, and what it would have asked with another batch.

A step asks for the same pieces in the same order whatever its batch, and most are as many times larger. So two sizes
tell all others, and whether one has room is seen by asking the allocator for these pieces, without any program. It
is a forecast: a step may do something else with another batch, and whoever uses it plays the size that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpulab.virtual.memory_fit.allocator import CachingAllocator, Full

_GIVEN_BACK = -1  # in place of bytes
_EMPTIED = (-1, _GIVEN_BACK, -1)


@dataclass(frozen=True, slots=True)
class Script:
    """Pieces of memory as they were asked for and given back: (number, bytes, stream) each; those of no bytes not."""

    events: list[tuple[int, int, int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # of its parts: how many events before

    def asked(self, number: int, size: int, stream: int) -> None:
        """A piece was given out."""
        if size:
            self.events.append((number, size, stream))

    def given_back(self, number: int) -> None:
        """A piece was taken back."""
        self.events.append((number, _GIVEN_BACK, -1))

    def emptied(self) -> None:
        """What was cached went back to the driver."""
        self.events.append(_EMPTIED)

    def end_part(self) -> None:
        """What follows is another part."""
        self.ends.append(len(self.events))

    def part(self, number: int) -> Script:
        """One part alone."""
        return Script(self.events[self.ends[number - 1] if number else 0 : self.ends[number]])

    def until(self, number: int) -> Script:
        """All up to the end of a part, with its parts."""
        return Script(self.events[: self.ends[number]], self.ends[: number + 1])

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """What was asked for, in order: bytes and stream."""
        return [(size, stream) for _, size, stream in self.events if size != _GIVEN_BACK]


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What a program asks for with a batch of any size: that of a script, and so much more of each piece a sample."""

    script: Script
    batch: int
    slopes: np.ndarray  # bytes a sample, by piece

    def fits(self, batch: int, capacity_bytes: int, outside_bytes: int, state_bytes: int = 0) -> bool:
        """Whether there is room for all of it; `state_bytes` more must be left in the last part."""
        asked = np.array([size for size, _ in self.script.pieces], np.float64)
        sizes = iter(np.maximum(0, np.rint(asked + self.slopes * (batch - self.batch))).astype(np.int64).tolist())
        allocator = CachingAllocator(capacity_bytes, outside_bytes)
        blocks = {}
        last_part = self.script.ends[-2] if len(self.script.ends) > 1 else 0
        for place, (number, size, stream) in enumerate(self.script.events):
            if place == last_part:
                allocator.reset_peak()
            if size != _GIVEN_BACK:
                wanted = next(sizes)
                try:
                    blocks[number] = allocator.allocate(wanted, stream) if wanted else None
                except Full:
                    return False
            elif number < 0:
                allocator.empty_cache()
            elif (block := blocks.pop(number, None)) is not None:
                allocator.free(block)
        return allocator.max_reserved_bytes + state_bytes <= capacity_bytes - outside_bytes

    def edge(self, low: int, high: int, capacity_bytes: int, outside_bytes: int, state_bytes: int = 0) -> int:
        """The largest batch that has room, from `low`, which is known to have, and below `high`, which has not."""
        while high - low > 1:
            middle = (low + high) // 2
            if self.fits(middle, capacity_bytes, outside_bytes, state_bytes):
                low = middle
            else:
                high = middle
        return low


def forecast(one: Script, batch: int, other: Script, other_batch: int) -> Forecast | None:
    """From the same parts with two sizes; None where not as many pieces were asked for."""
    slopes = _slopes(one.pieces, batch, other.pieces, other_batch)
    return None if slopes is None else Forecast(one, batch, slopes)


def forecast_of_steps(script: Script, batches: Sequence[int]) -> Forecast | None:
    """From the first step of a model and later ones of several sizes, of which the first is that of the first step.

    A first step asks for what later ones ask for, and for the optimizer's state beside it, which is the same whatever
    the batch. None where that is not so, or later steps are not alike.
    """
    first, steady = script.part(0).pieces, script.part(1).pieces
    for place in reversed(range(1, len(batches))):
        grown = _slopes(steady, batches[0], script.part(place + 1).pieces, batches[place])
        found = None if grown is None else _found_in(steady, grown, first)
        if grown is not None and found is not None:
            return Forecast(script.until(1), batches[0], np.concatenate([found, grown]))
    return None


def _slopes(
    one: Sequence[tuple[int, int]], batch: int, other: Sequence[tuple[int, int]], other_batch: int
) -> np.ndarray | None:
    if len(one) != len(other) or batch == other_batch or any(a[1] != b[1] for a, b in zip(one, other, strict=True)):
        return None
    sizes = np.array([[size for size, _ in each] for each in (one, other)], np.float64)
    told: np.ndarray = (sizes[1] - sizes[0]) / (other_batch - batch)
    return told


def _found_in(
    steady: Sequence[tuple[int, int]], grown: np.ndarray, first: Sequence[tuple[int, int]]
) -> np.ndarray | None:
    """By how much the pieces of a first step grow: looked for from the end on, as before it the model was made."""
    slopes, wanted = np.zeros(len(first)), len(steady) - 1
    for place in reversed(range(len(first))):
        if wanted >= 0 and first[place] == steady[wanted]:
            slopes[place] = grown[wanted]
            wanted -= 1
    return slopes if wanted < 0 else None
