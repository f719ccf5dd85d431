"""Numbers and subjects as rules write them: durations in ms, shares in percent, who waits."""

from __future__ import annotations

from gpulab.rules.evidence import Evidence


def ms(dur_ns: float) -> str:
    """A duration for a sentence: three figures at most, in the unit that fits."""
    if dur_ns >= 999.5e6:
        return f"{dur_ns / 1e9:.3g} s"
    if dur_ns >= 999.5e3:
        return f"{dur_ns / 1e6:.3g} ms"
    return f"{dur_ns / 1e3:.3g} us"


def who_waits(seen: Evidence, share: float) -> str:
    """The subject of a claim about idle time."""
    if seen.on_gpu:
        return f"GPU idle {share:.0%} of each step"
    return f"The model waits {share:.0%} of each step"


def spread(seen: Evidence, *keys: str) -> str:
    """How a part of the ledger varies over the interior steps, and how many these are."""
    low, high = seen.ledger.range_ns(*keys)
    count = len(seen.ledger.step_ns)
    if count == 1:
        return "1 interior step"
    return f"{count} interior steps, spread {ms(low)} to {ms(high)}"
