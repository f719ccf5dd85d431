"""Compare what was predicted of a planted loop with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.gpu_visit.planted_loops import PlantedLoop

NOISE = 0.05  # of a measured ratio: so far outside the range, or above the bound, is not counted
Half = Mapping[str, Any]

HEAD = (
    *("loop", "first finding", "planted cause", "predicted", "bound", "measured", "in range", "below bound"),
    *("step before", "virtual step", "peak", "virtual peak"),
)


def is_lost(half: Half | None) -> bool:
    """Whether one half of a loop ended with an error."""
    return half is not None and "error" in half


def in_range(half: Half) -> bool | None:
    """Whether the measured speed-up lies in the range of the planted finding; None without a range."""
    finding = half.get("planted")
    if not finding or not finding["predicted"]:
        return None
    low, high = finding["predicted"]
    return bool(low * (1 - NOISE) <= half["speedup"] <= high * (1 + NOISE))


def below_bound(half: Half) -> bool | None:
    """Whether the measured speed-up is at most the bound; None without one."""
    finding = half.get("planted")
    if not finding or finding["bound"] is None:
        return None
    return bool(half["speedup"] <= finding["bound"] * (1 + NOISE))


def row_of(loop: PlantedLoop, halves: Mapping[str, Half | None]) -> tuple[str, ...]:
    """The row of a loop that was measured."""
    half = halves["real"] or {}
    if "error" in half:
        return (loop.name, f"error: {half['error'].splitlines()[-1][:100]}", *[""] * (len(HEAD) - 2))
    first, finding = half["first"], half["planted"]
    virtual = ((halves.get("virtual") or {}).get("before")) or {}
    rank = "first" if is_right(loop, half) else f"rank {half['rank']}" if half["rank"] else "not reported"
    predicted = finding["predicted"] if finding else None
    bound = finding["bound"] if finding else None
    return (
        loop.name,
        first["rule"] if first else "none",
        rank,
        f"{predicted[0]:.2f}-{predicted[1]:.2f}x" if predicted else "-",
        f"{bound:.2f}x" if bound else "-",
        f"{half['speedup']:.2f}x",
        _word(in_range(half)),
        _word(below_bound(half)),
        f"{median(half['before_ms']):.2f} ms",
        f"{virtual['step_ms']:.2f} ms" if "step_ms" in virtual else virtual.get("error", "-")[:60],
        f"{half['peak_bytes'] / 2**20:.0f} MiB",
        f"{virtual['peak_bytes'] / 2**20:.0f} MiB" if "peak_bytes" in virtual else "-",
    )


def is_right(loop: PlantedLoop, half: Half) -> bool:
    """Whether the first finding names the planted cause."""
    return bool(half["first"]) and half["first"]["rule"] in loop.rules


def counts(loops: Sequence[PlantedLoop], halves: Mapping[str, Mapping[str, Half | None]]) -> tuple[str, dict[str, Any]]:
    """How often the diagnosis, the range, the bound and the virtual GPU are right, as words and as figures."""
    judged = [(loop, half) for loop in loops if (half := halves[loop.name]["real"]) and "error" not in half]
    inside = [verdict for _, half in judged if (verdict := in_range(half)) is not None]
    bounded = [verdict for _, half in judged if (verdict := below_bound(half)) is not None]
    right = sum(is_right(loop, half) for loop, half in judged)
    virtual = virtual_errors(loops, halves)
    figures = {
        "loops": len(judged),
        "right": right,
        "ranges": len(inside),
        "in_range": sum(inside),
        "below_bound": sum(bounded),
        "virtual": virtual,
    }
    step_errors = [abs(error["step"]) for error in virtual.values()]
    off = f"; virtual step off by {median(step_errors):.0%} (median of {len(step_errors)})" if step_errors else ""
    return (
        f"first finding right {right} of {len(judged)}; gain in range {sum(inside)} of {len(inside)}; "
        f"below bound {sum(bounded)} of {len(bounded)}{off}",
        figures,
    )


def virtual_errors(
    loops: Sequence[PlantedLoop], halves: Mapping[str, Mapping[str, Half | None]]
) -> dict[str, dict[str, float]]:
    """Relative errors of the virtual step and peak memory before the fix, by loop."""
    errors = {}
    for loop in loops:
        real, virtual = halves[loop.name]["real"], (halves[loop.name]["virtual"] or {}).get("before", {})
        if real and "error" not in real and "step_ms" in virtual and real["peak_bytes"]:
            errors[loop.name] = {
                "step": virtual["step_ms"] / median(real["before_ms"]) - 1,
                "peak": virtual["peak_bytes"] / real["peak_bytes"] - 1,
            }
    return errors


def _word(verdict: bool | None) -> str:
    return {True: "yes", False: "no", None: "-"}[verdict]
