"""Where a batch has no room any more: looked for by playing few sizes, each on a GPU of its own.

What was asked of the memory so far foretells which are worth playing. The answer is never a forecast: the largest that
fits and the one above it that does not are both played, as they would be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gpulab.virtual.memory_fit.measuring import TOO_LARGE, Measured
from gpulab.virtual.memory_fit.request_script import Script, forecast, forecast_of_steps

MOST_RUNS = 8  # sizes that are tried on the way to the largest
MOST_WRONG = 2  # forecasts; then what is left is halved
LEAST_FRAC = 0.85  # of a GPU's memory: tensors up to so much have room, as a rule, whatever is lost to fragments
EDGE_FRAC = 0.02  # of a batch: how near the two lie at least where nothing can be foretold; else they are neighbours

Play = Callable[[int], tuple[Measured, Script]]


def look_for_edge(known: dict[int, Measured], script: Script, play: Play) -> None:
    """Play sizes until the edge is known, and add them to those that are.

    `known`: sizes played one after the other on one GPU, which counts as its own for the first only; `script`: what
    they asked for, in a part until the end of the first step, and one for each of them.
    """
    ceiling = ceiling_of(known)
    if ceiling is None:
        return
    low, refused = edges(known)
    high = min(refused or ceiling + 1, max(low, ceiling) + 1)
    foretold, alone = _Foretold(known, script), {next(iter(known))}
    halved = round(ceiling * (1 + LEAST_FRAC) / 2)
    for _ in range(MOST_RUNS):
        edge = foretold.edge(low, high)
        if high - low > (1 if edge is not None else max(1, int(high * EDGE_FRAC))):
            guess = min(max(halved if edge is None else edge, low + 1), high - 1)
        elif unsure := {low, high} - alone - {0}:
            guess = min(unsure)
        else:
            return
        known[guess], asked = play(guess)
        alone.add(guess)
        fits = known[guess].verdict != TOO_LARGE
        foretold.learn(guess, asked, right=edge is None or fits == (guess <= edge))
        if fits:
            low, high = guess, high if guess < high else high + max(1, int(high * EDGE_FRAC))
            halved = (low + high) // 2
            continue
        # What it would have used tells better than smaller ones what there is room for.
        better = ceiling_of(known) or guess
        low = low if low < guess else edges({batch: told for batch, told in known.items() if batch < guess})[0]
        high = max(low + 1, min(guess, better + 1))
        halved = better if better < guess else max((low + high) // 2, round(high * LEAST_FRAC))
    if high not in known:
        known[high], _ = play(high)


class _Foretold:
    """Where the edge lies, by what was asked of the memory so far."""

    def __init__(self, known: Mapping[int, Measured], script: Script) -> None:
        sizes: Sequence[int] = list(known)
        self._start, self._told = sizes[0], known[sizes[0]]
        self._script = script.until(1)
        self._forecast = forecast_of_steps(script, sizes)
        self._wrong = 0

    def edge(self, low: int, high: int) -> int | None:
        """The largest batch with room, from `low` and below `high`; None where that cannot be told."""
        if self._forecast is None:
            return None
        told = self._told
        return self._forecast.edge(low, high, told.usable_bytes, told.outside_bytes, told.state_bytes)

    def learn(self, batch: int, script: Script, *, right: bool) -> None:
        """What a size asked for on a GPU of its own, and whether it had room as was foretold."""
        self._wrong += not right
        if self._wrong >= MOST_WRONG:
            self._forecast = None
        elif not right or self._forecast is None:
            self._forecast = forecast(script, batch, self._script, self._start)


def ceiling_of(known: Mapping[int, Measured]) -> int | None:
    """The largest batch whose tensors alone are not too much, by a straight line; None where they do not grow."""
    one, other = sorted(known.values(), key=lambda told: abs(told.used_frac - 1))[:2]
    slope = (other.peak.bytes - one.peak.bytes) / (other.work - one.work)
    if slope <= 0:
        return None
    room = one.usable_bytes - one.outside_bytes - one.peak.bytes
    return max(0, one.work + int(room // slope))


def edges(known: Mapping[int, Measured]) -> tuple[int, int | None]:
    """The largest batch that fits, 0 for none, and the smallest beyond it that does not."""
    low = max((batch for batch, told in known.items() if told.verdict != TOO_LARGE), default=0)
    return low, min((batch for batch, told in known.items() if told.verdict == TOO_LARGE and batch > low), default=None)
