"""One pattern as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Something that repeats, changed, or stands out, with its evidence and what to do.

    `wasted_gpu_h`: GPU-hours that were held without work because of it, in the time that was looked at; None if it
    wastes none or that cannot be said.
    """

    kind: str
    claim: str
    evidence: tuple[str, ...]
    advice: str
    device: int | None = None
    wasted_gpu_h: float | None = None
