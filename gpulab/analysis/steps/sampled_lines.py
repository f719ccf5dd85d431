"""The user's lines that the main thread was in, from samples of the whole loop, traced or not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import covered_ns
from gpulab.run import Run

MIN_SAMPLES = 20  # with fewer, a share says little


@dataclass(frozen=True, kw_only=True)
class LineTime:
    """A line of the user's code and its share of the samples."""

    line: str  # "cell line 12", "train (train.py:40)"
    call: str | None  # the library function that it was in, in most of the samples
    frac: float  # 0-1


@dataclass(frozen=True, kw_only=True)
class SampledLines:
    """The lines, the most frequent first, and the number of samples."""

    lines: tuple[LineTime, ...]
    samples: int


def sampled_lines(run: Run, steps: Steps) -> SampledLines | None:
    """Count the lines in the samples from the first step to the last, while the profiler did not pause the loop.

    None with fewer than 20 samples.
    """
    at_ns = run.host_rows["at_ns"]
    if not len(at_ns) or not len(steps):
        return None
    is_paused = covered_ns(pauses_of(run), at_ns, at_ns + 1) > 0
    in_loop = (at_ns >= steps.start_ns[0]) & (at_ns < steps.end_ns[-1]) & ~is_paused
    rows = run.host_rows.select(np.flatnonzero(in_loop))
    pairs = [
        (line, call)
        for line, call in zip(rows.text("frame").to_list(), rows.text("called").to_list(), strict=True)
        if line is not None
    ]
    if len(pairs) < MIN_SAMPLES:
        return None
    calls: dict[str, Counter[str | None]] = {}
    for line, call in pairs:
        calls.setdefault(line, Counter())[call] += 1
    lines = [
        LineTime(line=line, call=counts.most_common(1)[0][0], frac=counts.total() / len(pairs))
        for line, counts in calls.items()
    ]
    return SampledLines(lines=tuple(sorted(lines, key=lambda each: -each.frac)), samples=len(pairs))
