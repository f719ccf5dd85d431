"""Numbers and subjects as rules write them: durations in ms, shares in percent, who waits."""

from __future__ import annotations

import re

from gpulab.rules.engine.evidence import Evidence


def ms(dur_ns: float) -> str:
    """A duration for a sentence: three figures at most, in the unit that fits."""
    if dur_ns >= 999.5e9:
        return f"{dur_ns / 1e9:,.0f} s"
    if dur_ns >= 999.5e6:
        return f"{dur_ns / 1e9:.3g} s"
    if dur_ns >= 999.5e3:
        return f"{dur_ns / 1e6:.3g} ms"
    return f"{dur_ns / 1e3:.3g} us"


def percent(frac: float) -> str:
    """A share for a sentence."""
    return f"{100 * frac:.0f} %"


def about(number: float) -> str:
    """A number that need not be whole, as an average: "1.5", "65", "1,000"."""
    return f"{number:,.0f}" if number >= 9.95 else f"{number:.2g}"


def counted(count: int, what: str) -> str:
    """So many of something: "1 chain", "1,200 chains"."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def who_waits(seen: Evidence, share: float) -> str:
    """The subject of a claim about idle time."""
    if seen.on_gpu:
        return f"GPU idle {percent(share)} {of_each_step(seen)}"
    return f"The model waits {percent(share)} {of_each_step(seen)}"


def of_each_step(seen: Evidence) -> str:
    """What a share is a share of; without a loop there are no steps to speak of."""
    return "of the recorded time" if seen.steps.found_by == "whole run" else "of each step"


def of_a_step(seen: Evidence, dur_ns: int) -> str:
    """A part of the traced step, beside the whole."""
    whole = ms(seen.steps.traced_ns or 0)
    if seen.steps.found_by == "whole run":
        return f"{ms(dur_ns)} of {whole} recorded"
    return f"{ms(dur_ns)} of {an(whole)} step"


def an(number: str) -> str:
    """A number with its article, as it is spoken: an 8, an 11, an 18, an 80; but a 110."""
    return f"an {number}" if re.match(r"8|1[18](?!\d)", number) else f"a {number}"


def spread(seen: Evidence, *keys: str) -> str:
    """How a part of the ledger varies over the interior steps, and how many these are."""
    low, high = seen.ledger.range_ns(*keys)
    count = len(seen.ledger.step_ns)
    if count == 1:
        return "1 interior step"
    return f"{count} interior steps, spread {ms(low)} to {ms(high)}"
