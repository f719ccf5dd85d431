"""Steps whose durations vary much, without a regular cause."""

from __future__ import annotations

from collections import Counter

import numpy as np

from gpulab.intervals import Spans
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, known_numbers
from gpulab.tables import MarkKind
from gpulab.wording import count, duration, percent, plural, ratio

_MIN_STEPS = 100
_MIN_RATIO = 2.0  # of the 99th percentile to the median
_MIN_EXCESS_FRAC = 0.05  # of all step time
_SLOW = 1.5  # times the median
_MIN_LINE_FRAC = 0.3  # of the samples in slow steps


def step_variance(evidence: Evidence) -> Finding | None:
    """A few steps take much longer than the others, at irregular times.

    Proof: the durations of the steps that were not traced: the 99th percentile is at least twice the median.

    Confused with: regular stalls (`periodic_stalls`), waits for batches that arrive in groups, evaluations, garbage
    collection, other programs on the cores: each has a finding of its own, which then covers this one.

    What to do: look at what the main thread does in the slow steps (below), and at batches of different lengths.
    """
    steps = evidence.steps
    chosen = np.flatnonzero(steps.unprofiled)
    if len(chosen) < _MIN_STEPS or steps.burst > 1:
        return None
    times_ns = steps.dur_ns[chosen]
    median_ns, p99_ns = float(np.median(times_ns)), float(np.percentile(times_ns, 99))
    excess_frac = float(np.maximum(times_ns - median_ns, 0).sum()) / float(times_ns.sum())
    if p99_ns < _MIN_RATIO * median_ns or excess_frac < _MIN_EXCESS_FRAC:
        return None
    slow = chosen[times_ns > _SLOW * median_ns]
    spans = Spans(steps.start_ns[slow], steps.end_ns[slow])
    return Finding(
        claim=f"One step in a hundred takes {ratio(p99_ns / median_ns)} the median or longer; what is above the "
        f"median takes {percent(excess_frac)} of the time.",
        evidence=(
            f"Median {duration(median_ns)}, 99th percentile {duration(p99_ns)}, over {len(chosen):,} steps; "
            f"{count(len(slow), 'step')} {plural(len(slow), 'is', 'are')} longer than {ratio(_SLOW)} the median.",
            *_in_slow_steps(evidence, spans),
        ),
        numbers=known_numbers(p99_ratio=p99_ns / median_ns, excess_frac=excess_frac),
        advice="Compare a slow step with its neighbours: the length of the batch, the line that ran, other programs on "
        "the machine.",
        confidence=LIKELY,
        from_steps=False,
        spans=spans,
        informs_only=True,
    )


def _in_slow_steps(evidence: Evidence, spans: Spans) -> tuple[str, ...]:
    """Say what happened in the slow steps: waits for data, or the line in most samples."""
    waits = evidence.run.mark_rows.of_kind(MarkKind.NEXT)
    inside = _inside(spans, waits["start_ns"])
    waited_ns = int((waits["end_ns"] - waits["start_ns"])[inside].sum())
    total_ns = max(1, spans.total_ns)
    texts = []
    if waited_ns > _MIN_LINE_FRAC * total_ns:
        texts.append(f"In the slow steps, the loop waits for data {percent(waited_ns / total_ns)} of the time.")
    samples = evidence.run.host_rows
    rows = samples.select(np.flatnonzero(_inside(spans, samples["at_ns"])))
    lines = Counter(line for line in rows.text("frame").to_list() if line is not None)
    if lines:
        line, times = lines.most_common(1)[0]
        if times >= max(3, _MIN_LINE_FRAC * lines.total()):
            texts.append(f"The main thread is most often at {line} ({percent(times / lines.total())} of the samples).")
    return tuple(texts)


def _inside(spans: Spans, at_ns: np.ndarray) -> np.ndarray:
    index = np.searchsorted(spans.start_ns, at_ns, side="right") - 1
    return (index >= 0) & (at_ns < spans.end_ns[np.maximum(index, 0)]) if len(spans.start_ns) else at_ns < 0
